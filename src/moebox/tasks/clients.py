"""Real clients: the installed `claude` or `opencode`, run without a user on the same jobs.

Each job has a folder of its own and the client a home of its own, both removed afterwards; the user's settings are
neither read nor written. A client's shell is switched off: code that a model wrote runs in the sandbox or not at all.

Their output is read line by line as turns like those of moebox's own agent. Claude Code prints the server's own stream
and the answers of its tools; opencode prints a summary of each step. A call is valid as it is for moebox's own agent:
an existing tool with arguments that fit. A call that the tool refused, such as for a missing file, was valid.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from moebox.errors import ExternalError
from moebox.files import scratch_folder
from moebox.loose import Json, get_number, get_object, get_objects, get_text, read_json
from moebox.redact import decode_reply
from moebox.sandbox.folder import read_files
from moebox.stream.events import StreamEvent
from moebox.tasks.agent import AgentWork, WorkLimits, build_turn, extract_code_block, token_gaps
from moebox.tasks.reply import AgentReply, AnthropicParts
from moebox.tasks.result import AgentJob, CallRecord, End, TurnRecord
from moebox.tasks.tools import MAX_BYTES, MAX_FILES

MAX_KEPT_LINES = 4000
CLAUDE_INVALID = ("InputValidationError", "No such tool available")
OPENCODE_INVALID = "called with invalid arguments"


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call, and why it was not valid."""

    tool: str
    id: str = ""
    error: str = ""


class ClientOutput(ABC):
    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        self.began = self.requested = time.monotonic()
        self.messages: list[Json] = []
        self.gaps: list[tuple[float, float]] = []
        self.text = ""
        self.problem = ""
        self.last_line = ""
        self._on_turn = on_turn
        self._turns: list[tuple[TurnRecord, list[ClientCall]]] = []
        self._errors: dict[str, str] = {}  # of calls by id; may come before the call's turn is over

    def read_line(self, raw: bytes) -> None:
        """Read one line; lines that are not JSON objects are ignored."""
        self.last_line = decode_reply(raw)
        event = read_json(self.last_line)
        if isinstance(event, dict):
            if len(self.messages) < MAX_KEPT_LINES and event.get("type") != "stream_event":
                self.messages.append(event)
            self.handle_event(event)

    @abstractmethod
    def handle_event(self, event: Json) -> None:
        """Handle one event."""

    @property
    def turn_count(self) -> int:
        return len(self._turns)

    @property
    def turns(self) -> list[TurnRecord]:
        """All turns, with what is known by now of their calls."""
        turns: list[TurnRecord] = []
        bad_tools: set[str] = set()  # whose last call was not valid
        for turn, calls in self._turns:
            records = []
            for call in calls:
                error = call.error or self._errors.get(call.id, "")
                repaired = not error and call.tool in bad_tools
                (bad_tools.add if error else bad_tools.discard)(call.tool)
                record = CallRecord(tool=call.tool[:80], ok=not error, error=error[:300], repaired=repaired)
                records.append(record)
            turns.append(replace(turn, calls=tuple(records)))
        return turns

    def add_turn(self, reply: AgentReply, calls: list[ClientCall]) -> None:
        """Add a reply of the model that ends now."""
        turn = build_turn(len(self._turns) + 1, self.requested - self.began, reply, [])
        self._turns.append((turn, calls))
        self.gaps += token_gaps(reply)
        self.requested = time.monotonic()
        self._on_turn(self.turns[-1])


class ClaudeOutput(ClientOutput):
    """Claude Code's stream-json with partial messages; its whole messages have a usage that is not final."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._parts = AnthropicParts()

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "system" if event.get("status") == "requesting":
                self.requested = time.monotonic()
            case "stream_event":
                # From message_start to message_stop is a turn
                data = get_object(event, "event")
                if data.get("type") == "message_start":
                    self._parts = AnthropicParts()
                since = time.monotonic() - self.requested
                self._parts.add(since, StreamEvent(data))
                if data.get("type") == "message_stop":
                    reply = self._parts.build_reply("", since)
                    self.add_turn(reply, [ClientCall(call.name, call.id) for call in reply.calls])
            case "user":
                for block in get_objects(event, "message.content"):
                    answer = get_text(block, "content")
                    if block.get("is_error") and any(mark in answer for mark in CLAUDE_INVALID):
                        self._errors[get_text(block, "tool_use_id")] = answer
            case "result":
                self.text = get_text(event, "result")
                self.problem = self.text[:300] if event.get("is_error") else ""


class OpencodeOutput(ClientOutput):
    """opencode's JSON events: steps, with text and tools between their begin and end."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._calls: list[ClientCall] = []
        self._texts: list[str] = []

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "text":
                self.text = get_text(event, "part.text")
                self._texts.append(self.text)
            case "tool_use":
                part = get_object(event, "part")
                tool, error = get_text(part, "tool"), get_text(part, "state.error")
                error = error if OPENCODE_INVALID in error else ""
                if tool == "invalid":  # opencode's own tool for calls that it could not parse
                    tool, error = get_text(part, "state.input.tool"), get_text(part, "state.input.error") or "invalid"
                self._calls.append(ClientCall(tool, error=error))
            case "step_finish":
                self._finish_step(get_object(event, "part.tokens"))
            case "error":
                self.problem = str(event.get("error") or "")[:300]

    def _finish_step(self, tokens: Json) -> None:
        """Add the step as a turn; cached and reasoning tokens are counted apart."""

        def sum_counts(*names: str) -> int | None:
            counts = [number for name in names if (number := get_number(tokens, name)) is not None]
            return int(sum(counts)) if counts else None

        reply = AgentReply(
            text="".join(self._texts),
            prompt_tokens=sum_counts("input", "cache.read", "cache.write"),
            completion_tokens=sum_counts("output", "reasoning"),
            cached_tokens=sum_counts("cache.read"),
            seconds=time.monotonic() - self.requested,
        )
        self.add_turn(reply, self._calls)
        self._calls, self._texts = [], []


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


class RealClient:
    """Does each job by starting the client anew.

    `environment` may hold the key, which is in no argument and no file; `files` are written below the client's home.
    """

    def __init__(
        self, client: ClientName, model: str, environment: Mapping[str, str], files: Mapping[str, str] | None = None
    ) -> None:
        found = shutil.which(client)
        if found is None:
            raise ExternalError(f"{client} is not installed", hint=INSTALL[client])
        self.name: str = client
        self.version = _read_version(client, found)
        self._program, self._model, self._environment, self._files = found, model, environment, files or {}
        self._parser = OUTPUT_PARSERS[client]

    def __call__(self, job: AgentJob, limits: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> AgentWork:
        with scratch_folder("client") as scratch:
            folder, home = Path(scratch, "work"), Path(scratch, "home")
            _write_files(folder, job.files)
            _write_files(home, self._files)
            output = self._parser(on_turn)
            work = self._run(job, limits, folder, home, output)
            work.files, _ = read_files(str(folder), max_files=MAX_FILES, max_bytes=MAX_BYTES, skipped_folders=NOT_WORK)
        if job.reply_file and output.text:
            work.files[job.reply_file] = extract_code_block(output.text).encode("utf-8", "replace")
        work.system = f"({self.name} {self.version})"
        return work

    def _run(self, job: AgentJob, limits: WorkLimits, folder: Path, home: Path, output: ClientOutput) -> AgentWork:
        prompt = f"{job.instruction}{NO_CODE_NOTE}"
        if self.name == "opencode":
            arguments = ["run", "--format", "json", "-m", f"moebox/{self._model}", prompt]
        else:
            arguments = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
            arguments += ["--no-session-persistence", "--strict-mcp-config"]
            arguments += ["--tools", "Read,Write,Edit,Glob,Grep", "--permission-mode", "acceptEdits"]
            arguments += ["--model", self._model, "--", prompt]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, self._program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(home) | dict(self._environment),
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
