"""A correct server passes every check, and each fault is found by the check meant for it."""

import json

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckResults
from moebox.errors import UnknownName
from moebox.store import Run
from moebox.verify.checks.agents import ROUNDS
from moebox.verify.options import CHECK_NAMES, VerifyOptions
from moebox.verify.runner import results_document, run_checks, select_checks
from tests.sampling import one_in

from .oracle.app import KEY, MODEL
from .oracle.rates import ALL

STRICT = VerifyOptions(thinking="yes", deadline_s=60, trials=4, seed=1)
BROKEN = {name: fault.check for name, fault in ALL.items() if fault.check}


def check_server(oracle: str, fault: str, *only: str, key: str | None = None, run: Run | None = None) -> CheckResults:
    endpoint = endpoint_from_url(f"{oracle}/{fault}", MODEL, key=key)
    return run_checks(endpoint, STRICT, only=only, run=run)


@pytest.mark.parametrize("seed", [1, *(pytest.param(other, marks=pytest.mark.siege) for other in (2, 3))])
def test_a_correct_server_passes_every_check(oracle: str, seed: int):
    """No false alarm, whatever questions are drawn (benchmarks/ladder_soundness.py tries 200 draws)."""
    options = VerifyOptions(thinking="yes", seed=seed, deadline_s=60)
    results = run_checks(endpoint_from_url(f"{oracle}/correct", MODEL), options)

    marks = {check.name: (check.verdict, check.reason) for check in results.rungs}
    assert marks.pop("vision")[0] == "skip"  # it reads text only
    assert marks.pop("routes")[0] == "skip"  # it has no /v1/completions
    assert marks == {name: ("pass", "") for name in CHECK_NAMES if name not in ("vision", "routes")}
    assert results.verdict == "pass"
    assert results.sandbox in ("namespaces", "landlock", "seccomp")


@pytest.mark.parametrize("server", ["correct", "odd-no-seed"])
def test_several_choices_are_requested_as_a_server_takes_them(oracle: str, server: str):
    """vLLM refuses `n` at temperature 0, and some servers refuse a seed: the probe needs neither."""
    *_, choices = check_server(oracle, server, "sampling").rungs[0].probes

    assert choices.name == "several choices"
    assert (choices.verdict, choices.reason) == ("pass", "2 choices, whole, streamed and with tools")


@pytest.mark.parametrize("fault", one_in(3, sorted(BROKEN)))
def test_a_fault_is_found_by_the_check_meant_for_it(oracle: str, fault: str):
    """One known fault, one failed check, with a reason."""
    check = check_server(oracle, fault, BROKEN[fault]).rungs[0]

    assert check.verdict == ("fail" if ALL[fault].red else "warn")
    assert check.reason
    assert all(probe.reason for probe in check.probes if probe.verdict == "fail")


# Faults of bug reports that an earlier version missed, with the checks that find them now.
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
    "call-in-text-too": ("tools",),
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
    "connections-end-after-ten": ("errors",),
}
# The same of the fourth to seventh families, for which few trials are enough.
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
    "arguments-lost-after-empty-call": ("tools",),
    "last-thoughts-lost": ("thinking",),
    "finish-empty-string": ("streaming",),
    "finish-of-last-choice": ("sampling",),
    "json-turns-thinking-off": ("thinking",),
    "lists-with-quotes-as-text": ("tools",),
    "logprobs-all-zero": ("sampling",),
    "responses-empty-reasoning-refused": ("responses",),
    "words-and-thoughts-break-history": ("prompts",),
    "optional-keys-out-of-order-lost": ("tools",),
    "responses-content-index-counts": ("responses",),
    "responses-other-ids-at-the-end": ("responses",),
    "goes-on-after-calls": ("tools",),
}
MISSED = {name: (checks, 12) for name, checks in ONCE_MISSED.items()}
MISSED |= {name: (checks, 4) for name, checks in SEEN_AT_ONCE.items()}


@pytest.mark.parametrize("fault", one_in(3, sorted(MISSED)))
def test_a_fault_of_a_bug_report_does_not_pass(oracle: str, fault: str):
    """A failure or a warning with a reason, in the last of the checks named."""
    checks, trials = MISSED[fault]
    options = VerifyOptions(thinking="yes", deadline_s=60, trials=trials, seed=5)
    results = run_checks(endpoint_from_url(f"{oracle}/{fault}", MODEL), options, only=checks)

    assert results.rungs[-1].verdict in ("fail", "warn")
    assert results.rungs[-1].reason


def test_a_lost_third_call_is_found_whatever_is_drawn(oracle: str):
    """Some of the questions want three calls, whole and streamed, not only by chance."""
    options = VerifyOptions(trials=2, seed=4)  # a seed whose first questions want two
    results = run_checks(endpoint_from_url(f"{oracle}/third-call-lost", MODEL), options, only=["tools"])
    assert results.rungs[-1].reason.startswith("parallel: no call")


def test_the_announced_length_is_tried_if_cheap_and_noted_if_not(oracle: str):
    """Above 16k one prompt of that length is sent; with a shorter --context a note names the rest."""
    tried = check_server(oracle, "takes-20k", "long-context")
    probes = {probe.name: probe.reason for probe in tried.rungs[0].probes}
    shorter = VerifyOptions(thinking="yes", context=2000, trials=4, seed=1)
    untried = run_checks(endpoint_from_url(f"{oracle}/takes-20k", MODEL), shorter, only=["long-context"])

    assert "of 20,000 tokens announced" in probes["announced"]
    assert tried.notes == ()
    assert "20,000 tokens announced" in untried.notes[0]
    assert "--context 20000 tries all" in untried.notes[0]


@pytest.mark.parametrize("server", ["odd-short-1k", "odd-short-1k-strict", "odd-short-2k-strict"])
def test_a_short_context_is_not_a_fault(server: str, oracle: str):
    """Requests fit into it: a conversation ends before it is full, and answers leave space for prompts."""
    results = check_server(oracle, server, "alive", "thinking", "tools", "agents", "anthropic")

    assert {check.name: check.reason for check in results.rungs if check.verdict != "pass"} == {}


def test_questions_too_long_for_a_short_context_are_skipped(oracle: str):
    """Each with the reason; nothing fails, and what fits is checked. vLLM at 1,024 tokens failed by HTTP 500."""
    results = check_server(oracle, "odd-short-768-strict", "alive", "plain", "tools", "agents", "anthropic")
    unasked = [probe.reason for check in results.rungs for probe in check.probes if probe.verdict == "skip"]

    assert {check.verdict for check in results.rungs} == {"pass"}
    assert "question and answer need more than a context of 768 tokens" in unasked


def test_an_announced_context_below_the_real_one_hides_nothing(oracle: str):
    """Every question is asked, and only the announcement fails."""
    results = check_server(oracle, "says-it-takes-little", "alive", "plain", "thinking", "agents", "limits")
    marks = {check.name: check.verdict for check in results.rungs}
    (agents,) = (check for check in results.rungs if check.name == "agents")

    assert marks == {"alive": "pass", "plain": "pass", "thinking": "pass", "agents": "pass", "limits": "fail"}
    assert {probe.name: probe.reason for probe in agents.probes}["rounds with thinking"] == f"{ROUNDS} rounds"


def test_every_check_has_a_server_that_fails_it():
    """The list of faults is complete."""
    assert set(BROKEN.values()) == set(CHECK_NAMES) - {"routes"}  # tests/quality/test_routes.py has those of routes


def test_garbage_stops_the_run_if_later_checks_would_mean_nothing(oracle: str):
    """A model that writes "!!!!" is not asked for JSON; the skipped checks are listed."""
    results = check_server(oracle, "exclaims")

    assert [check.verdict for check in results.rungs[:3]] == ["pass", "fail", "skip"]
    assert "plain" in results.stopped
    assert all(check.verdict == "skip" for check in results.rungs[2:])


def test_keep_going_runs_the_later_checks(oracle: str):
    """The run does not stop at a failed check."""
    endpoint = endpoint_from_url(f"{oracle}/exclaims", MODEL)
    results = run_checks(endpoint, STRICT, only=["plain", "limits"], keep_going=True)

    assert [check.verdict for check in results.rungs] == ["fail", "fail"]


def test_a_fault_in_one_check_leaves_the_others_passing(oracle: str):
    """The run goes on after it."""
    results = check_server(oracle, "forgets-usage")

    assert [check.name for check in results.rungs if check.verdict == "fail"] == ["streaming"]


def test_http_500_in_the_middle_does_not_end_the_run(oracle: str):
    """Later checks are still tried, each with its own reason."""
    results = check_server(oracle, "stops-answering-midway", "plain", "arithmetic", "json", "limits")

    assert [check.verdict for check in results.rungs] == ["pass", "fail", "fail", "fail"]
    assert "HTTP 500: out of memory" in results.rungs[2].reason


def test_a_server_without_anthropics_api_does_not_fail(oracle: str):
    """Skip, not fail."""
    assert check_server(oracle, "no-anthropic", "anthropic").rungs[0].verdict == "skip"


def test_a_fault_that_no_setting_fixes_is_a_warning(oracle: str):
    """Calls as text under tool_choice none: a fault of vLLM's settings, which are named; with llama.cpp a warning."""
    checks = {
        engine: run_checks(
            endpoint_from_url(f"{oracle}/none-as-text", MODEL, engine=engine), STRICT, only=["tools"]
        ).rungs[0]
        for engine in ("vllm", "llama.cpp")
    }

    assert checks["vllm"].verdict == "fail"
    assert "--exclude-tools-when-tool-choice-none" in checks["vllm"].reason
    assert checks["llama.cpp"].verdict == "warn"
    assert [probe.name for probe in checks["llama.cpp"].probes if probe.verdict == "warn"] == ["choice none"]
    assert "llama.cpp shows tools" in checks["llama.cpp"].reason


def test_busy_answers_are_waited_out(oracle: str):
    """429 with Retry-After now and then is not a fault."""
    assert check_server(oracle, "busy-at-times", "alive", "arithmetic", "streaming").verdict == "pass"


def test_a_wrong_key_is_reported(oracle: str):
    """401 ends the run at its first check."""
    assert check_server(oracle, "keyed", "alive", key=KEY).verdict == "pass"

    refused = check_server(oracle, "keyed", key="another")
    assert refused.rungs[0].verdict == "fail"
    assert "401" in refused.rungs[0].reason
    assert refused.rungs[1].verdict == "skip"


def test_a_missing_model_is_reported_with_the_served_ones(oracle: str):
    """/v1/models is requested first."""
    results = run_checks(endpoint_from_url(f"{oracle}/correct", "kimi-k9"), STRICT)

    assert results.rungs[0].verdict == "fail"
    assert "kimi-k9" in results.rungs[0].reason
    assert MODEL in results.rungs[0].reason


def test_a_model_that_does_not_think_is_skipped_unless_it_must(oracle: str):
    """Without a reasoning field the parser may be missing, or the model does not think."""
    endpoint = endpoint_from_url(f"{oracle}/never-thinks", MODEL)

    assert run_checks(endpoint, VerifyOptions(seed=1), only=["thinking"]).rungs[0].verdict == "pass"  # `off` holds
    assert run_checks(endpoint, VerifyOptions(thinking="yes", seed=1), only=["thinking"]).rungs[0].verdict == "fail"


def test_the_requested_context_length_is_tried(oracle: str):
    """Counted by the server's own tokenizer; more than it takes is a fault."""
    endpoint = endpoint_from_url(f"{oracle}/correct", MODEL)
    needles = run_checks(endpoint, VerifyOptions(context=3000, seed=1), only=["long-context"]).rungs[0].probes[0]
    beyond = run_checks(endpoint, VerifyOptions(context=9000, seed=1), only=["long-context"]).rungs[0]

    assert needles.verdict == "pass"
    assert "of the requested 3,000, counted by /tokenize" in needles.reason
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
    """Request, response and raw stream of every probe are in the run folder."""
    run = Run.create("checks")
    results = check_server(oracle, "keyed", "alive", "streaming", key=KEY, run=run)
    kept = json.loads((run.path / results.rungs[1].evidence).read_text())
    exchange = kept["probes"][0]["evidence"][1]

    assert exchange["request"]["messages"]
    assert exchange["status"] == 200
    assert exchange["response"].startswith("data: {")
    assert "[DONE]" in exchange["response"]
    everything = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    assert KEY not in everything


def test_the_document_has_the_keys_that_scripts_rely_on(oracle: str):
    """checks [{name, verdict, probes, evidence}] and verdict."""
    plain = results_document(check_server(oracle, "wrong-sums", "alive", "arithmetic"))

    assert plain["verdict"] == "fail"
    assert [check["verdict"] for check in plain["rungs"]] == ["pass", "fail"]
    assert {"name", "verdict", "probes", "evidence"} <= set(plain["rungs"][0])
    json.dumps(plain, allow_nan=False)


def test_checks_are_selected_by_name_and_run_in_order():
    """--only and --from."""
    assert [check.name for check in select_checks(["tools", "alive"], "")] == ["alive", "tools"]
    assert [check.name for check in select_checks([], "limits")] == [*CHECK_NAMES[CHECK_NAMES.index("limits") :]]
    with pytest.raises(UnknownName, match="tool"):
        select_checks(["tool"], "")
