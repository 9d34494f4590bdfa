"""A real Chromium, driven over its own debugging pipe; no driver to install.

Without one, tests of pages are skipped with a reason.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moebox.report.files import FLAGS, find_browser
from tests.web.entry import with_token

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "Space": (32, " ")}  # code and what it types
NO_BROWSER = "no Chromium here, so no page is looked at (Debian: apt install chromium)"


def program() -> str:
    """Chromium's path."""
    found = find_browser()
    if not found:
        pytest.skip(NO_BROWSER)
    return found


class Tab:
    """One page."""

    def __init__(self, browser_: "Chromium", target: str, session: str) -> None:
        self.browser, self.target, self.session = browser_, target, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        return self.browser.call(method, session=self.session, **parameters)

    def open(self, url: str, *, ready: str = "true") -> None:
        """Go there, with the token of a local page, and wait until it is there and its scripts listen."""
        self.call("Page.navigate", url=with_token(url))
        self.until(f"document.readyState === 'complete' && ({ready})")

    def run(self, script: str) -> Any:
        """What a script gives."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, condition: str, *, seconds: float = 30.0, shown: str = "''") -> None:
        """Wait for a condition to hold; if it never does, the error has what the script `shown` gives."""
        end = time.monotonic() + seconds
        holds = f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"
        while not self._holds(holds):
            assert time.monotonic() < end, f"never became true: {condition} {self.run(shown)}"
            time.sleep(0.03)

    def _holds(self, script: str) -> bool:
        """False also while the page is replaced by the next one."""
        try:
            return bool(self.run(script))
        except AssertionError as problem:
            if "Inspected target navigated or closed" not in str(problem):
                raise
            return False

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key as a keyboard does."""
        code, text = KEYS[key]
        pressed = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        pressed["modifiers"] = 8 if shift else 0
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        """The window's size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )


class Chromium:
    """The browser process."""

    def __init__(self, process: "subprocess.Popen[bytes]", write: int, read: int) -> None:
        self.process, self.write, self.read = process, write, read
        self.number, self.buffer = 0, b""
        self.asked: list[str] = []  # addresses that pages asked for
        self.questions: list[str] = []  # of confirm(), each answered by `agrees`
        self.agrees = True

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what else comes in is looked through on the way."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        os.write(self.write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                piece = os.read(self.read, 1 << 20)
                assert piece, "Chromium ended"
                self.buffer += piece
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") == "Network.requestWillBeSent":
                self.asked.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Page.javascriptDialogOpening":  # the page waits for it, and so does the command
                self.questions.append(answer["params"]["message"])
                reply = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": self.agrees}}
                os.write(self.write, json.dumps(reply | {"sessionId": answer["sessionId"]}).encode() + b"\0")
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                result: dict[str, Any] = answer["result"]
                return result

    def tab(self) -> Tab:
        """A new page that records its requests."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network"):
            tab.call(f"{domain}.enable")
        return tab


@contextmanager
def profile_folder() -> Iterator[str]:
    """A folder that is gone afterwards, even where the browser's helpers write into it for another moment."""
    path = tempfile.mkdtemp(prefix="moebox-browser-")
    try:
        yield path
    finally:
        end = time.monotonic() + 10
        while os.path.exists(path) and time.monotonic() < end:
            shutil.rmtree(path, ignore_errors=True)
            time.sleep(0.02)


@contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser with a profile of its own, gone afterwards."""
    path = program()
    there_read, here_write = os.pipe()
    here_read, there_write = os.pipe()

    def connect() -> None:
        # Chromium reads commands from descriptor 3 and answers on 4. Copies lie above both: a pipe that already is one
        # of the two would be closed as the program starts, or written over by the other.
        copies = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (there_read, there_write)]
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    with profile_folder() as profile:
        flags = (
            *FLAGS,
            "--hide-scrollbars",
            "--renderer-process-limit=1",  # a fresh page in a process that is there: the pages are all ours
            "--disable-site-isolation-trials",
            "--remote-debugging-pipe",
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
        )
        argv = [path, *flags, f"--user-data-dir={profile}", "about:blank"]
        env = {**os.environ, "TMPDIR": profile}  # where it leaves a folder when it is stopped
        process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL, preexec_fn=connect, close_fds=False)
        os.close(there_read)
        os.close(there_write)
        try:
            yield Chromium(process, here_write, here_read)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(here_write)
            os.close(here_read)
