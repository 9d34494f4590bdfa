"""Servers that give back the key they were sent: it reaches no terminal, run folder, report or package."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from moebox import redact
from moebox.cli import main, output
from moebox.core.endpoint import endpoint_from_url
from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, serving, tail
from tests.hangs import no_longer_than
from tests.sampling import one_in

KEY = 'hunter2sword"fish/+&<_x'  # of no issuer's form, and spelled in another way by JSON, HTML and URLs


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(300):
        yield


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fifty columns, for these tests alone: a console remembers its width."""
    monkeypatch.setenv("COLUMNS", "50")
    for each in (output.stdout_console, output.stderr_console):
        each.cache_clear()
    yield
    for each in (output.stdout_console, output.stderr_console):
        each.cache_clear()


def refuses(peer: Peer, body: dict[str, object]) -> bool:
    """As OpenAI's own server does, and so long that every place where texts are cut falls somewhere else in it."""
    seen = f"{KEY} {quote(KEY)} {base64.b64encode(f'Bearer {KEY}'.encode()).decode()} "
    peer.json(401, {"error": {"message": f"Incorrect API key provided: {seen * 9}"}})
    return True


def refuses_plainly(peer: Peer, body: dict[str, object]) -> bool:
    """A proxy's page, as text."""
    text = (f"You sent Authorization: Bearer {KEY} and X-Key: {KEY} " * 9).encode()
    peer.send(b"HTTP/1.1 403 X\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
    return True


def tells_it(peer: Peer, body: dict[str, object]) -> bool:
    """A model that was shown its request's headers, in one piece or two."""
    if not body.get("stream"):
        message = {"role": "assistant", "content": f"The key is {KEY}, or {KEY}."}
        peer.json(200, {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        return True
    texts = ["The key is ", KEY, ", or ", KEY[:5], KEY[5:]]
    peer.send(HEAD, *(chunk(event({"content": text})) for text in texts), tail(len(texts)))
    return True


COMMANDS = {
    "bench": ["bench", "URL", "--requests", "2", "--concurrency", "1"],
    "verify": ["verify", "URL", "--only", "alive", "--only", "plain"],
    "verify --json": ["verify", "URL", "--only", "alive", "--json"],
    "compare": ["compare", "URL", "URL", "--set", "questions=1", "--set", "rounds=2", "--concurrency", "1"],
    "task": ["task", "URL", "--jobs", "1"],
    "watch": ["watch", "URL", "--time", "1s", "--every", "0.5s", "--canary", "0.5s"],
    "connect": ["connect", "openai", "URL", "--check"],
}


@pytest.mark.parametrize("does", one_in(3, [tells_it, refuses, refuses_plainly]))
@pytest.mark.parametrize("command", one_in(2, COMMANDS))
def test_a_key_that_comes_back_goes_no_further(
    command: str, does: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither whole nor cut nor broken into lines; then the run is reported and packed, by one who has not the key."""
    monkeypatch.setenv("PLAIN_KEY", KEY)
    runs = tmp_path / "runs"
    with serving(does, look=does, aside=does) as server:
        words = [server.url if word == "URL" else word for word in COMMANDS[command]]
        assert main([*words, "--model", "m", "--key-env", "PLAIN_KEY"]) in (0, 1, 2, 3)
    monkeypatch.delenv("PLAIN_KEY")
    for run in map(str, runs.iterdir() if runs.exists() else ()):
        codes = [main(["report", run, "--md"]), main(["pack", run, "-o", str(tmp_path / "pack")])]
        assert [*codes, main(["runs", "show", run])] == [0, 0, 0]
    shown = capfd.readouterr()

    texts = {"terminal": shown.out + shown.err}
    texts |= {str(path): path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    assert [name for name, text in texts.items() if _shows_it(text)] == []
    assert "Traceback" not in shown.err


def _shows_it(text: str) -> bool:
    """Its beginning is enough; lines and margins may have been put between its letters."""
    squeezed = "".join(text.split())
    coded = base64.b64encode(f"Bearer {KEY}".encode()).decode()[len("Bearer ") * 8 // 6 + 1 :]
    return any(form[:10] in squeezed for form in (KEY, coded))


@pytest.mark.parametrize("key", ["", "a", "123", "none"])
def test_a_key_that_is_hardly_one_leaves_texts_as_they_are(key: str) -> None:
    """It would blank out half of everything."""
    endpoint_from_url("127.0.0.1:1", "m", key=key)
    assert redact.hide_in_error("a 123 none abc") == "a 123 none abc"


def test_a_key_that_is_also_a_word_goes_from_errors_alone() -> None:
    """Where it stands by itself: a recipe of that name, and longer words, stay."""
    endpoint_from_url("127.0.0.1:1", "m", key="quokka")
    assert redact.hide_known_keys('name = "quokka"') == 'name = "quokka"'
    assert redact.hide_in_error("no such key: quokka (quokkas, my-quokka)") == (
        f"no such key: {redact.HIDDEN} (quokkas, my-quokka)"
    )


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "user:"])
def test_a_key_in_another_spelling_is_found(before: str) -> None:
    """Whatever stands before it in the same base64."""
    endpoint_from_url("127.0.0.1:1", "m", key=KEY)
    coded = base64.b64encode(f"{before}{KEY}, and more".encode()).decode()
    for text in (coded, json.dumps({"key": KEY}), quote(KEY, safe=""), KEY.encode().hex()):
        assert redact.HIDDEN in redact.hide_known_keys(f"<{text}>")
