"""What a rehearsal with the phantom makes of its checks: known quirks pass and are named, anything else fails."""

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.quirks import first_unexpected_failure
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe
from moebox.errors import AnswerIsNo
from moebox.flows.rehearse import describe_answers, send_prompt
from tests.serving import live

HABIT = Probe(name="too long", verdict="fail", reason="a prompt beyond 2,048 tokens: HTTP 500: the request exceeds")


def rung(name: str, verdict: Mark = "pass", reason: str = "", *probes: Probe) -> CheckVerdict:
    """One check."""
    return CheckVerdict(name=name, verdict=verdict, reason=reason, probes=probes)


def ladder(*rungs: CheckVerdict, engine: str = "ik_llama.cpp", slips: tuple[Failure, ...] = ()) -> CheckResults:
    """A climb."""
    return CheckResults(url="http://127.0.0.1:1/v1", model="phantom", engine=engine, rungs=rungs, slips=slips)


def test_a_known_quirk_passes_and_is_named() -> None:
    """On the engine that has it; on another it is this launch's own fault."""
    rungs = (rung("alive"), rung("limits", "fail", HABIT.reason, HABIT), rung("vision", "skip", "text only"))
    climbed = ladder(*rungs)
    assert first_unexpected_failure(climbed) == ""
    expected = "answered right on 1 of 2 checks (known quirks of ik_llama.cpp: limits)"
    assert describe_answers(climbed, "ik_llama.cpp") == expected
    assert first_unexpected_failure(ladder(*rungs, engine="vllm")).startswith("limits: a prompt beyond")


def test_everything_else_fails() -> None:
    """A wrong answer beside a quirk, a check that fails as a whole, checks of which nothing passed."""
    other = Probe(name="count", verdict="fail", reason="17 is not 18")
    assert first_unexpected_failure(ladder(rung("limits", "fail", "", HABIT, other))) == "limits: 17 is not 18"
    assert first_unexpected_failure(ladder(rung("alive", "fail", "refused"))) == "alive: refused"
    assert first_unexpected_failure(ladder(rung("alive", "skip"))) == "nothing passed"
    often = Failure(kind="usage", seen=9, of=40, low=0.1, high=0.4, verdict="fail")
    assert first_unexpected_failure(ladder(rung("alive"), slips=(often,))) == "usage: 9 of 40"


def red(kind: str, example: str) -> Failure:
    """A kind of fault that is seen far too often."""
    return Failure(kind=kind, seen=5, of=6, low=0.4, high=0.9, verdict="fail", example=example)


def test_a_quirk_forgives_nothing_beside_itself() -> None:
    """A second fault in the same probe, another kind over all checks, or a list of checks that was cut short."""
    habit, other = red("limits", HABIT.reason), red("answer", "another client's text")
    both = replace(HABIT, slips=(habit, other))
    assert (
        first_unexpected_failure(ladder(rung("limits", "fail", "", replace(HABIT, slips=(habit,))), slips=(habit,)))
        == ""
    )
    assert first_unexpected_failure(ladder(rung("limits", "fail", "", both))) == "limits: another client's text"
    assert first_unexpected_failure(ladder(rung("limits", "fail", "", HABIT), slips=(other,))) == "answer: 5 of 6"
    short = replace(ladder(rung("limits", "fail", "", HABIT)), stopped="three requests hung")
    assert first_unexpected_failure(short) == "three requests hung"


def test_checks_that_were_not_tried_for_want_of_time_are_named() -> None:
    """They are neither right nor wrong."""
    late = rung("cache", "skip", "out of time: the checks may take 600 s (--set time_s=…)")
    assert describe_answers(ladder(rung("alive"), late), "vllm") == "answered right on 1 check (out of time for cache)"


def test_a_second_fault_of_the_same_kind_is_looked_at_too() -> None:
    """A quirk explains its own words alone; what else was seen under that kind of fault needs one as well."""
    several = replace(red("limits", HABIT.reason), also=("an answer in another's words",))
    mixed = replace(HABIT, slips=(several,))
    assert (
        first_unexpected_failure(ladder(rung("limits", "fail", "", mixed), slips=(several,)))
        == "limits: an answer in another's words"
    )


def test_a_check_that_fails_in_sum_is_explained_by_the_probes_it_is_the_sum_of() -> None:
    """Each probe only warns; together they are red, by a fault that this engine is known for, or by another."""
    for why, reported in ((HABIT.reason, ""), ("other", "limits: other")):
        few = replace(HABIT, verdict="warn", slips=(replace(red("limits", why), verdict="warn"),))
        whole = replace(rung("limits", "fail", why, few), slips=(red("limits", why),))
        assert first_unexpected_failure(ladder(whole, slips=(red("limits", why),))) == reported


@pytest.mark.parametrize("usage", [{"prompt_tokens": 0}, {"prompt_tokens": None}, {}, None])
def test_a_server_that_counts_no_prompt_is_reported_in_words(usage: object) -> None:
    """The next prompt's length is worked out from the count, so 0 is none."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            data = json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with live(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        session: Any = SimpleNamespace(
            endpoint=endpoint_from_url(f"127.0.0.1:{server.server_port}", "m"),
            read_log=lambda: None,
            recipe=SimpleNamespace(engine="vllm"),
            explain_failure=lambda: "",
        )
        with pytest.raises(AnswerIsNo, match="vllm failed while decoding: an answer without usage"):
            send_prompt(session, "word", "while decoding", tokens=1)
