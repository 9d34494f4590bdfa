"""Real clients at work: the installed `claude` or `opencode`, driven without a person, on the same jobs.

Each job has a folder of its own and the client a home of its own, both gone afterwards; nothing of the user's settings
is read or written. A client's shell is switched off: code that a model wrote runs in our sandbox or not at all.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from moebox.errors import Outside
from moebox.files import scratch
from moebox.loose import Json, figure, inner, rows, words
from moebox.redact import heard
from moebox.tasks.agent import Bounds, Work, code_in
from moebox.tasks.job import Job
from moebox.tasks.result import CallSeen, End, TurnSeen
from moebox.tasks.runner import Done
from moebox.tasks.workspace import MOST_BYTES, MOST_FILES

ClientName = Literal["claude", "opencode"]
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)
INSTALL: dict[ClientName, str] = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "opencode": "npm install -g opencode-ai",
}
LEFT_OUT = ("gadget",)  # families that need a tool only our own agent has
TOLD = "\n\nThe files are in the current folder. You cannot run code here; work by reading and writing files."
KEPT_LINES = 4000
# Becomes the client once the kernel knows to end it when we end, however that comes (PR_SET_PDEATHSIG, SIGKILL).
DIE_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a client is started with; made by whoever knows the endpoint's settings."""

    client: ClientName
    model: str
    environment: Mapping[str, str] = field(repr=False)  # may hold the key, which is in no argument and no file
    files: Mapping[str, str] = field(default_factory=dict)  # below the client's home


class RealClient:
    """Does jobs by starting the client anew for each."""

    def __init__(self, setup: Setup) -> None:
        found = shutil.which(setup.client)
        if found is None:
            raise Outside(f"{setup.client} is not installed", hint=INSTALL[setup.client])
        self.name: str = setup.client
        self._setup, self._program = setup, found

    def __call__(self, job: Job, bounds: Bounds, on_turn: Callable[[TurnSeen], None]) -> Done:
        with scratch("client") as place:
            folder, home = Path(place, "work"), Path(place, "home")
            _lay(folder, job.files)
            _lay(home, self._setup.files)
            heard = _Claude(on_turn) if self._setup.client == "claude" else _Opencode(on_turn)
            work = self._run(job, bounds, folder, home, heard)
            files = _gather(folder)
        if job.reply_file and heard.text:
            files[job.reply_file] = code_in(heard.text).encode("utf-8", "replace")
        return Done(work=work, files=files, system=f"({self.name})")

    def _run(self, job: Job, bounds: Bounds, folder: Path, home: Path, heard: "_Heard") -> Work:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TERM": "dumb"}
        environment |= {"XDG_CONFIG_HOME": str(home / ".config"), "XDG_DATA_HOME": str(home / ".local/share")}
        environment |= dict(self._setup.environment)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_US, self._program, *self._words(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        heard.began = time.monotonic()
        try:
            left = _read(process, bounds, heard, most=3 * job.turns)
        finally:
            _end(process)
        work = Work(messages=heard.messages, turns=heard.turns, text=heard.text)
        work.end, work.why = "done", ""
        if left:
            work.end = left
        elif process.returncode != 0 or not heard.turns:
            work.end, work.why = "client", heard.problem or f"exit code {process.returncode}: {heard.last[-200:]}"
        return work

    def _words(self, job: Job) -> list[str]:
        """The command line; the key is not in it."""
        asked = f"{job.instruction}{TOLD}"
        if self._setup.client == "opencode":
            return ["run", "--format", "json", "-m", f"moebox/{self._setup.model}", asked]
        words = ["-p", "--output-format", "stream-json", "--verbose", "--no-session-persistence", "--strict-mcp-config"]
        words += ["--tools", "Read,Write,Edit,Glob,Grep", "--permission-mode", "acceptEdits"]
        return [*words, "--model", self._setup.model, "--", asked]


class _Heard(ABC):
    """What a client says of itself, line by line."""

    def __init__(self, on_turn: Callable[[TurnSeen], None]) -> None:
        self.on_turn = on_turn
        self.began = 0.0
        self.turns: list[TurnSeen] = []
        self.messages: list[Json] = []
        self.text = ""
        self.problem = ""
        self.last = ""

    def line(self, raw: bytes) -> None:
        """One line of its output."""
        self.last = heard(raw)
        try:
            event = json.loads(self.last)
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            if len(self.messages) < KEPT_LINES:
                self.messages.append(event)
            self.event(event)

    @abstractmethod
    def event(self, event: Json) -> None:
        """One event."""

    def turn(self, calls: Sequence[CallSeen], usage: Json, names: tuple[str, str, str], said: int) -> None:
        """One reply of the model's."""
        now = time.monotonic() - self.began
        begun = self.turns[-1].at_s + self.turns[-1].seconds if self.turns else 0.0
        prompt, written, cached = (_count(usage, name) for name in names)
        self.turns.append(
            TurnSeen(
                number=len(self.turns) + 1,
                at_s=begun,
                seconds=now - begun,
                prompt_tokens=prompt,
                completion_tokens=written,
                cached_tokens=cached,
                calls=tuple(calls),
                said=said,
            )
        )
        self.on_turn(self.turns[-1])


def _count(usage: Json, name: str) -> int | None:
    number = figure(usage, name)
    return None if number is None else int(number)


class _Claude(_Heard):
    """Claude Code's stream-json."""

    def event(self, event: Json) -> None:
        if event.get("type") == "assistant":
            self._assistant(rows(event, "message.content"), inner(event, "message.usage"))
        elif event.get("type") == "result":
            self.text = words(event, "result")
            self.problem = self.text[:300] if event.get("is_error") else ""

    def _assistant(self, blocks: list[Json], usage: Json) -> None:
        """A turn: the tools it used and how much it said."""
        used = [words(block, "name") for block in blocks if block.get("type") == "tool_use"]
        names = ("input_tokens", "output_tokens", "cache_read_input_tokens")
        said = sum(len(words(block, "text")) for block in blocks)
        self.turn([CallSeen(tool=name, ok=True) for name in used], usage, names, said)


class _Opencode(_Heard):
    """opencode's JSON events: steps, with the text and the tools between their begin and end."""

    def __init__(self, on_turn: Callable[[TurnSeen], None]) -> None:
        super().__init__(on_turn)
        self._calls: list[CallSeen] = []
        self._said = 0

    def event(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "text":
            self.text = words(event, "part.text")
            self._said += len(self.text)
        elif kind == "tool_use":
            ok = words(event, "part.state.status") != "error"
            self._calls.append(CallSeen(tool=words(event, "part.tool"), ok=ok, error=words(event, "part.state.error")))
        elif kind == "step_finish":
            self.turn(self._calls, inner(event, "part.tokens"), ("input", "output", "cached"), self._said)
            self._calls, self._said = [], 0
        elif kind == "error":
            self.problem = str(event.get("error") or "")[:300]


def _read(process: "subprocess.Popen[bytes]", bounds: Bounds, heard: _Heard, *, most: int) -> End | None:
    """Hear it out; why it had to be left, where it had to."""
    assert process.stdout
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < bounds.until:
            if bounds.stop():
                return "stopped"
            if len(heard.turns) > most:
                return "turns"
            if not selector.select(0.2):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                heard.line(line)
    return bounds.late


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Nothing of it outlives the job."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()


def _lay(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _gather(folder: Path) -> dict[str, bytes]:
    """Ordinary files of the folder, within the bounds of a job's; links are not followed."""
    found: dict[str, bytes] = {}
    size = 0
    for path in _ordinary(folder):
        size += path.lstat().st_size
        if len(found) >= MOST_FILES or size > MOST_BYTES:
            break
        found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _ordinary(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in (".git", "__pycache__", "node_modules"))
        for name in sorted(names):
            path = Path(place, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path
