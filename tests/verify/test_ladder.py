"""Both directions: every breakage is caught by the rung meant for it, and a correct server passes all."""

import json

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckResults
from moebox.errors import UnknownName
from moebox.store import Run
from moebox.verify.options import CHECK_NAMES, VerifyOptions
from moebox.verify.runner import results_document, run_checks, select_checks

from .oracle.app import KEY, MODEL
from .oracle.rates import ALL

STRICT = VerifyOptions(thinking="yes", deadline_s=60, trials=4, seed=1)
BROKEN = {name: fault.rung for name, fault in ALL.items() if fault.rung}


def climb(oracle: str, fault: str, *only: str, key: str | None = None, run: Run | None = None) -> CheckResults:
    endpoint = endpoint_from_url(f"{oracle}/{fault}", MODEL, key=key)
    return run_checks(endpoint, STRICT, only=only, run=run)


@pytest.mark.parametrize("seed", [1, *(pytest.param(other, marks=pytest.mark.siege) for other in (2, 3))])
def test_a_correct_server_passes_every_rung(oracle: str, seed: int):
    """No false red: whatever questions are drawn (200 draws are climbed by benchmarks/ladder_soundness.py)."""
    options = VerifyOptions(thinking="yes", seed=seed, deadline_s=60)
    ladder = run_checks(endpoint_from_url(f"{oracle}/correct", MODEL), options)

    marks = {rung.name: (rung.verdict, rung.reason) for rung in ladder.rungs}
    assert marks.pop("vision")[0] == "skip"  # it reads text only, and says so
    assert marks == {name: ("pass", "") for name in CHECK_NAMES if name != "vision"}
    assert ladder.verdict == "pass"
    assert ladder.sandbox in ("namespaces", "landlock", "seccomp")


@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_a_breakage_is_caught_by_the_rung_meant_for_it(oracle: str, fault: str):
    """No false green: one known fault, one red rung, with a reason."""
    rung = climb(oracle, fault, BROKEN[fault]).rungs[0]

    assert rung.verdict == ("fail" if ALL[fault].red else "warn")
    assert rung.reason
    assert all(probe.reason for probe in rung.probes if probe.verdict == "fail")


# Servers of bug reports that an earlier ladder let pass, with the checks that see them now.
ONCE_MISSED = {
    "nested-arguments-as-text": ("tools",),
    "long-results-cut": ("agents",),
    "results-swapped": ("agents",),
    "result-parts-lost": ("agents",),
    "null-content-crashes": ("agents",),
    "thoughts-after-result-in-content": ("thinking", "agents"),
    "thoughts-of-another": ("thinking", "concurrency"),
    "cached-over-prompt": ("plain",),
    "enum-of-numbers-empty": ("json",),
    "tail-lost-with-stop": ("limits",),
    "stop-of-many-tokens-ignored": ("limits",),
    "piece-twice-with-stop": ("limits",),
    "limit-of-sixteen": ("limits",),
    "logprobs-too-few": ("sampling",),
    "blanks-collapse": ("prompts",),
    "html-escaped": ("prompts",),
    "token-lost-at-512": ("streaming",),
    "repeats-from-1000": ("streaming",),
    "cancelled-words-return": ("errors",),
    "anthropic-thoughts-as-text": ("thinking", "anthropic"),
    "anthropic-system-blocks-lost": ("anthropic",),
    "anthropic-result-blocks-lost": ("anthropic",),
    "strings-made-numbers": ("tools",),
    "large-numbers-rounded": ("tools",),
    "call-told-too": ("tools",),
    "two-choices": ("alive",),
    "tools-beyond-eight-lost": ("prompts",),
    "thoughts-back-refused": ("thinking", "agents"),
    "escapes-read-twice": ("prompts",),
    "options-needed": ("streaming",),
    "string-lengths-ignored": ("json",),
    "patterns-ignored": ("json",),
    "ranges-ignored": ("json",),
    "fences-stripped": ("prompts",),
    "only-sixteen-tools": ("prompts",),
}
# The same of the fourth, fifth and sixth families, for which few trials are enough.
SEEN_AT_ONCE = {
    "arguments-stripped": ("prompts",),
    "arguments-cut-at-comma": ("prompts",),
    "arguments-cut-at-quote": ("prompts",),
    "long-descriptions-no-calls": ("prompts",),
    "markup-in-arguments-lost": ("prompts",),
    "markup-in-text-lost": ("prompts",),
    "late-system-dropped": ("prompts",),
    "two-user-turns-refused": ("prompts",),
    "developer-role-crashes": ("prompts",),
    "assistant-parts-crash": ("prompts",),
    "empty-turns-break": ("prompts",),
    "bad-history-500": ("tools",),
    "cut-thoughts-as-answer": ("thinking", "limits"),
    "limit-before-stop": ("limits",),
    "logprobs-past-stop": ("sampling",),
    "logprobs-of-broken-letters": ("sampling",),
    "logprobs-in-old-form": ("sampling",),
    "top-logprobs-empty": ("sampling",),
    "anthropic-thoughts-streamed-only": ("thinking", "anthropic"),
    "anthropic-no-signature": ("thinking", "anthropic"),
    "anthropic-tool-choice-ignored": ("anthropic",),
    "anthropic-first-word-twice": ("anthropic",),
    "no-parameters-crash": ("prompts",),
    "no-description-crash": ("prompts",),
    "strict-tools-refused": ("prompts",),
    "top-p-one-refused": ("prompts",),
    "nulls-refused": ("prompts",),
    "long-system-cut": ("prompts",),
    "special-tokens-in-prompt-lost": ("prompts",),
    "braces-in-prompt-lost": ("prompts",),
    "history-beyond-twenty-lost": ("prompts",),
    "union-arguments-as-text": ("tools",),
    "long-arguments-cut": ("tools",),
    "decimals-lost": ("tools",),
    "falsy-arguments-dropped": ("tools",),
    "keys-in-camel-case": ("tools",),
    "form-silences-tools": ("tools",),
    "words-beside-calls-lost": ("agents",),
    "thinks-anyway-with-tools": ("thinking", "agents"),
    "anthropic-start-counts-nothing": ("anthropic",),
    "anthropic-cache-control-refused": ("anthropic",),
    "anthropic-text-beside-result-lost": ("anthropic",),
    "anthropic-second-result-lost": ("anthropic",),
    "lists-of-one-unwrapped": ("tools",),
    "names-cut-at-underscores": ("tools",),
    "schema-or-tools": ("tools",),
    "last-result-only": ("agents",),
    "results-in-order": ("agents",),
    "system-lost-in-long-chats": ("prompts",),
    "tools-not-counted": ("prompts",),
    "raw-newline-in-json": ("prompts",),
    "streams-are-greedy": ("sampling",),
    "alternatives-of-the-first": ("sampling",),
    "last-piece-lost-at-limit": ("limits",),
    "garbage-after-an-abort": ("errors",),
    "one-parser-for-all": ("thinking", "concurrency"),
    "anthropic-first-block-lost": ("anthropic",),
    "results-need-names": ("tools",),
    "empty-results-crash": ("agents",),
    "quotes-in-history-crash": ("agents",),
    "named-users-refused": ("prompts",),
    "mail-redacted-in-calls": ("prompts",),
    "parameters-undescribed": ("prompts",),
    "nonsense-when-warm": ("cache",),
    "connections-end-after-ten": ("errors",),
}
MISSED = {name: (rungs, 12) for name, rungs in ONCE_MISSED.items()}
MISSED |= {name: (rungs, 4) for name, rungs in SEEN_AT_ONCE.items()}


@pytest.mark.parametrize("fault", sorted(MISSED))
def test_what_bug_reports_describe_is_not_green(oracle: str, fault: str):
    """Red or yellow, in the last of the checks named, with a reason."""
    rungs, trials = MISSED[fault]
    options = VerifyOptions(thinking="yes", deadline_s=60, trials=trials, seed=5)
    ladder = run_checks(endpoint_from_url(f"{oracle}/{fault}", MODEL), options, only=rungs)

    assert ladder.rungs[-1].verdict in ("fail", "warn")
    assert ladder.rungs[-1].reason


def test_the_length_that_is_announced_is_tried_where_it_is_cheap_and_told_where_it_is_not(oracle: str):
    """Above 16k one prompt of that length is sent; with a shorter --context the verdict says what was not tried."""
    tried = climb(oracle, "takes-20k", "long-context")
    probes = {probe.name: probe.reason for probe in tried.rungs[0].probes}
    shorter = VerifyOptions(thinking="yes", context=2000, trials=4, seed=1)
    told = run_checks(endpoint_from_url(f"{oracle}/takes-20k", MODEL), shorter, only=["long-context"])

    assert "of 20,000 tokens announced" in probes["announced"]
    assert tried.notes == ()
    assert "20,000 tokens announced" in told.notes[0]
    assert "--context 20000 tries all" in told.notes[0]


@pytest.mark.parametrize("server", ["odd-short-1k", "odd-short-2k-strict"])
def test_a_short_context_is_no_fault(server: str, oracle: str):
    """No more is asked for than it holds: a conversation ends before it is full, and answers leave room for prompts."""
    ladder = climb(oracle, server, "alive", "thinking", "tools", "agents", "anthropic")

    assert {rung.name: rung.reason for rung in ladder.rungs if rung.verdict != "pass"} == {}


def test_what_has_no_room_in_a_short_context_is_not_asked(oracle: str):
    """Said of each question; nothing fails, and what fits is checked. vLLM at 1,024 tokens failed by HTTP 500."""
    ladder = climb(oracle, "odd-short-1k-strict", "alive", "plain", "tools", "anthropic")
    unasked = [probe.reason for rung in ladder.rungs for probe in rung.probes if probe.verdict == "skip"]

    assert {rung.verdict for rung in ladder.rungs} == {"pass"}
    assert "question and answer need more than a context of 1,024 tokens" in unasked


def test_a_context_that_is_said_to_be_shorter_than_it_is_hides_nothing(oracle: str):
    """All is asked as ever, and what fails is the announcement: answers of one token were called unfinished."""
    ladder = climb(oracle, "says-it-takes-little", "alive", "plain", "thinking", "agents", "limits")
    marks = {rung.name: rung.verdict for rung in ladder.rungs}
    (agents,) = (rung for rung in ladder.rungs if rung.name == "agents")

    assert marks == {"alive": "pass", "plain": "pass", "thinking": "pass", "agents": "pass", "limits": "fail"}
    assert {probe.name: probe.reason for probe in agents.probes}["rounds with thinking"] == "6 rounds"


def test_each_fault_of_the_brief_has_a_server():
    """The list of breakages is complete, and every rung has at least one server that fails it."""
    assert set(BROKEN.values()) == set(CHECK_NAMES)


def test_garbage_stops_the_ladder_where_later_rungs_would_mean_nothing(oracle: str):
    """A model that says "!!!!" is not asked for JSON; the rungs left out are named."""
    ladder = climb(oracle, "exclaims")

    assert [rung.verdict for rung in ladder.rungs[:3]] == ["pass", "fail", "skip"]
    assert "plain" in ladder.stopped
    assert all(rung.verdict == "skip" for rung in ladder.rungs[2:])


def test_keep_going_climbs_past_it(oracle: str):
    """Somebody who wants to see the rest may."""
    endpoint = endpoint_from_url(f"{oracle}/exclaims", MODEL)
    ladder = run_checks(endpoint, STRICT, only=["plain", "limits"], keep_going=True)

    assert [rung.verdict for rung in ladder.rungs] == ["fail", "fail"]


def test_a_fault_in_one_rung_leaves_the_others_green(oracle: str):
    """The ladder goes on where that makes sense."""
    ladder = climb(oracle, "forgets-usage")

    assert [rung.name for rung in ladder.rungs if rung.verdict == "fail"] == ["streaming"]


def test_a_500_in_mid_ladder_is_a_verdict_and_not_an_end(oracle: str):
    """Later rungs are still tried, and say what they met."""
    ladder = climb(oracle, "stops-answering-midway", "plain", "arithmetic", "json", "limits")

    assert [rung.verdict for rung in ladder.rungs] == ["pass", "fail", "fail", "fail"]
    assert "HTTP 500: out of memory" in ladder.rungs[2].reason


def test_a_server_without_anthropics_api_is_not_blamed(oracle: str):
    """Skip, not fail."""
    assert climb(oracle, "no-anthropic", "anthropic").rungs[0].verdict == "skip"


def test_what_no_setting_fixes_is_yellow(oracle: str):
    """Calls as text under tool_choice none: a fault of vLLM's settings, which are named; with llama.cpp a warning."""
    rungs = {
        engine: run_checks(
            endpoint_from_url(f"{oracle}/none-as-text", MODEL, engine=engine), STRICT, only=["tools"]
        ).rungs[0]
        for engine in ("vllm", "llama.cpp")
    }

    assert rungs["vllm"].verdict == "fail"
    assert "--exclude-tools-when-tool-choice-none" in rungs["vllm"].reason
    assert rungs["llama.cpp"].verdict == "warn"
    assert [probe.name for probe in rungs["llama.cpp"].probes if probe.verdict == "warn"] == ["choice none"]
    assert "llama.cpp shows tools" in rungs["llama.cpp"].reason


def test_busy_answers_are_waited_out(oracle: str):
    """429 with Retry-After now and then is no fault."""
    assert climb(oracle, "busy-at-times", "alive", "arithmetic", "streaming").verdict == "pass"


def test_the_right_key_opens_and_a_wrong_one_is_said(oracle: str):
    """401 ends the ladder at its first rung."""
    assert climb(oracle, "keyed", "alive", key=KEY).verdict == "pass"

    refused = climb(oracle, "keyed", key="another")
    assert refused.rungs[0].verdict == "fail"
    assert "401" in refused.rungs[0].reason
    assert refused.rungs[1].verdict == "skip"


def test_a_model_that_is_not_there_is_named_with_those_that_are(oracle: str):
    """/v1/models is the first thing looked at."""
    ladder = run_checks(endpoint_from_url(f"{oracle}/correct", "kimi-k9"), STRICT)

    assert ladder.rungs[0].verdict == "fail"
    assert "kimi-k9" in ladder.rungs[0].reason
    assert MODEL in ladder.rungs[0].reason


def test_a_model_that_does_not_think_is_skipped_unless_it_must(oracle: str):
    """Without a reasoning field nobody can say whether the parser or the model is missing."""
    endpoint = endpoint_from_url(f"{oracle}/never-thinks", MODEL)

    assert run_checks(endpoint, VerifyOptions(seed=1), only=["thinking"]).rungs[0].verdict == "pass"  # `off` holds
    assert run_checks(endpoint, VerifyOptions(thinking="yes", seed=1), only=["thinking"]).rungs[0].verdict == "fail"


def test_the_length_asked_for_is_the_length_tried(oracle: str):
    """Counted by the server's own tokenizer; more than it takes is a fault."""
    endpoint = endpoint_from_url(f"{oracle}/correct", MODEL)
    needles = run_checks(endpoint, VerifyOptions(context=3000, seed=1), only=["long-context"]).rungs[0].probes[0]
    beyond = run_checks(endpoint, VerifyOptions(context=9000, seed=1), only=["long-context"]).rungs[0]

    assert needles.verdict == "pass"
    assert "of the asked 3,000, counted by /tokenize" in needles.reason
    assert "9,000" in beyond.reason
    assert beyond.verdict == "fail"


def test_the_tool_score_has_its_trials_and_interval(oracle: str):
    """Schema validity over N, as vendors report it."""
    endpoint = endpoint_from_url(f"{oracle}/correct", MODEL)
    score = run_checks(endpoint, VerifyOptions(trials=20, seed=1), only=["tools"]).rungs[0].score

    assert score
    assert (score.passed, score.trials) == (20, 20)
    assert 0.8 < score.low < score.high == 1.0


def test_evidence_is_kept_and_the_key_is_not_in_it(oracle: str):
    """Request, response and raw stream of every probe stand in the run folder."""
    run = Run.create("ladder")
    ladder = climb(oracle, "keyed", "alive", "streaming", key=KEY, run=run)
    kept = json.loads((run.path / ladder.rungs[1].evidence).read_text())
    exchange = kept["probes"][0]["evidence"][1]

    assert exchange["request"]["messages"]
    assert exchange["status"] == 200
    assert exchange["response"].startswith("data: {")
    assert "[DONE]" in exchange["response"]
    everything = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    assert KEY not in everything


def test_the_document_has_the_keys_that_scripts_rely_on(oracle: str):
    """rungs [{name, verdict, probes, evidence}] and verdict."""
    plain = results_document(climb(oracle, "wrong-sums", "alive", "arithmetic"))

    assert plain["verdict"] == "fail"
    assert [rung["verdict"] for rung in plain["rungs"]] == ["pass", "fail"]
    assert {"name", "verdict", "probes", "evidence"} <= set(plain["rungs"][0])
    json.dumps(plain, allow_nan=False)


def test_rungs_are_chosen_in_ladder_order_and_by_name():
    """--only and --from."""
    assert [rung.name for rung in select_checks(["tools", "alive"], "")] == ["alive", "tools"]
    assert [rung.name for rung in select_checks([], "limits")] == ["limits", "errors", "vision", "anthropic"]
    with pytest.raises(UnknownName, match="tool"):
        select_checks(["tool"], "")
