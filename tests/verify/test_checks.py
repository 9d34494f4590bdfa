"""The judgements of single checks, without a server."""

import asyncio
import json
import re
from types import SimpleNamespace

import pytest

from moebox.core.verdict import HttpExchange
from moebox.phantom.tool_questions import same_arguments
from moebox.verify.checks.other_apis import ignored_choice
from moebox.verify.checks.sampling import tokens_after_stop
from moebox.verify.checks.streaming import _held_back, probe_silence
from moebox.verify.checks.texts import garbling
from moebox.verify.completions import ChatAnswer, TokenLogprob
from moebox.verify.session import ProbeWarning


def spelled(*texts: str) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(text=text, logprob=-0.1) for text in texts)


@pytest.mark.parametrize(
    ("tokens", "good"),
    [
        (("1", ",", " 2"), True),  # the stop string's own tokens are left out
        (("1", ",", " 2", ",", " ", "1", "2"), True),  # they are kept
        (("1", ",", " 2", ", ", "12,"), True),  # the one that completes it reaches further
        (("1", ",", " 2", ", ", "12", ","), False),
    ],
)
def test_log_probabilities_end_with_the_stop_string(tokens: tuple[str, ...], good: bool):
    """What begins after it was never said."""
    assert (tokens_after_stop(ChatAnswer(content="1, 2, ", tokens=spelled(*tokens)), "12") == "") == good


@pytest.mark.parametrize(("first_s", "seconds", "held"), [(1.9, 2.0, True), (0.2, 2.0, False), (0.4, 0.41, False)])
def test_a_stream_that_begins_when_it_is_complete_is_held_back(first_s: float, seconds: float, held: bool):
    """Told by the first byte of its body, where it took long enough to tell."""
    took = HttpExchange(method="POST", url="", first_s=first_s, seconds=seconds)

    assert bool(_held_back(took)) == held


@pytest.mark.parametrize(
    ("choice", "called", "good"),
    [
        ({"type": "any"}, ["f"], True),
        ({"type": "any"}, [], False),
        ({"type": "tool", "name": "f"}, ["f"], True),
        ({"type": "tool", "name": "f"}, ["g"], False),
        ({"type": "none"}, [], True),
        ({"type": "none"}, ["f"], False),
    ],
)
def test_tool_choice_of_the_messages_api_is_heeded(choice: dict[str, str], called: list[str], good: bool):
    """Any, one by name, none."""
    assert (ignored_choice(choice, called) == "") == good


def test_an_integer_may_be_written_as_a_float():
    """JSON Schema takes 3.0 for an integer; another number it is not, nor another key."""
    assert same_arguments({"minutes": 3.0}, {"minutes": 3})
    assert same_arguments({"minutes": "3"}, {"minutes": 3})  # the schema's check blames that
    assert not same_arguments({"minutes": 3.5}, {"minutes": 3})
    assert not same_arguments({"minutes": 3, "more": 1}, {"minutes": 3})


def test_halves_of_characters_are_the_servers_where_the_rest_is_right():
    """A model that says something else and stops in a character is not blamed on the server."""
    assert "half characters" in garbling("東京 parrot 🦜", "東京 parrot \ufffd\ufffd")
    assert "half characters" in garbling("東京 parrot 🦜", "\ufffd京 parrot 🦜")
    assert garbling('if a < b && c > d: "x"', "if a lik b outside\ufffd") == ""


def streamed_call(*pieces: str, **times: float) -> HttpExchange:
    """A stream with one tool call in these pieces, a token for each word."""
    calls = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in calls]
    events.append({"choices": [], "usage": {"completion_tokens": len("".join(pieces).split())}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return HttpExchange(method="POST", url="", status=200, response=f"{text}data: [DONE]\n\n", **times)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([3.0, 3.0], "80 to 680 s of silence for 8,000 tokens, .*: nginx after 60 s .* below 80 s gives up"),
        ([0.1], "660 to 680 s of silence"),
        ([], "0 to 680 s of silence for 8,000 tokens, as one of 40 tokens took 3.4 s$"),  # perhaps only the prompt
    ],
)
def test_the_time_of_a_prompt_is_not_the_time_of_writing(others: list[float], said: str):
    """What streams in pieces wait for their first byte is not multiplied by the length of a call."""
    streams = [streamed_call("word " * 40, first_s=3.4, gap_s=0.01)]
    streams += [streamed_call(*["word "] * 9, first_s=first_s) for first_s in others]
    found = asyncio.run(probe_silence(SimpleNamespace(streams=streams)))  # type: ignore[arg-type]

    assert re.search(said, str(found))
    assert isinstance(found, ProbeWarning) == bool(others)


@pytest.mark.parametrize(
    ("pieces", "gap_s", "said"),
    [
        (["{", *["word " * 4] * 19, "}"], 0.02, "no byte came for up to 0.02 s in 1 stream"),  # as it is written
        (["word " * 80], 0.1, "10 s of silence for 8,000 tokens, as one of 80 tokens took 0.1 s"),  # fast enough
        (["word " * 80], 4.0, "nginx after 60 s .* Codex after 300 s .* below 400 s gives up"),
        (["word"], 70.0, "no byte came for up to 70 s .* AWS load balancers after 60 s .* below 70 s gives up"),
    ],
)
def test_silence_in_a_stream_names_the_clients_that_give_up(pieces: list[str], gap_s: float, said: str):
    """Seen, or to be expected of a long call if a parser holds calls back until they are complete."""
    found = asyncio.run(probe_silence(SimpleNamespace(streams=[streamed_call(*pieces, gap_s=gap_s)])))  # type: ignore[arg-type]

    assert re.search(said, str(found))
    assert isinstance(found, ProbeWarning) == ("gives up" in said)


def test_blanks_at_the_ends_of_a_copy_are_no_fault():
    """Models trim; what is lost within is named."""
    assert garbling("  a  b\n", "a  b") == ""
    assert "run together" in garbling("  a  b\n", "a b")
