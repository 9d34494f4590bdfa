"""ik_llama.cpp and mainline llama.cpp, from plan to comparison, on the command line."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from moebox import codec, phantom
from moebox.core.model import Gqa, Model, Moe
from moebox.core.quirks import engine_quirks
from moebox.core.recipe import EngineName, Hybrid, Recipe, Runtime
from moebox.serve.dummy import write_gguf
from moebox.serve.preflight import find_free_port
from tests.driving import failures_without_quirk, moebox, up, written
from tests.engine_llama.conftest import BUILDS, THREADS, program, recipe_for

pytestmark = pytest.mark.engine
TOLERANCE = 0.03
SMALL = Model(
    name="small",
    title="Small",
    architecture="Qwen3MoeForCausalLM",
    hidden=512,
    layers=6,
    vocab=2048,
    context=8192,
    gqa=Gqa(heads=8, kv_heads=2, head_dim=64),
    moe=Moe(experts=16, used=4, intermediate=256),
)


def test_a_planned_recipe_starts(engine: EngineName, folders: Path) -> None:
    """`plan` writes it for this machine; with the server's path added it starts, with a known remedy if necessary."""
    path = folders / f"planned-{engine}.toml"
    words = ("--engine", engine, "--context", "4096", "--threads", str(THREADS))
    moebox("plan", phantom.latent_path(), *words, "-o", path).good()
    planned = codec.read_toml(Recipe, path)
    assert planned.engine == engine
    with up(
        written(dataclasses.replace(planned, runtime=Runtime(entry=str(program(engine)))), folders),
        "--port",
        "0",
        "--apply-remedy",
    ):
        pass


def test_keys_and_values_in_one_matrix_are_planned_as_they_are_served(engine: EngineName, folders: Path) -> None:
    """A file from before latent attention: llama.cpp caches whole heads, ik_llama.cpp makes the latent's matrices."""
    old = recipe_for(engine, f"old-{BUILDS[engine]}", checkpoint=str(phantom.gguf_path()))
    with up(written(old, folders)) as started:
        test_memory_is_what_was_planned(started)


def test_a_climb_continues_from_its_plan(engine: EngineName, folders: Path) -> None:
    """It begins with the planned context and raises it to the model's; nothing else is tried without request."""
    path = folders / f"climbed-{engine}.toml"
    words = ("--engine", engine, "--context", "4096", "--threads", str(THREADS))
    moebox("plan", phantom.latent_path(), *words, "-o", path).good()
    planned = codec.read_toml(Recipe, path)
    runs = dataclasses.replace(
        planned,
        runtime=Runtime(entry=str(program(engine))),
        listen=dataclasses.replace(planned.listen, port=find_free_port()),
        flags={**planned.flags, **recipe_for(engine, "x").flags},
    )
    done = moebox("climb", written(runs, folders), "--rounds", "2", "--questions", "6", "--concurrency", "1", "--json")
    trials = done.good().document["steps"]
    assert [trial["recipe"]["context"] for trial in trials] == [4096, 8192]
    assert trials[0]["kept"]
    assert all(trial["recipe"]["speculate"] is None for trial in trials)


# What each server of August 2026 fails at every try, whatever the launch.
SURE: dict[str, set[str]] = {
    "llama.cpp": set(),
    "ik_llama.cpp": {"ik-stop-string-leaks", "ik-finish-stop-at-max-tokens", "ik-too-long-is-500"},
}


def test_every_check_is_green_or_a_known_quirk(engine: EngineName, check_results: dict[str, Any]) -> None:
    """Every probe that fails shows a quirk of this server that moebox knows and names."""
    checks = check_results["rungs"]
    assert not failures_without_quirk(check_results)
    assert check_results["engine"] == engine
    assert {check["name"] for check in checks if check["verdict"] == "skip"} <= UNTRIED
    named = [text for check in checks for text in check["quirks"]]
    assert {quirk.text for quirk in engine_quirks(engine) if quirk.id in SURE[engine]} <= set(named)


UNTRIED = {"vision"}  # the phantom sees nothing


def test_clients_are_warned_of_quirks(engine: EngineName, server: dict[str, Any]) -> None:
    """`connect` prints what a client should do about each."""
    document = moebox("connect", "openai", server["id"], "--json").good().document
    assert document["quirks"] == [f"{quirk.does}: {quirk.client}" for quirk in engine_quirks(engine)]


def test_tool_calls_are_parsed(check_results: dict[str, Any]) -> None:
    """Kimi's tool calls through the server's own parser: no probe fails, and several have passed."""
    (tools,) = [check for check in check_results["rungs"] if check["name"] == "tools"]
    verdicts = [probe["verdict"] for probe in tools["probes"]]
    assert "fail" not in verdicts, tools["reason"]
    assert verdicts.count("pass") > len(verdicts) / 2


def test_prefill_cold_and_decode_are_measured(server: dict[str, Any]) -> None:
    """The first token of a thinking model is a tag that this server does not send; PP is measured nevertheless."""
    document = (
        moebox("bench", server["id"], "--pp", "256,1024", "--tg", "32", "--set", "repeat=2", "--json").good().document
    )
    tests = {(row["test"], row["cold"]): row["mean_tok_s"] for row in document["rows"]}
    assert {("pp256", True), ("pp1024", True), ("tg32", True)} <= tests.keys()
    assert all(rate and rate > 0 for rate in tests.values())


def test_a_small_load_completes(server: dict[str, Any]) -> None:
    """Two streams, fresh prompts."""
    words = ("--input", "64", "--output", "32", "--concurrency", "2", "--requests", "6", "--json")
    moebox("bench", server["id"], *words).good()


def test_memory_is_what_was_planned(server: dict[str, Any]) -> None:
    """Weights and cache by the server's own log within 3 %."""
    off = {row["what"]: row["off"] for row in server["reality"] if row["off"] is not None}
    assert {"weights", "kv"} <= off.keys()
    assert all(abs(off[name]) < TOLERANCE for name in ("weights", "kv", "cache") if name in off), off


@pytest.mark.parametrize("mla", [1, 2, 3])
def test_each_mode_of_latent_attention_answers_right(mla: int, folders: Path) -> None:
    """ik_llama.cpp's -mla 1, 2 and 3."""
    settings = Hybrid(threads=THREADS, gpu_layers=0, mla=mla)
    with up(written(recipe_for("ik_llama.cpp", f"mla-{mla}", hybrid=settings), folders)) as started:
        results = moebox(
            "verify", started["id"], "--only", "alive,plain,arithmetic", "--effort", "quick", "--json"
        ).document
    assert not failures_without_quirk(results)


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_both_types_of_cache_answer_right(engine: EngineName, kv: str, folders: Path) -> None:
    """-ctk and, if the server has it, -ctv."""
    with up(written(recipe_for(engine, f"cache-{kv}", kv=kv), folders)) as started:
        results = moebox(
            "verify", started["id"], "--only", "alive,plain,arithmetic", "--effort", "quick", "--json"
        ).document
        off = {row["what"]: row["off"] for row in started["reality"] if row["off"] is not None}
    assert not failures_without_quirk(results)
    assert abs(off["kv"]) < TOLERANCE


def test_placement_rules_are_passed_on(engine: EngineName, folders: Path) -> None:
    """-ot: verbatim rules, in their order, on the command line of a server that started with them."""
    settings = Hybrid(threads=THREADS, gpu_layers=0, ranges=(r"blk\.(1|2)\.ffn_.*_exps=CPU", "exps=CPU"))
    with up(written(recipe_for(engine, "placed", hybrid=settings), folders)) as started:
        words = psutil.Process(started["pid"]).cmdline()
    assert [words[place + 1] for place, word in enumerate(words) if word == "-ot"] == list(settings.ranges)


def test_a_file_in_a_hub_cache_is_loaded(engine: EngineName, folders: Path) -> None:
    """snapshots/REF/file is a link into blobs/."""
    hub = folders / f"hub-{engine}" / "models--moebox--phantom"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "abc123").mkdir(parents=True)
    (hub / "blobs" / "0123abcd").write_bytes(phantom.latent_path().read_bytes())
    link = hub / "snapshots" / "abc123" / "phantom-q8_0.gguf"
    link.symlink_to(Path("../../blobs/0123abcd"))
    with up(written(recipe_for(engine, "cached", checkpoint=str(link)), folders)) as started:
        assert started["base_url"]


def test_a_rehearsal_with_dummy_weights(recipe: Path) -> None:
    """Boot, a prompt beyond a block, decode, down."""
    document = moebox("rehearse", recipe, "--json").good().document
    assert [step["name"] for step in document["steps"]] == ["boot", "long prompt", "decode", "down"]


def test_a_rehearsal_with_the_phantom(engine: EngineName, recipe: Path) -> None:
    """The same with answers: all right except for the server's known quirks, which are listed."""
    document = moebox("rehearse", recipe, "--phantom", "--json").good().document
    steps = {step["name"]: step["detail"] for step in document["steps"]}
    print(steps["answers"], flush=True)
    assert list(steps) == ["boot", "long prompt", "decode", "answers", "down"]
    failing = re.search(r"known quirks of (\S+): ([a-z, ]+)\)", steps["answers"])
    expected = {quirk.check for quirk in engine_quirks(engine) if quirk.id in SURE[engine]}
    assert expected <= set(failing[2].split(", ") if failing else ())


def test_steps_are_timed_and_kept(engine: EngineName, folders: Path) -> None:
    """`rehearse --measure` with generated weights of even routing: a calibration that plan can read."""
    file = folders / "small.gguf"
    write_gguf(file, SMALL, layers=SMALL.layers)
    made = recipe_for(engine, "small", model=str(file), checkpoint=str(file), context=1024, max_seqs=1)
    done = moebox("rehearse", written(made, folders), "--measure", "--layers", "2,4", "--budget", "60s", "--json")
    found = done.good().document
    assert found["depths"] == [2, 4]
    assert found["error"] > 0
    assert found["id"] in moebox("calibrations", "--json").good().out


SIDES: tuple[tuple[str, EngineName], ...] = (("a", "llama.cpp"), ("b", "ik_llama.cpp"))


def test_one_engine_against_the_other(folders: Path) -> None:
    """Decode, cold prompts and tool calls of both on the same box and file."""
    sides = [written(recipe_for(engine, f"side-{name}"), folders) for name, engine in SIDES]
    words = ("--concurrency", "1", "--set", "questions=12", "--set", "rounds=2", "--json")
    done = moebox("compare", *sides, *words)
    assert done.code in (0, 1), done.err
    found = done.document
    answers, gain = found["answers"], found["gains"][0]
    print(f"| engine | decode tok/s | TTFT ms | right | tool calls |\n{found['verdict']}", flush=True)
    for name, engine in SIDES:
        score, tools = answers[f"right_{name}"], answers[f"tools_{name}"]
        rate, ttft = gain[f"{name}_tok_s"], gain[f"{name}_ttft_ms"]
        print(
            f"| {engine} | {rate:.1f} | {ttft:.0f} | {score['passed']} of {score['trials']} | {tools['passed']} |",
            flush=True,
        )
        assert min(rate, ttft) > 0
        assert score["passed"] >= 0.8 * score["trials"], f"{engine} answers {score['passed']} of {score['trials']}"
        assert tools["passed"] == tools["trials"] > 0, f"{engine} loses tool calls: {tools}"
    assert gain["gain"]["low"] <= gain["gain"]["share"] <= gain["gain"]["high"]
    assert (done.code == 0) == found["as_good"]
