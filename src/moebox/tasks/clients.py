"""Real clients at work: the installed `claude` or `opencode`, driven without a person, on the same jobs.

Each job has a folder of its own and the client a home of its own, both gone afterwards; nothing of the user's settings
is read or written. A client's shell is switched off: code that a model wrote runs in our sandbox or not at all.
"""

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from moebox.errors import ExternalError
from moebox.files import scratch_folder
from moebox.redact import decode_reply
from moebox.sandbox.folder import read_files
from moebox.tasks.agent import AgentWork, WorkLimits, extract_code_block
from moebox.tasks.heard import ClaudeOutput, ClientOutput, OpencodeOutput
from moebox.tasks.job import AgentJob
from moebox.tasks.result import End, TurnRecord
from moebox.tasks.runner import FinishedWork
from moebox.tasks.workspace import MOST_BYTES, MOST_FILES

ClientName = Literal["claude", "opencode"]
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)
INSTALL: dict[ClientName, str] = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "opencode": "npm install -g opencode-ai",
}
OUTPUT_PARSERS: dict[ClientName, type[ClientOutput]] = {"claude": ClaudeOutput, "opencode": OpencodeOutput}
UNSUPPORTED_FAMILIES = ("gadget",)  # families that need a tool only our own agent has
NO_CODE_NOTE = "\n\nThe files are in the current folder. You cannot run code here; work by reading and writing files."
NOT_WORK = (".git", "__pycache__", "node_modules")  # folders that are not read back
START_S = 60.0  # the longest to say a version
# Becomes the client once the kernel knows to end it when we end, however that comes (PR_SET_PDEATHSIG, SIGKILL).
DIE_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSetup:
    """What a client is started with; made by whoever knows the endpoint's settings."""

    client: ClientName
    model: str
    environment: Mapping[str, str] = field(repr=False)  # may hold the key, which is in no argument and no file
    files: Mapping[str, str] = field(default_factory=dict)  # below the client's home


class RealClient:
    """Does jobs by starting the client anew for each."""

    def __init__(self, setup: ClientSetup) -> None:
        found = shutil.which(setup.client)
        if found is None:
            raise ExternalError(f"{setup.client} is not installed", hint=INSTALL[setup.client])
        self.name: str = setup.client
        self.version = _version(setup.client, found)
        self._setup, self._program = setup, found

    def __call__(self, job: AgentJob, bounds: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> FinishedWork:
        with scratch_folder("client") as place:
            folder, home = Path(place, "work"), Path(place, "home")
            _lay(folder, job.files)
            _lay(home, self._setup.files)
            listener = OUTPUT_PARSERS[self._setup.client](on_turn)
            work = self._run(job, bounds, folder, home, listener)
            files, _ = read_files(str(folder), max_files=MOST_FILES, max_bytes=MOST_BYTES, skipped_folders=NOT_WORK)
        if job.reply_file and listener.text:
            files[job.reply_file] = extract_code_block(listener.text).encode("utf-8", "replace")
        return FinishedWork(work=work, files=files, system=f"({self.name} {self.version})")

    def _run(self, job: AgentJob, bounds: WorkLimits, folder: Path, home: Path, listener: ClientOutput) -> AgentWork:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_US, self._program, *self._words(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(home) | dict(self._setup.environment),
            start_new_session=True,
        )
        try:
            left = _read(process, bounds, listener, most=3 * job.turns)
        finally:
            _end(process)
        work = AgentWork(messages=listener.messages, turns=listener.turns, gaps=listener.gaps, text=listener.text)
        work.end, work.reason = "done", ""
        if left:
            work.end = left
        elif process.returncode != 0 or not listener.turn_count:
            why = listener.problem or f"exit code {process.returncode}: {listener.last[-200:]}"
            work.end, work.reason = "client", why
        return work

    def _words(self, job: AgentJob) -> list[str]:
        """The command line; the key is not in it."""
        asked = f"{job.instruction}{NO_CODE_NOTE}"
        if self._setup.client == "opencode":
            return ["run", "--format", "json", "-m", f"moebox/{self._setup.model}", asked]
        words = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
        words += ["--no-session-persistence", "--strict-mcp-config"]
        words += ["--tools", "Read,Write,Edit,Glob,Grep", "--permission-mode", "acceptEdits"]
        return [*words, "--model", self._setup.model, "--", asked]


def _version(client: ClientName, program: str) -> str:
    """What it says of itself, such as 2.1.197; Outside where it does not even start."""
    with scratch_folder("client") as home:
        words, environment = [program, "--version"], _environment(Path(home))
        try:
            told = subprocess.run(words, env=environment, capture_output=True, timeout=START_S, check=False)
            said, well = decode_reply((told.stdout or told.stderr).strip()), told.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as problem:
            said, well = str(problem), False
    found = re.search(r"\d+\.\d+[\w.+-]*", said)
    if not well or not found:
        raise ExternalError(
            f"{client} does not start: {said.splitlines()[0] if said else 'no word'}", hint=INSTALL[client]
        )
    return found[0]


def _environment(home: Path) -> dict[str, str]:
    """Nothing of the user's but the way to programs."""
    folders = {"XDG_CONFIG_HOME": str(home / ".config"), "XDG_DATA_HOME": str(home / ".local/share")}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TERM": "dumb"} | folders


def _read(process: "subprocess.Popen[bytes]", bounds: WorkLimits, listener: ClientOutput, *, most: int) -> End | None:
    """Hear it out; why it had to be left, where it had to."""
    assert process.stdout
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < bounds.ends_at:
            if bounds.stop():
                return "stopped"
            if listener.turn_count > most:
                return "turns"
            if not selector.select(0.2):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                listener.read_line(line)
    return bounds.late_end


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
