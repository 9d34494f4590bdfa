"""Conversations that come back: broken KV tiers are found, working ones pass, and cached tokens are counted by turn."""

import os
import random
from pathlib import Path

import pytest

from moebox import http
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.recipe import KvTiers
from moebox.core.verdict import Probe
from moebox.flows.switch import start_detached
from moebox.phantom.question import Question
from moebox.phantom.text_questions import haystack_questions
from moebox.serve import kv_store, session, state
from moebox.serve.stop import stop_instance
from moebox.store import Run
from moebox.verify.checks.cache import with_new_codes
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.embedded import phantom_recipe

from .oracle.app import MODEL
from .oracle.stores import STORES

COUNT = int(os.environ.get("SLOTS", "2"))  # saved slots; SLOTS=100 for the figure in docs/living.md


def probe_returning(endpoint: Endpoint, **options: object) -> Probe:
    results = run_checks(endpoint, VerifyOptions(thinking="no", **options), only=["cache"])  # type: ignore[arg-type]
    return next(probe for probe in results.rungs[0].probes if probe.name == "returning")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.siege) for seed in (1, 2, 3))])
@pytest.mark.parametrize("store", STORES)
def test_a_broken_store_fails(oracle: str, store: str, seed: int):
    """Swapped, old, shifted or another conversation's blocks, and lost tools, each time."""
    probe = probe_returning(endpoint_from_url(f"{oracle}/{store}", MODEL), conversations=12, seed=seed)

    assert probe.verdict == "fail", probe.reason
    assert "right without the cache" in probe.reason


def test_the_origin_of_a_foreign_prefix_is_named(oracle: str):
    """The texts differ only in their codes, so the other conversation is known."""
    endpoint = endpoint_from_url(f"{oracle}/store-returns-another-conversation", MODEL)
    assert "it got the code of conversation" in probe_returning(endpoint, conversations=8, seed=77).reason


def test_a_server_without_a_tool_parser_does_not_fail_its_cache(oracle: str):
    """Tools that it refuses are another check's business."""
    probe = probe_returning(endpoint_from_url(f"{oracle}/store-without-tools", MODEL), conversations=8, seed=3)
    assert probe.verdict == "pass", probe.reason
    assert probe.reason.startswith("6 conversations")


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.siege) for seed in (6, 7))])
def test_a_store_that_works_passes(oracle: str, seed: int):
    """No alarm for prefixes that were moved out and came back whole."""
    probe = probe_returning(endpoint_from_url(f"{oracle}/store-works", MODEL), conversations=16, seed=seed)

    assert (probe.verdict, probe.reason) == ("pass", "16 conversations, " + probe.reason.split(", ", 1)[1])
    assert "the server reports no cached tokens" in probe.reason


def test_a_prefix_that_should_have_been_cached_is_a_warning_with_its_cost(oracle: str):
    """The cache is stated to hold all conversations, and the server reports none as cached."""
    endpoint = endpoint_from_url(f"{oracle}/odd-usage-details", MODEL)
    probe = probe_returning(endpoint, conversations=4, seed=1, cache_tokens=100_000)

    assert probe.verdict == "warn"
    assert "should have been cached" in probe.reason
    assert "tokens are computed again in each turn" in probe.reason


def ask_slot(live: Endpoint, action: str, number: int) -> None:
    """Save or restore the only slot of llama.cpp."""
    url = f"{live.server_url}/slots/0?action={action}"
    reply = http.post_json(url, {"filename": f"{number}.bin"}, headers=live.headers, timeout_s=60)
    assert reply.ok, reply.text


def ask_code(live: Endpoint, question: Question) -> tuple[bool, int]:
    """Whether the code is right, and how many prompt tokens came from the cache."""
    request = {"model": "phantom", "messages": list(question.messages), "temperature": 0, "max_tokens": 16}
    request["chat_template_kwargs"] = {"thinking": False}
    body = http.post_json(f"{live.base_url}/chat/completions", request, headers=live.headers, timeout_s=120).json()
    return body["choices"][0]["message"]["content"] == question.expect, body["timings"]["cache_n"]


def exchange_halves(folder: Path, one: int, other: int) -> None:
    """Give two saved slots each other's second half: tokens stay, keys and values are those of both."""
    files = [folder / f"{number}.bin" for number in (one, other)]
    first, second = (file.read_bytes() for file in files)
    half, end = len(first) // 4, min(len(first), len(second)) - 64
    files[0].write_bytes(first[:half] + second[half:end] + first[end:])
    files[1].write_bytes(second[:half] + first[half:end] + second[end:])


def test_llama_cpp_restores_saved_slots_and_damaged_files_show(tmp_path: Path):
    """Real KV files: each conversation gets its own back; with another's keys and values the codes are wrong."""
    rng = random.Random(4)
    base = haystack_questions(rng, chars=500, depths=(0.4, 0.8))
    conversations = [with_new_codes(rng, base) for _ in range(COUNT)]
    recipe = phantom_recipe(context=640, kv_tiers=KvTiers(disk_gib=1, folder=str(tmp_path / "kv")))
    with session.engine_session(deploy(recipe), Run.create("embedded", runs=tmp_path)) as live:
        (folder,) = (tmp_path / "kv").iterdir()
        for number, questions in enumerate(conversations):
            assert ask_code(live.endpoint, questions[0])[0]
            ask_slot(live.endpoint, "save", number)
        text = kv_store.save_slots(live.endpoint, folder)
        assert ask_code(live.endpoint, conversations[0][0])[0]
        text += kv_store.restore_slots(live.endpoint, folder)
        last = ask_code(live.endpoint, conversations[-1][1])
        right = []
        for number, questions in enumerate(conversations):
            ask_slot(live.endpoint, "restore", number)
            good, cached = ask_code(live.endpoint, questions[1])
            right.append(good and cached > 100)
        damaged = []
        for number in range(0, COUNT, 2):
            exchange_halves(folder, number, number + 1)
            for damaged_one in (number, number + 1):
                ask_slot(live.endpoint, "restore", damaged_one)
                damaged.append(all(ask_code(live.endpoint, question)[0] for question in conversations[damaged_one]))
    print(f"{sum(right)} of {COUNT} right after restoring; {damaged.count(False)} of {COUNT} damaged ones wrong")
    assert (text.count("1 of 1 slot"), last[0], last[1] > 100) == (2, True, True)  # moebox's own save and restore
    assert all(right)
    assert not any(damaged)


def test_a_store_is_checked_across_a_restart(tmp_path: Path):
    """`verify --restart` stops and starts the engine before the conversations come back; others cannot be restarted."""
    tiers = KvTiers(disk_gib=0.01, folder=str(tmp_path / "kv"))
    instance = start_detached(phantom_recipe(kv_tiers=tiers))
    options = ["--only", "cache", "--restart", "--set", "conversations=4"]
    try:
        assert main(["verify", instance.base_url, *options, "--effort", "quick"]) == 0
        after = state.find_instance(None)
    finally:
        for each in state.list_instances():
            stop_instance(each)
    text = (Path(instance.run) / "events.jsonl").read_text() + (Path(after.run) / "events.jsonl").read_text()

    assert after.guard != instance.guard
    assert "1 of 1 slot saved" in text
    assert "1 of 1 slot restored" in text
    assert main(["verify", "http://127.0.0.1:9", "--model", "m", *options]) == 2
