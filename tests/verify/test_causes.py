"""A failed check names the part of the server that is likely at fault, and the smallest request that shows it."""

import json
import shlex
import subprocess

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.sampling import one_in

from .oracle.app import KEY, MODEL
from .oracle.rates import ALL

# Where each of these servers is broken, by what its fault changes.
PARTS = {
    "wrong-sums": "model",
    "wrong-code": "model",
    "json-fenced": "parser",
    "drops-last-chunk": "parser",
    "think-tags": "parser",
    "arguments-cut": "parser",
    "streamed-arguments-lost": "parser",
    "calls-lost-with-stop-strings": "parser",
    "logprobs-shifted": "parser",
    "usage-zero": "parser",
    "mojibake-out": "parser",
    "anthropic-index-zero": "parser",
    "one-parser-for-choices": "parser",
    "responses-pieces-lost": "parser",
    "responses-results-lost": "parser",
    "system-dropped": "template",
    "parts-first-only": "template",
    "rounds-forgotten": "template",
    "neighbours-answer": "scheduler",
    "loses-some": "scheduler",
    "mixes-streams": "scheduler",
    "cache-by-beginning": "cache",
    "cache-by-messages": "cache",
    "words-lost-with-length": "kernel",
}


def failed_check(oracle: str, name: str, *, key: str | None = None, run: Run | None = None) -> CheckVerdict:
    options = VerifyOptions(thinking="yes", trials=4, seed=1)
    endpoint = endpoint_from_url(f"{oracle}/{name}", MODEL, key=key)
    return run_checks(endpoint, options, only=[ALL[name].check], run=run).rungs[0]


@pytest.mark.parametrize("server", one_in(4, sorted(PARTS)))
def test_the_part_at_fault_comes_first(oracle: str, server: str):
    """With a share of the belief, and the signals that point at it."""
    causes = failed_check(oracle, server).causes

    assert causes[0].part == PARTS[server], causes
    assert 0.3 < causes[0].share <= 1
    assert causes[0].because


def test_the_smallest_request_reproduces_the_failure(oracle: str):
    """Only what the failure needs is left, as a command line and as a file; the key is in neither."""
    run = Run.create("checks")
    check = failed_check(oracle, "drops-last-chunk", key=KEY, run=run)
    found = check.reproduction

    assert found
    assert (found.failed, found.times) == (3, 3)
    assert set(found.request) == {"model", "messages", "stream"}
    assert json.loads((run.path / found.file).read_text()) == found.request
    assert "$API_KEY" in found.curl
    assert KEY not in found.curl + (run.path / found.file).read_text()
    words = shlex.split(found.curl)
    assert json.loads(words[words.index("-d") + 1]) == found.request


def test_the_command_line_works_in_a_shell(oracle: str):
    """Quotes and line ends in the request included."""
    found = failed_check(oracle, "json-fenced").reproduction

    assert found
    printed = subprocess.run(["sh", "-c", found.curl], capture_output=True, text=True, timeout=20, check=True).stdout
    assert "```json" in json.loads(printed)["choices"][0]["message"]["content"]


def test_a_question_is_kept_whole(oracle: str):
    """Without its earlier turns another answer would be right: they stay."""
    found = failed_check(oracle, "forgets").reproduction

    assert found
    assert len(found.request["messages"]) > 1
