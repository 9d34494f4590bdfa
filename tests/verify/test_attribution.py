"""Failures are attributed to the server or the model by asking the same question again."""

import asyncio
import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import Failure
from moebox.phantom.question import Question
from moebox.verify.client import ExchangeClient
from moebox.verify.completions import ChatAnswer
from moebox.verify.options import VerifyOptions
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import MAX_ATTRIBUTIONS, CheckSession, QuestionAttempt

from ..serving import live

HEAD = {"id": "c", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
# Replies to a question and to the repeats that follow a wrong one; the third is in the other mode.
MODEL = ("wrong", "wrong", "wrong")
SERVER = ("wrong", "right")
SERVER_IN_OTHER_MODE = ("wrong", "wrong", "right")
SERVER_LOSES_REPEAT = ("wrong", "HTTP 500")
WITHOUT_REPEAT = ("wrong",)
RIGHT = (("right",),) * 3  # more trials than a failure calls for


class ScriptedServer(ThreadingHTTPServer):
    """Sends the next word of a script to each chat request, whole or streamed, and records the modes."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.words, self.modes = words, list[bool]()


class ScriptedHandler(BaseHTTPRequestHandler):
    """One chat request."""

    server: ScriptedServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        stream = bool(request.get("stream"))
        self.server.modes.append(stream)
        word = self.server.words.pop(0)
        if word == "HTTP 500":
            return self.reply(500, "application/json", json.dumps({"error": {"message": "out of memory"}}))
        message: dict[str, Any] = {"role": "assistant", "content": word}
        if not stream:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = HEAD | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
            return self.reply(200, "application/json", json.dumps(body))
        deltas = ((message, None), ({}, "stop"))
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} for delta, finish in deltas
        ]
        chunks.append({"choices": [], "usage": USAGE})
        texts = [json.dumps(HEAD | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks]
        return self.reply(200, "text/event-stream", "".join(f"data: {text}\n\n" for text in (*texts, "[DONE]")))

    def reply(self, status: int, media_type: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def judge(question: Question, answer: ChatAnswer) -> str:
    return "" if answer.content == "right" else f"answered {answer.content}"


def attribute(*script: tuple[str, ...], modes: Sequence[bool] = ()) -> tuple[list[str], list[bool]]:
    """Who each failed question of the script is attributed to, and the modes of the requests."""

    async def ask(url: str) -> list[str]:
        async with ExchangeClient(endpoint_from_url(url, "m")) as client:
            attempt = QuestionAttempt(CheckSession(client, VerifyOptions(seed=1)), "secret", judge)
            return [await attempt(stream) for stream in modes or [False] * len(script)]

    with live(ScriptedServer([word for words in script for word in words])) as server:
        reasons = asyncio.run(ask(f"http://127.0.0.1:{server.server_address[1]}"))
    assert server.words == []
    assert all(reason == "answered wrong" for reason in reasons)
    return ["model" if isinstance(reason, ModelFailure) else "server" for reason in reasons], server.modes


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_answer_that_comes_again_in_both_modes_is_a_model_failure(stream: bool):
    """The question is repeated in its own mode and then in the other one."""
    assert attribute(MODEL, modes=[stream]) == (["model"], [stream, stream, not stream])


@pytest.mark.parametrize("script", [SERVER, SERVER_IN_OTHER_MODE, SERVER_LOSES_REPEAT])
def test_an_answer_that_is_not_wrong_each_time_is_a_server_failure(script: tuple[str, ...]):
    """A right answer in either mode shows that the model can; a lost repeat is the server's failure too."""
    assert attribute(script)[0] == ["server"]


@pytest.mark.parametrize(("majority", "last", "attributed_to"), [(SERVER, MODEL, "server"), (MODEL, SERVER, "model")])
def test_after_enough_repeats_the_majority_decides(
    majority: tuple[str, ...], last: tuple[str, ...], attributed_to: str
):
    """Neither the first nor the last failure decides, and the question is not asked again."""
    repeated = (last, *[majority] * (MAX_ATTRIBUTIONS - 2), last)

    attributions, _ = attribute(*repeated, WITHOUT_REPEAT, WITHOUT_REPEAT)

    assert attributions[MAX_ATTRIBUTIONS:] == [attributed_to] * 2


def test_a_tie_is_attributed_to_the_server():
    """An unclear case is shown rather than excused as the model's."""
    half = MAX_ATTRIBUTIONS // 2

    assert attribute(*[SERVER] * half, *[MODEL] * half, WITHOUT_REPEAT)[0][-1] == "server"
    assert attribute(*[MODEL] * half, *[SERVER] * half, WITHOUT_REPEAT)[0][-1] == "server"


def test_each_mode_has_its_own_majority():
    """A server may be broken in streams only."""
    modes = [False] * MAX_ATTRIBUTIONS + [True] * MAX_ATTRIBUTIONS + [False, True]
    script = [MODEL] * MAX_ATTRIBUTIONS + [SERVER] * MAX_ATTRIBUTIONS + [WITHOUT_REPEAT] * 2

    assert attribute(*script, modes=modes)[0][-2:] == ["model", "server"]


def test_counts_keep_the_sides_apart():
    """A failure of the model is never counted as one of the server, nor the other way round."""

    async def run(url: str) -> tuple[Failure, ...]:
        async with ExchangeClient(endpoint_from_url(url, "m")) as client:
            session = CheckSession(client, VerifyOptions(seed=1, trials=2, patience=1))
            await session.run_trials("answer", QuestionAttempt(session, "secret", judge))
            return session.failures.summarize()

    def sides(*script: tuple[str, ...]) -> dict[str, int]:
        with live(ScriptedServer([word for words in script for word in words])) as server:
            failures = asyncio.run(run(f"http://127.0.0.1:{server.server_address[1]}"))
        return {failure.whose: failure.seen for failure in failures if failure.kind == "answer"}

    assert sides(MODEL, *RIGHT) == {"server": 0, "model": 1}
    assert sides(SERVER, *RIGHT) == {"server": 1}
