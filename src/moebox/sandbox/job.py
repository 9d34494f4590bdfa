"""What is said through the pipes of a jail, as JSON: the job that goes in, and the line that comes out."""

from typing import Any, Literal, TypedDict


class CallWork(TypedDict):
    """Run a source, then call its function."""

    kind: Literal["calls"]
    source: str
    function: str
    calls: list[list[Any]]


class SnippetWork(TypedDict):
    """Run each source beside the files."""

    kind: Literal["snippets"]
    snippets: list[str]


class ProgramWork(TypedDict):
    """Run a script, or a module of the library, as `python` would."""

    kind: Literal["script", "module"]
    name: str
    arguments: list[str]


JailWork = CallWork | SnippetWork | ProgramWork


class JailJob(TypedDict):
    """Everything a jail is told."""

    level: str
    folder: str
    memory_bytes: int
    file_bytes: int
    folder_bytes: int
    entries: int
    time_s: float
    cpu_s: int
    files: dict[str, str]  # by path, as base64
    work: JailWork


class ChildLine(TypedDict, total=False):
    """A line of the child's: the code's own word, nothing more."""

    place: int
    value: Any
    error: str


class ResultLine(TypedDict, total=False):
    """The supervisor's line: how it ended, or why there are no walls (`setup`)."""

    setup: str
    exit: int
    values: list[tuple[int, Any]]
    error: str
    files: dict[str, str] | None
