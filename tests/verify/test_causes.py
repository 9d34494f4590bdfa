"""A failed check names the part of the server that is likely at fault, and the smallest request that shows it."""

import asyncio
import contextlib
import json
import shlex
import subprocess

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.store import Run
from moebox.verify import causes
from moebox.verify.causes import explain_failure
from moebox.verify.client import ExchangeClient
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from moebox.verify.session import ProbeFailed, ServerSession
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
    assert set(found.request) == {"model", "messages", "stream", "max_tokens", "chat_template_kwargs"}
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


@pytest.mark.parametrize("sent_before", [0, 1])
def test_a_server_that_hangs_ends_the_search(oracle: str, sent_before: int):
    """One request without an end is enough: it counts as the others do, and the request is shown as it was."""

    async def explain() -> tuple[CheckVerdict, ServerSession]:
        endpoint = endpoint_from_url(f"{oracle}/never-answers-again", MODEL)
        async with ExchangeClient(endpoint, deadline_s=0.5) as client:
            session = ServerSession(client, VerifyOptions())
            request = session.chat_request([{"role": "user", "content": f"Hello {sent_before}"}], stream=True, seed=1)
            for _ in range(1 + sent_before):
                exchange = await session.post_chat(request)
            with contextlib.suppress(ProbeFailed):
                session.read_answer(exchange)
            return await explain_failure(session, CheckVerdict(name="streaming", verdict="fail")), session

    check, session = asyncio.run(explain())

    assert check.reproduction
    assert check.reproduction.times == 0
    assert check.reproduction.request == session.exchanges[-1].request
    assert (session.client.hang_count, session.client.deadline_s) == (1, 0.5)


def test_the_search_for_a_smaller_request_ends_in_time(oracle: str, monkeypatch: pytest.MonkeyPatch):
    """If its time is spent, the request is shown as it was sent."""
    monkeypatch.setattr(causes, "EXPLAIN_S", 0.0)
    found = failed_check(oracle, "drops-last-chunk").reproduction

    assert found
    assert found.times == 0
    assert {"stream_options", "temperature"} <= set(found.request)
