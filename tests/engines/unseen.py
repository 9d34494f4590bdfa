"""What moebox answers to setups of threads that no row of the matrix cites, against what the threads report."""

import csv
from dataclasses import replace
from pathlib import Path

from moebox import engines
from moebox.core import catalogue, support
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint
from moebox.core.recipe import Parallel, Recipe, Speculate
from moebox.core.setting import with_settings
from moebox.detect import load_box
from moebox.engines.support import deployment_setups, deployment_support, support_warnings

THREADS = [*csv.DictReader((Path(__file__).parent / "unseen_threads.csv").open(encoding="utf-8"))]
FAILS = ("no-start", "crashes", "hangs", "wrong")


def thread_deployment(thread: dict[str, str]) -> Deployment:
    """The setup of a thread; a checkpoint that the catalogue lacks has the bytes of a listed one."""
    model, quant = catalogue.find_model(thread["model"]), thread["quant"]
    known = catalogue.published_checkpoints(model.name)
    checkpoint = next((each for each in known if quant in (each.quant, each.name)), None)
    if checkpoint is None:
        gguf = thread["engine"] in ("llama.cpp", "ik_llama.cpp")
        like = next((each for each in known if (each.format == "gguf") == gguf), None)
        checkpoint = Checkpoint(
            name=quant,
            model=model.name,
            quant=quant,
            format="gguf" if gguf else "safetensors",
            bytes_by_component=like.bytes_by_component if like else {},
        )
    sizes: dict[str, int | bool] = {}
    for word in thread["layout"].split():
        name, _, size = word.partition("=")
        sizes[name] = int(size) if size else True
    box = load_box(thread["box"], ram="" if "gb10" in thread["box"] else "1TiB")
    recipe = Recipe(
        name="x",
        engine=thread["engine"],
        engine_version=thread["version"],
        model=model.name,
        checkpoint=checkpoint.name,
        served_name="",
        kv=thread["kv"],
        context=32_768,
        parallel=Parallel(**sizes),  # type: ignore[arg-type]
    )
    for setting in filter(None, thread["settings"].split(";")):
        path, _, value = setting.partition("=")
        if path == "speculate":
            recipe = replace(recipe, speculate=Speculate(method=value))
        else:
            recipe = with_settings(recipe, {path: int(value) if path == "max_seqs" else value == "true" or value})
    return Deployment(recipe, model, checkpoint, box)


def predicted_state(thread: dict[str, str]) -> tuple[str, str]:
    """The state that moebox answers, and its reason."""
    deployment = thread_deployment(thread)
    found = [answer for _, answer in deployment_support(deployment)]
    fatal = [issue for issue in engines.find_refusals(deployment) if issue.severity == "fatal"]
    states = [answer.state for answer in found]
    state = next((each for each in states if each not in ("runs", "unknown", "slow")), states[0])
    reported = {warning.text for warning in support_warnings(deployment)}
    if fatal and (state not in FAILS or any(issue.text not in reported for issue in fatal)):
        state = "no-start"  # what the engine's traits refuse does not get as far as a report of the matrix
    return state, fatal[0].text if fatal else ""


def starts_without_reports(basis: str) -> tuple[int, int]:
    """Of the setups that should start by the engines' sources alone, for one reason: those that started, and all."""
    outcomes = [
        thread["outcome"]
        for thread in THREADS
        for setup in deployment_setups(thread_deployment(thread))
        if not support._refusals(setup) and support._acceptance(setup).startswith(basis)
    ]
    return sum(outcome != "no-start" for outcome in outcomes), len(outcomes)


def judge(outcome: str, state: str) -> str:
    """right, wrong or unknown: failures count as such, whichever kind."""
    if state == "unknown":
        return "unknown"
    return "right" if (outcome in FAILS) == (state in FAILS) else "wrong"


def starts_as_predicted(thread: dict[str, str]) -> bool:
    """Whether moebox is right that the setup starts, whatever happens later."""
    state, _ = predicted_state(thread)
    return state != "unknown" and (state == "no-start") == (thread["outcome"] == "no-start")
