"""The number of flags, `--set`, and flags that were removed."""

import json
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moebox import codec
from moebox.cli import COMMANDS, main
from moebox.cli.app import build_app
from moebox.cli.bench import BenchArgs, BenchSettings, make_bench_plan
from moebox.cli.compare import CompareSettings
from moebox.cli.task import AgentSettings
from moebox.core import catalogue
from moebox.core.recipe import Parallel, Recipe
from moebox.core.setting import apply_settings, setting_flags, setting_names, split_settings
from moebox.core.workload_file import Simulation, WorkloadFile
from moebox.data import FOLDER
from moebox.flows.walk import ClimbMeasures
from moebox.planner.constraints import Constraints, split_constraints
from moebox.serve.where import NodeSettings
from moebox.verify.options import FleetVerifySettings, VerifySettings
from moebox_fleet.bench import FleetLoad
from moebox_fleet.plan_command import FleetSettings
from tests.sampling import one_in

MOST_FLAGS = 240
REMOVED = [
    (command, flag, use, value)
    for command, rows in catalogue.load_table("removed_flags").items()
    for flag, (use, value) in rows.items()
]
# Words that a command needs beside the flag.
NEEDED = {
    "forecast": "kimi-k2.6",
    "twin": "kimi-k2.6",
    "up": "r",
    "rehearse": "r",
    "compare": "a b",
    "climb": "r",
    "fleet plan": "kimi-k2.6 --users 3 --slo ttft=2s --box 8x-h200",
}
RECIPE = Recipe(name="r", engine="vllm", model="m", checkpoint="c", served_name="m")
# What a command's --set changes beside a recipe, and the commands that also plan one.
TYPES: dict[str, Any] = {
    "forecast": WorkloadFile(),
    "twin": WorkloadFile(),
    "bench": BenchSettings(),
    "fleet plan": FleetSettings(),
    "verify": VerifySettings(),
    "fleet verify": FleetVerifySettings(),
    "up": NodeSettings(),
    "rehearse": NodeSettings(),
    "compare": CompareSettings(),
    "climb": ClimbMeasures(),
    "task": AgentSettings(),
    "fleet bench": FleetLoad(),
}
PLANNED = ("forecast", "twin", "fleet plan")


def command_arguments(name: str) -> list[Any]:
    """Return the options of a command; positional arguments that may also be named are not counted."""
    app = build_app(name.split())
    for part in name.split():
        app = app[part]
    return [
        argument
        for argument in app.assemble_argument_collection(parse_docstring=False)
        if argument.parse and not argument.children and not argument.field_info.is_positional
    ]


def test_the_command_line_has_few_flags():
    """Each option of each command counts once; --help, --json, --runs, --debug and --plain are global."""
    counts = {name: len(command_arguments(name)) for name in COMMANDS}

    assert sum(counts.values()) <= MOST_FLAGS, counts


@pytest.mark.parametrize(
    ("command", "flag", "use", "value"),
    one_in(4, REMOVED, unpack=True),
    ids=[f"{command} --{flag}" for command, flag, *_ in REMOVED],
)
def test_a_removed_flag_names_the_new_way(
    command: str, flag: str, use: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line; what it names is a flag of the command, and a setting that the command knows."""
    assert main([*command.split(), *NEEDED.get(command, "").split(), f"--{flag}", *([value] if value else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: --{flag} was removed in 0.2\n\nhint: write {use.replace('{}', value)}\n"

    words = shlex.split(use.replace("{}", value if value != "{}" else "'{}'"))
    names = {name for argument in command_arguments(command) for name in argument.names}
    given = [word for word in words if word.startswith("--")]
    assert set(given) <= names
    if given == ["--set"]:
        parse_setting(command, words[1])


def parse_setting(command: str, text: str) -> None:
    """Parse a setting by the types that the command uses; BadInput if it has no such one."""
    _, others = split_settings(TYPES[command], [text])
    if command in PLANNED:
        _, others = split_constraints(others, Constraints())
    if others:
        apply_settings(RECIPE, others)


def test_a_setting_has_the_type_of_its_field():
    """Counts as 64k, times as 2m, switches, lists, tables with any keys, `none`, and tables that are not there yet."""
    texts = ["context=64k", "parallel.tp=8", "parallel.ep=true", "flags.max-num-seqs=8", "env.NCCL_PROTO=Simple"]
    texts += ["speculate.method=mtp", "hybrid.split=1,2", "memory_utilization=none", "runtime.options=--ipc=host,-q"]
    recipe = apply_settings(RECIPE, texts)

    assert (recipe.context, recipe.parallel) == (65536, Parallel(tp=8, ep=True))
    assert (recipe.flags, recipe.env) == ({"max-num-seqs": 8}, {"NCCL_PROTO": "Simple"})
    assert (recipe.speculate and recipe.speculate.method, recipe.hybrid and recipe.hybrid.split) == ("mtp", (1, 2))
    assert (recipe.memory_utilization, recipe.runtime.options) == (None, ("--ipc=host", "-q"))
    file = apply_settings(WorkloadFile(), ["load.ramp_s=2m", "rate=0.5,2", 'workload.extra={"top_k": 1}'])
    assert (file.load.ramp_s, file.rate, file.workload.extra) == (120.0, (0.5, 2.0), {"top_k": 1})
    assert setting_flags(file.load, WorkloadFile().load, "load.") == ["--set", "load.ramp_s=120"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel.tpp=8", "--set parallel.tpp: there is no such setting\n\nhint: did you mean parallel.tp"),
        ("paralel.tp=8", "there is no such setting\n\nhint: did you mean parallel.tp"),
        ("context", "--set 'context' is not a setting\n\nhint: write it like --set context=64k"),
        ("context=long", "--set context=long: write a whole number from 0 on"),
        ("vision=perhaps", "--set vision=perhaps: write true or false"),
        ("memory_utilization=much", "--set memory_utilization=much: write a number"),
        ("runtime.kind=dokcer", "unknown value of --set runtime.kind: 'dokcer'\n\nhint: did you mean docker"),
        ("context.more=8", "--set context.more: there is nothing below context"),
        ("parallel.tp=0", "parallel.tp: 0 is less than 1"),
        ("workload.kind=randm", "unknown value of --set workload.kind: 'randm'\n\nhint: did you mean random?"),
    ],
)
def test_a_wrong_setting_is_one_line(text: str, message: str, capsys: pytest.CaptureFixture[str]):
    """What is wrong, and the nearest names."""
    assert main(["forecast", "kimi-k26-vllm", "--decode", "--set", text]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) <= 3


def test_a_workload_file_is_forecast_as_it_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A copy of a shipped file, changed by its owner, gives `forecast` and `bench` the same requests."""
    text = (FOLDER / "workloads" / "lambda.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("requests = 512", "requests = 40"), encoding="utf-8")

    assert main(["forecast", "kimi-k2.6", "--box", "8x-b200", "--workload", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    plan = make_bench_plan(BenchArgs(), str(path))
    assert (row["max_concurrency"], row["num_prompts"], row["completed"]) == (32, 40, 40)
    assert [(load.concurrency, load.requests) for load in plan.loads] == [(32, 40)]
    assert plan.name == "mine"
    path.write_text(text.replace("kind =", "knid ="), encoding="utf-8")
    assert main(["forecast", "kimi-k2.6", "--box", "8x-b200", "--workload", str(path)]) == 2
    assert "unknown setting 'workload.knid'\n\nhint: did you mean kind?" in capsys.readouterr().err


def test_a_recipe_sizes_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`fleet plan` takes a recipe, on its own box and on others, with settings changed."""
    words = ["--users", "4", "--slo", "ttft=20s,share=0.5", "--set", "search.time_s=2m", "--set", "search.most=2"]
    assert main(["fleet", "plan", "kimi-k26-vllm", *words, "--set", "kv=fp8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["virtual_s"] == 120
    assert document["slo"]["share"] == 0.5
    assert len(document["answers"]) == 1


def test_the_documented_workload_file_has_every_key():
    """docs/metrics.md shows all keys of a workload file, with their defaults."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    document = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    shown = [f"{table}.{key}" for table, keys in document.items() if isinstance(keys, dict) for key in keys]
    shown += [key for key, value in document.items() if not isinstance(value, dict)]

    assert set(shown) == set(setting_names(WorkloadFile)) - {"workload.salt"}
    found = codec.decode(WorkloadFile, document, where="docs/metrics.md")
    assert replace(found, simulation=Simulation()) == WorkloadFile()


def test_json_is_for_every_command_that_prints_results(capsys: pytest.CaptureFixture[str]):
    """It stands before or after the command; a command without results refuses it."""
    assert main(["--json", "models", "show", "kimi-k2.6"]) == 0
    before = capsys.readouterr().out
    assert main(["models", "show", "kimi-k2.6", "--json"]) == 0
    assert json.loads(before) == json.loads(capsys.readouterr().out)
    assert main(["completion", "bash", "--json"]) == 2
    assert "--json" in capsys.readouterr().err
