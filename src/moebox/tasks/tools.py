"""The tools of our own agent: their schemas, and what each does to the job's folder.

Whatever a tool is given, it answers with text: a refusal is an answer too, and the agent may try again.
"""

import fnmatch
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastjsonschema

from moebox import sandbox
from moebox.loose import Json, get_number, get_text, get_texts
from moebox.sandbox import SandboxLimits
from moebox.tasks.gadget import GadgetStore
from moebox.tasks.job import AgentJob
from moebox.tasks.workspace import ToolRefused, Workspace

MOST_TEXT = 16_000  # characters of one answer; what is longer is cut, and says so
MOST_LINES = 400
MOST_FOUND = 60
RUN_LIMITS = SandboxLimits(time_s=30.0, cpu_s=10, memory_bytes=768 * 2**20)


class InvalidCall(Exception):
    """A call that no tool can take: unknown name, arguments that are no JSON or do not fit the schema."""


class ToolServerDied(Exception):
    """The server behind a tool is gone: no later call can work, so the job ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """One tool as the model sees it; `use` takes the arguments and gives the answer."""

    name: str
    description: str
    parameters: Json  # a JSON schema
    run: Callable[[Json], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What came of one call."""

    text: str
    error: str = ""  # what was wrong with the call itself, "" where the tool was used


class Toolbox:
    """The tools of one job; those of other servers are added with `add`."""

    def __init__(self, job: AgentJob, workspace: Workspace) -> None:
        self.workspace = workspace
        self.store = GadgetStore(job.gadget) if job.gadget else None
        self._tools: dict[str, tuple[AgentTool, Callable[[Any], Any]]] = {}
        for tool in self._own():
            if tool.name in job.tools:
                self.add(tool)

    def add(self, tool: AgentTool) -> None:
        """Offer one more tool; one of the same name gives way. A schema nobody can read is not checked against."""
        try:
            check = fastjsonschema.compile(dict(tool.parameters))
        except (fastjsonschema.JsonSchemaDefinitionException, re.error, ValueError):
            check = _anything
        self._tools[tool.name] = (tool, check)

    @property
    def tools(self) -> list[AgentTool]:
        """All of them, in the order they were added."""
        return [tool for tool, _ in self._tools.values()]

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Make one call. Nothing the model writes raises here."""
        try:
            tool, given = self._checked(name, arguments)
        except InvalidCall as problem:
            return ToolOutcome(text=f"error: {problem}", error=str(problem))
        try:
            return ToolOutcome(text=truncate_answer(tool.run(given)))
        except ToolRefused as problem:
            return ToolOutcome(text=f"error: {problem}")

    def _checked(self, name: str, arguments: str) -> tuple[AgentTool, Json]:
        if name not in self._tools:
            raise InvalidCall(f"there is no tool {name[:60]!r}; there are: {', '.join(self._tools) or 'none'}")
        tool, check = self._tools[name]
        given = _parsed(name, arguments)
        try:
            check(given)
        except fastjsonschema.JsonSchemaValueException as problem:
            raise InvalidCall(f"the arguments of {name} do not fit: {problem.message}"[:300]) from None
        if not isinstance(given, dict):
            raise InvalidCall(f"the arguments of {name} are no object")
        return tool, given

    def _own(self) -> list[AgentTool]:
        path = _text("path relative to the job's folder")
        return [
            AgentTool(
                name="list_files",
                description="List all files with their sizes.",
                parameters=_object({}),
                run=self._list,
            ),
            AgentTool(
                name="read_file",
                description="Read a text file, or `lines` lines of it from line `start` on; "
                f"at most {MOST_LINES} at once.",
                parameters=_object({"path": path, "start": _whole(), "lines": _whole()}, "path"),
                run=self._read,
            ),
            AgentTool(
                name="search",
                description="Find a piece of text in all files, or in those that match `glob`; gives path:line: text.",
                parameters=_object({"text": _text("what to look for"), "glob": _text("such as *.py")}, "text"),
                run=self._search,
            ),
            AgentTool(
                name="write_file",
                description="Write a file whole; what was there before is replaced.",
                parameters=_object({"path": path, "content": _text("the whole text")}, "path", "content"),
                run=self._write,
            ),
            AgentTool(
                name="edit_file",
                description="Replace `old`, which must stand in the file exactly once, by `new`.",
                parameters=_object({"path": path, "old": _text(""), "new": _text("")}, "path", "old", "new"),
                run=self._edit,
            ),
            AgentTool(
                name="run_tests",
                description="Run the tests in the folder `tests` with Python's unittest; gives their output.",
                parameters=_object({}),
                run=self._tests,
            ),
            AgentTool(
                name="run_python",
                description="Run a Python script of the folder; files it writes stay. No network, no other programs.",
                parameters=_object({"path": path, "arguments": _texts()}, "path"),
                run=self._python,
            ),
            AgentTool(
                name="gadget",
                description="The store's gadget.",
                parameters=_object({"line": _text("a command")}, "line"),
                run=self._gadget,
            ),
        ]

    def _list(self, _: Json) -> str:
        files = self.workspace.files
        return "\n".join(f"{name} ({len(files[name])} bytes)" for name in sorted(files)) or "(no files)"

    def _read(self, given: Json) -> str:
        lines = self.workspace.read_text(str(given["path"])).splitlines()
        start = max(int(get_number(given, "start") or 1), 1)
        wanted = min(int(get_number(given, "lines") or MOST_LINES), MOST_LINES)
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
        more = [f"({len(found) - MOST_FOUND} more)"] if len(found) > MOST_FOUND else []
        return "\n".join(found[:MOST_FOUND] + more) or "nothing found"

    def _write(self, given: Json) -> str:
        name = self.workspace.write_text(str(given["path"]), str(given["content"]))
        return f"wrote {name} ({len(self.workspace.files[name])} bytes)"

    def _edit(self, given: Json) -> str:
        path, old, new = (str(given[name]) for name in ("path", "old", "new"))
        text = self.workspace.read_text(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolRefused(f"`old` stands {count} times in {path[:80]}; it must stand there exactly once")
        return f"changed {self.workspace.write_text(path, text.replace(old, new))}"

    def _tests(self, _: Json) -> str:
        """In the sandbox, on a copy: what tests write does not stay."""
        outcome = sandbox.run_program(
            self.workspace.files, "unittest", ["discover", "-s", "tests", "-t", "."], module=True, limits=RUN_LIMITS
        )
        return _told(outcome)

    def _python(self, given: Json) -> str:
        path = str(given["path"])
        name = self.workspace.resolve_path(path)
        if name not in self.workspace.files:
            raise ToolRefused(f"{path[:80]}: no such file")
        outcome = sandbox.run_program(self.workspace.files, name, get_texts(given, "arguments"), limits=RUN_LIMITS)
        if outcome.files is None:
            raise ToolRefused(f"{_told(outcome)}\n(its files are too many or too large and were not kept)")
        changed = self.workspace.replace_files(outcome.files)
        return _told(outcome) + (f"\n(changed: {', '.join(changed[:20])})" if changed else "")

    def _gadget(self, given: Json) -> str:
        return self.store.run_command(str(given["line"])) if self.store else "no: there is no store"


def _told(outcome: sandbox.SandboxOutcome) -> str:
    """A program's output with how it ended."""
    ended = f"exit code {outcome.exit_code}"
    if outcome.timed_out or outcome.exit_code < 0:
        ended = outcome.error or ended
    return f"{outcome.output.strip()}\n({ended})".strip()


def truncate_answer(text: str) -> str:
    """At most MOST_TEXT characters: beginning and end, and how much is missing."""
    if len(text) <= MOST_TEXT:
        return text
    half = MOST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _anything(given: Any) -> Any:
    return given


def _object(properties: Json, *required: str) -> Json:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _text(about: str) -> Json:
    return {"type": "string", "description": about} if about else {"type": "string"}


def _whole() -> Json:
    return {"type": "integer", "minimum": 1}


def _texts() -> Json:
    return {"type": "array", "items": {"type": "string"}, "maxItems": 20}


def _parsed(name: str, arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError) as problem:
        raise InvalidCall(f"the arguments of {name} are no JSON: {problem}") from None
