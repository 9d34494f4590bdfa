"""Real clients: the installed `claude` or `opencode`, run without a user on the same jobs.

Each job has a folder of its own and the client a home of its own, both removed afterwards; the user's settings are
neither read nor written. A client's shell is switched off: code that a model wrote runs in the sandbox or not at all.
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
from moebox.tasks.client_output import ClaudeOutput, ClientOutput, OpencodeOutput
from moebox.tasks.job import AgentJob
from moebox.tasks.result import End, TurnRecord
from moebox.tasks.runner import FinishedWork
from moebox.tasks.tools import MAX_BYTES, MAX_FILES

ClientName = Literal["claude", "opencode"]
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)
INSTALL: dict[ClientName, str] = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "opencode": "npm install -g opencode-ai",
}
OUTPUT_PARSERS: dict[ClientName, type[ClientOutput]] = {"claude": ClaudeOutput, "opencode": OpencodeOutput}
UNSUPPORTED_FAMILIES = ("gadget",)  # need a tool that only moebox's own agent has
NO_CODE_NOTE = "\n\nThe files are in the current folder. You cannot run code here; work by reading and writing files."
NOT_WORK = (".git", "__pycache__", "node_modules")  # folders that are not read back
VERSION_S = 60.0  # to print a version
# Becomes the client after asking the kernel to kill it when this process ends (PR_SET_PDEATHSIG, SIGKILL).
DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSetup:
    client: ClientName
    model: str
    environment: Mapping[str, str] = field(repr=False)  # may hold the key, which is in no argument and no file
    files: Mapping[str, str] = field(default_factory=dict)  # below the client's home


class RealClient:
    """Does each job by starting the client anew."""

    def __init__(self, setup: ClientSetup) -> None:
        found = shutil.which(setup.client)
        if found is None:
            raise ExternalError(f"{setup.client} is not installed", hint=INSTALL[setup.client])
        self.name: str = setup.client
        self.version = _read_version(setup.client, found)
        self._setup, self._program = setup, found

    def __call__(self, job: AgentJob, limits: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> FinishedWork:
        with scratch_folder("client") as scratch:
            folder, home = Path(scratch, "work"), Path(scratch, "home")
            _write_files(folder, job.files)
            _write_files(home, self._setup.files)
            output = OUTPUT_PARSERS[self._setup.client](on_turn)
            work = self._run(job, limits, folder, home, output)
            files, _ = read_files(str(folder), max_files=MAX_FILES, max_bytes=MAX_BYTES, skipped_folders=NOT_WORK)
        if job.reply_file and output.text:
            files[job.reply_file] = extract_code_block(output.text).encode("utf-8", "replace")
        return FinishedWork(work=work, files=files, system=f"({self.name} {self.version})")

    def _run(self, job: AgentJob, limits: WorkLimits, folder: Path, home: Path, output: ClientOutput) -> AgentWork:
        prompt, model = f"{job.instruction}{NO_CODE_NOTE}", self._setup.model
        if self._setup.client == "opencode":
            arguments = ["run", "--format", "json", "-m", f"moebox/{model}", prompt]
        else:
            arguments = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
            arguments += ["--no-session-persistence", "--strict-mcp-config"]
            arguments += ["--tools", "Read,Write,Edit,Glob,Grep", "--permission-mode", "acceptEdits"]
            arguments += ["--model", model, "--", prompt]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, self._program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(home) | dict(self._setup.environment),
            start_new_session=True,
        )
        try:
            end = _read_output(process, limits, output, max_turns=3 * job.turns)
        finally:
            # Nothing of the client outlives the job
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()
        work = AgentWork(messages=output.messages, turns=output.turns, gaps=output.gaps, text=output.text, end="done")
        if end:
            work.end = end
        elif process.returncode != 0 or not output.turn_count:
            last = f"exit code {process.returncode}: {output.last_line[-200:]}"
            work.end, work.reason = "client", output.problem or last
        return work


def _read_version(client: ClientName, program: str) -> str:
    """The client's version, such as 2.1.197. Raise ExternalError if it does not start."""
    with scratch_folder("client") as home:
        command, environment = [program, "--version"], _environment(Path(home))
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=VERSION_S, check=False)
            output, started = decode_reply((done.stdout or done.stderr).strip()), done.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as problem:
            output, started = str(problem), False
    version = re.search(r"\d+\.\d+[\w.+-]*", output)
    if not started or not version:
        first = output.splitlines()[0] if output else "no output"
        raise ExternalError(f"{client} does not start: {first}", hint=INSTALL[client])
    return version[0]


def _environment(home: Path) -> dict[str, str]:
    """Environment with nothing of the user's but PATH."""
    folders = {"XDG_CONFIG_HOME": str(home / ".config"), "XDG_DATA_HOME": str(home / ".local/share")}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TERM": "dumb"} | folders


def _read_output(
    process: "subprocess.Popen[bytes]", limits: WorkLimits, output: ClientOutput, *, max_turns: int
) -> End | None:
    """Read the client's output to its end. Return how the job ends if it has to be cut short."""
    assert process.stdout
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < limits.ends_at:
            if limits.stop():
                return "stopped"
            if output.turn_count > max_turns:
                return "turns"
            if not selector.select(0.2):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                output.read_line(line)
    return limits.late_end


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
