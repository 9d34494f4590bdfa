"""What a server says of its tokens is held against what it streamed; what cannot be is a failure."""

import json
import time
from pathlib import Path

import pytest

from moebox.cli import main
from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, good, serving
from tests.sampling import one_in

DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
FINISH = chunk(event({}, finish="length"))


def counted(completion: int, prompt: int = 9) -> bytes:
    """The event that counts."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return chunk(event(None, usage=usage))


def streaming(events: int, *tail: bytes, head: bytes = HEAD, delta: dict[str, object] | None = None) -> Behaviour:
    """So many events with text, and then this."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(head)
        for _ in range(events):
            peer.send(chunk(event(delta if delta is not None else {"content": " a"})))
            time.sleep(0.001)
        peer.send(*tail)
        return True

    return behaviour


def plain_json(peer: Peer, body: dict[str, object]) -> bool:
    """The whole reply at once, as if `stream` had not been asked for."""
    peer.json(200, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {}})
    return True


def short_body(peer: Peer, body: dict[str, object]) -> bool:
    """[DONE] comes, and the connection ends before the length that was promised."""
    text = event({"content": " a"}) + event({}, finish="length") + b"data: [DONE]\n\n"
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n" + text)
    return False


def short_body_kept_open(peer: Peer, body: dict[str, object]) -> bool:
    """[DONE] comes, the promised length does not, and the connection stays open."""
    short_body(peer, body)
    return True


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (streaming(40, FINISH, counted(10**9), DONE), "usage counts 1,000,000,000 tokens in 40 events"),
        (streaming(40, FINISH, counted(5000), DONE), "usage counts 5,000 tokens in 40 events"),
        (streaming(40, FINISH, counted(0), DONE), "usage counts no tokens in 40 events"),
        (streaming(40, FINISH, counted(40, prompt=10**9), DONE), "usage counts 1,000,000,000 tokens in a prompt"),
        (plain_json, "a whole JSON reply came instead of a stream"),
        (short_body, "short of its content-length"),
        (short_body_kept_open, "short of its content-length"),
    ],
)
def test_counts_that_cannot_be_are_failures(
    behaviour: Behaviour, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason in one line, and no figure made of them."""
    with serving(behaviour) as server:
        code = main(["bench", server.url, "--model", "m", "--requests", "2", "--output", "40", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert code == 1
    assert result["failed"] == 2
    assert any(reason in text for text in result["errors"])
    assert (result["output_throughput"], result["total_token_throughput"]) == (0, 0)
    assert result["mean_ttft_ms"] is None


def test_usage_below_what_was_streamed_is_doubted(capsys: pytest.CaptureFixture[str]) -> None:
    """Two tokens in forty events may be a server that streams letters: the figure stays and is flagged."""
    with serving(streaming(40, FINISH, counted(2), DONE)) as server:
        main(["bench", server.url, "--model", "m", "--requests", "2", "--output", "40", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert (result["completed"], result["counts_doubtful"]) == (2, True)
    assert "usage counts 4 tokens in 80 events" in result["flags"][0]


@pytest.mark.parametrize(("claimed", "doubtful"), [(42, False), (60, True)])
def test_usage_beyond_what_was_asked_for_is_doubted(
    claimed: int, doubtful: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is long enough for 60 tokens, but 40 were asked for; some engines count the end of the turn too."""
    words = chunk(event({"content": " " + "a" * 400}))
    with serving(streaming(39, words, FINISH, counted(claimed), DONE)) as server:
        main(["bench", server.url, "--model", "m", "--requests", "2", "--output", "40", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert (result["completed"], result["counts_doubtful"]) == (2, doubtful)
    assert ("usage counts more tokens than were asked for in 2 of 2 replies" in result["flags"]) == doubtful


@pytest.mark.parametrize(("claimed", "doubtful"), [(40, False), (100, True)])
def test_a_tokenizer_is_asked_for_a_second_count(
    claimed: int, doubtful: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is one, a few replies are counted again."""
    with serving(streaming(40, FINISH, counted(claimed), DONE), tokenizes=True) as server:
        main(["bench", server.url, "--model", "m", "--requests", "6", "--output", "100", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert (result["completed"], result["counts_doubtful"]) == (6, doubtful)
    assert result["usage_check"] == {"replies": 4, "usage_tokens": 4 * claimed, "tokenizer_tokens": 160}


def test_events_that_stand_for_tokens_are_a_lower_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without usage and tokenizer, an event is one token at least: every command doubts the rates, and no reply is
    called short.
    """
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path))
    lines = streaming(6, FINISH, DONE, delta={"content": " seven words are more than one token"})
    with serving(lines, counts=False) as server:
        words = ["bench", server.url, "--model", "m", "--requests", "2", "--output", "40"]
        main(words)
        shown = capsys.readouterr().out
        main([*words, "--json", "--run", "latest"])
        result = json.loads(capsys.readouterr().out)
        main([*words[:4], "--tg", "40", "--set", "repeat=2", "--json", "--run", "latest"])
        tests = json.loads(capsys.readouterr().out)
    main(["runs", "show", "latest"])
    shown += capsys.readouterr().out
    for name in ("r.md", "r.html"):
        main(["report", "latest", "-o", str(tmp_path / name)])
        shown += (tmp_path / name).read_text()

    assert "shorter than requested" not in shown
    assert shown.count("tokens were counted as stream events") >= 4
    assert "endpoint.tokenizer=FILE" in shown
    assert (result["token_counts"], result["counts_doubtful"], result["stopped_early"]) == ("chunks", True, 0)
    assert "a lower bound" in result["flags"][0]
    assert tests["flags"][0].startswith("tg40 tokens were counted as stream events")


@pytest.mark.parametrize("delta", one_in(2, [{"content": ""}, {}]))
def test_tokens_without_text_are_counted_and_named(
    delta: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """Dummy weights stream empty deltas: they have times, so there is a TTFT and a TPOT."""
    with serving(streaming(8, FINISH, counted(8), DONE, delta=delta)) as server:
        words = ["bench", server.url, "--model", "m", "--requests", "2", "--output", "8"]
        code = main(words)
        assert "2 replies had tokens but no text" in capsys.readouterr().out
        main([*words, "--json"])
    result = json.loads(capsys.readouterr().out)

    assert code == 0
    assert (result["completed"], result["silent"], result["total_output_tokens"]) == (2, 2, 16)
    assert result["mean_ttft_ms"] > 0
    assert result["mean_tpot_ms"] > 0


def test_swallowed_thinking_has_an_end_and_no_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the finish was seen: the tokens count, and no time of the first is invented."""
    with serving(streaming(0, FINISH, counted(8), DONE)) as server:
        code = main(["bench", server.url, "--model", "m", "--requests", "2", "--output", "8", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert code == 0
    assert (result["completed"], result["total_output_tokens"]) == (2, 16)
    assert (result["mean_ttft_ms"], result["mean_tpot_ms"]) == (None, None)
    assert result["mean_e2el_ms"] > 0


def test_prefill_is_timed_by_a_token_that_was_swallowed(capsys: pytest.CaptureFixture[str]) -> None:
    """The one token asked for was <think>: llama.cpp sends an empty delta and its usage."""
    role = chunk(event({"role": "assistant", "content": None}))
    with serving(streaming(0, role, FINISH, counted(1, prompt=32), DONE)) as server:
        code = main(["bench", server.url, "--model", "m", "--pp", "32", "--set", "repeat=2", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]

    assert code == 0
    assert [(row["test"], row["tries"]) for row in rows] == [("pp32", 2), ("pp32", 2)]
    assert all(row["pp_tok_s"] > 0 for row in rows)


def test_one_failed_request_is_exit_code_1_unless_allowed() -> None:
    """A benchmark that lost requests is not a good one."""

    def sometimes(peer: Peer, body: dict[str, object]) -> bool:
        if len(peer.state.asked) % 4 == 0:
            peer.json(500, {"error": "no"})
            return True
        return good(peer, body)

    words = ["--model", "m", "--requests", "4", "--output", "2"]
    for extra, code in (([], 1), (["--set", "allow_failures=true"], 0)):
        with serving(sometimes) as server:
            assert main(["bench", server.url, *words, *extra]) == code


def held_back(peer: Peer, body: dict[str, object]) -> bool:
    """All events at once, as through a proxy that buffers."""
    time.sleep(0.3)
    events = b"".join(chunk(event({"content": " a"})) for _ in range(40))
    peer.send(HEAD + events + FINISH + counted(40) + DONE)
    return True


def test_a_reply_in_one_piece_has_no_time_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Its TTFT is the whole time; TPOT and ITL are unknown, so that no limit of theirs is met."""
    words = ["--model", "m", "--requests", "2", "--output", "40", "--slo", "tpot=1s", "--json"]
    with serving(held_back) as server:
        main(["bench", server.url, *words])
    result = json.loads(capsys.readouterr().out)

    assert result["completed"] == 2
    assert result["mean_ttft_ms"] > 290
    assert (result["mean_tpot_ms"], result["mean_itl_ms"]) == (None, None)
    assert result["request_goodput"] == 0
    assert any("2 of 2 replies came in one piece" in text for text in result["flags"])
