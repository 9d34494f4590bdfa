"""The tools of moebox's own agent: their schemas, and what each does to the job's folder.

A tool answers every call with text: a refusal is an answer too, and the agent may try again. The folder is in memory:
no path of the agent reaches a disk. Programs see it as files in the sandbox; `clients.py` writes it to a real folder.
"""

import fnmatch
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastjsonschema

from moebox.data import FOLDER
from moebox.loose import Json, get_number, get_text, get_texts
from moebox.sandbox import start as sandbox
from moebox.sandbox.start import SandboxLimits
from moebox.tasks.gadget import GadgetStore
from moebox.tasks.result import AgentJob

MAX_BYTES = 4 * 2**20  # of all files together
MAX_FILES = 500
MAX_NAME_CHARS = 200


class ToolRefused(Exception):
    """A tool cannot do what was asked; the text is its answer."""


class Workspace:
    """Files by their path within the folder."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, bytes] = {name: text.encode() for name, text in files.items()}
        self.outside: list[str] = []  # requested paths outside the folder

    def resolve_path(self, given: str) -> str:
        """`given` as a path within the folder. Raise ToolRefused if it leads out of it."""
        name = posixpath.normpath(given.strip()) if given.strip() else "."
        leaves = name == ".." or name.startswith(("/", "../"))
        if leaves or "\0" in name:
            self.outside.append(given[:MAX_NAME_CHARS])
            raise ToolRefused(f"{given[:80]}: outside the job's folder; paths are relative to it")
        if len(name) > MAX_NAME_CHARS:
            raise ToolRefused("the path is too long")
        return name

    def read_text(self, given: str) -> str:
        name = self.resolve_path(given)
        if name not in self.files:
            raise ToolRefused(f"{given[:80]}: no such file; list_files shows all files")
        return self.files[name].decode(errors="replace")

    def write_text(self, given: str, text: str) -> str:
        """Write a whole file; return its path."""
        name, data = self.resolve_path(given), text.encode("utf-8", "replace")
        if name == "." or name in {posixpath.dirname(other) for other in self.files}:
            raise ToolRefused(f"{given[:80]}: is a folder")
        if any(name.startswith(f"{other}/") for other in self.files):
            raise ToolRefused(f"{given[:80]}: a file is in the place of a folder")
        self._require_room({**self.files, name: data})
        self.files[name] = data
        return name

    def replace_files(self, files: Mapping[str, bytes]) -> list[str]:
        """Replace all files by those a program left; return the paths that changed."""
        self._require_room(files)
        before, self.files = self.files, dict(files)
        names = sorted({*before, *self.files})
        return [name for name in names if before.get(name) != self.files.get(name)]

    def _require_room(self, files: Mapping[str, bytes]) -> None:
        if len(files) > MAX_FILES:
            raise ToolRefused(f"more than {MAX_FILES} files")
        if sum(map(len, files.values())) > MAX_BYTES:
            raise ToolRefused(f"more than {MAX_BYTES:,} bytes in all")


MAX_ANSWER_CHARS = 16_000  # of one answer; the middle of a longer one is left out, with a note
MAX_LINES = 400
MAX_MATCHES = 60
RUN_LIMITS = SandboxLimits(time_s=30.0, cpu_s=10, memory_bytes=768 * 2**20)


class InvalidCall(Exception):
    """A call that no tool accepts: unknown name, or arguments that are not JSON or do not fit the schema."""


class ToolServerDied(Exception):
    """The server behind a tool is gone: no later call can work, so the job ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """One tool as the model sees it; `run` takes the arguments and returns the answer."""

    name: str
    description: str
    parameters: Json  # a JSON schema
    run: Callable[[Json], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    text: str
    error: str = ""  # what was wrong with the call itself; "" if the tool ran


class Toolbox:
    """The tools of one job; `add` adds those of other servers."""

    def __init__(self, job: AgentJob, workspace: Workspace) -> None:
        self.workspace = workspace
        self.store = GadgetStore(job.gadget) if job.gadget else None
        self._tools: dict[str, tuple[AgentTool, Callable[[Any], Any]]] = {}
        for row in json.loads((FOLDER / "tasks" / "tools.json").read_text(encoding="utf-8")):
            if row["name"] in job.tools:
                description = row["description"].replace("{max_lines}", str(MAX_LINES))
                run = getattr(self, f"_{row['name']}")
                tool = AgentTool(name=row["name"], description=description, parameters=row["parameters"], run=run)
                self.add(tool)

    def add(self, tool: AgentTool) -> None:
        """Add a tool, in place of one with the same name. An unreadable schema is not checked against."""
        try:
            check = fastjsonschema.compile(dict(tool.parameters))
        except (fastjsonschema.JsonSchemaDefinitionException, re.error, ValueError):
            check = lambda given: given  # noqa: E731
        self._tools[tool.name] = (tool, check)

    @property
    def tools(self) -> list[AgentTool]:
        return [tool for tool, _ in self._tools.values()]

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Make one call. Nothing the model writes raises here."""
        try:
            tool, given = self._check_call(name, arguments)
            text = tool.run(given)
        except InvalidCall as problem:
            return ToolOutcome(text=f"error: {problem}", error=str(problem))
        except ToolRefused as problem:
            return ToolOutcome(text=f"error: {problem}")
        if len(text) > MAX_ANSWER_CHARS:
            half = MAX_ANSWER_CHARS // 2
            text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
        return ToolOutcome(text=text)

    def _check_call(self, name: str, arguments: str) -> tuple[AgentTool, Json]:
        """The tool and its parsed arguments, or InvalidCall."""
        if name not in self._tools:
            raise InvalidCall(f"there is no tool {name[:60]!r}; there are: {', '.join(self._tools) or 'none'}")
        tool, check = self._tools[name]
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as problem:
            raise InvalidCall(f"the arguments of {name} are not JSON: {problem}") from None
        try:
            check(given)
        except fastjsonschema.JsonSchemaValueException as problem:
            raise InvalidCall(f"the arguments of {name} do not fit: {problem.message}"[:300]) from None
        if not isinstance(given, dict):
            raise InvalidCall(f"the arguments of {name} are not an object")
        return tool, given

    def _list_files(self, _: Json) -> str:
        files = self.workspace.files
        return "\n".join(f"{name} ({len(files[name])} bytes)" for name in sorted(files)) or "(no files)"

    def _read_file(self, given: Json) -> str:
        lines = self.workspace.read_text(str(given["path"])).splitlines()
        start = max(int(get_number(given, "start") or 1), 1)
        wanted = min(int(get_number(given, "lines") or MAX_LINES), MAX_LINES)
        shown = lines[start - 1 : start - 1 + wanted]
        rest = len(lines) - (start - 1) - len(shown)
        more = f"\n({rest} more lines; start={start + wanted} goes on)" if rest > 0 else ""
        return "\n".join(shown) + more if shown else "(empty)"

    def _search(self, given: Json) -> str:
        wanted = str(given["text"])
        found: list[str] = []
        for name in fnmatch.filter(sorted(self.workspace.files), get_text(given, "glob") or "*"):
            lines = enumerate(self.workspace.read_text(name).splitlines(), 1)
            found += [f"{name}:{number}: {line[:200]}" for number, line in lines if wanted in line]
        more = [f"({len(found) - MAX_MATCHES} more)"] if len(found) > MAX_MATCHES else []
        return "\n".join(found[:MAX_MATCHES] + more) or "nothing found"

    def _write_file(self, given: Json) -> str:
        name = self.workspace.write_text(str(given["path"]), str(given["content"]))
        return f"wrote {name} ({len(self.workspace.files[name])} bytes)"

    def _edit_file(self, given: Json) -> str:
        path, old, new = (str(given[name]) for name in ("path", "old", "new"))
        text = self.workspace.read_text(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolRefused(f"`old` stands {count} times in {path[:80]}; it must stand there exactly once")
        return f"changed {self.workspace.write_text(path, text.replace(old, new))}"

    def _run_tests(self, _: Json) -> str:
        """Run the tests in the sandbox on a copy: files that they write are dropped."""
        words = ["discover", "-s", "tests", "-t", "."]
        outcome = sandbox.run_program(self.workspace.files, "unittest", words, module=True, limits=RUN_LIMITS)
        return _describe_run(outcome)

    def _run_python(self, given: Json) -> str:
        path = str(given["path"])
        name = self.workspace.resolve_path(path)
        if name not in self.workspace.files:
            raise ToolRefused(f"{path[:80]}: no such file")
        outcome = sandbox.run_program(self.workspace.files, name, get_texts(given, "arguments"), limits=RUN_LIMITS)
        if outcome.files is None:
            text = "(its files are too many or too large and were not kept)"
            raise ToolRefused(f"{_describe_run(outcome)}\n{text}")
        changed = self.workspace.replace_files(outcome.files)
        return _describe_run(outcome) + (f"\n(changed: {', '.join(changed[:20])})" if changed else "")

    def _gadget(self, given: Json) -> str:
        return self.store.run_command(str(given["line"])) if self.store else "no: there is no store"


def _describe_run(outcome: sandbox.SandboxOutcome) -> str:
    """Output of a program, and how it ended."""
    ended = f"exit code {outcome.exit_code}"
    if outcome.timed_out or outcome.exit_code < 0:
        ended = outcome.error or ended
    return f"{outcome.output.strip()}\n({ended})".strip()
