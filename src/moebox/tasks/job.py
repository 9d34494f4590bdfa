"""What a job is: files to start from, what is asked, and the hidden checks of what the files do afterwards.

Facts only. A job is made from its family, level and seed alone, so the same three give the same job everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = get_args(Level)

READING = ("list_files", "read_file", "search")
WRITING = ("write_file", "edit_file")
RUNNING = ("run_tests", "run_python")


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCheck:
    """Hidden from the agent: each snippet is run beside the files in the sandbox and must leave the same `result`
    there as beside the reference solution. What is expected never enters the sandbox with the agent's code."""

    name: str
    snippets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob:
    """One piece of work."""

    family: str
    level: Level
    seed: int
    instruction: str
    files: Mapping[str, str]
    checks: tuple[HiddenCheck, ...]
    solution: Mapping[str, str]  # laid over `files`, it passes every check
    protected: tuple[str, ...] = ()  # files that must stay as they are
    tools: tuple[str, ...] = (*READING, *WRITING, *RUNNING)
    system: str = ""  # said before the instruction, for this job alone
    turns: int = 40  # most replies
    reply_tokens: int = 8192  # most tokens of one reply
    reply_file: str = ""  # the code in the last reply is kept in this file
    gadget: str = ""  # the goods of the unknown tool at the start, as JSON; "" where there is no such tool

    @property
    def id(self) -> str:
        """Its name: family, level and seed say everything."""
        return f"{self.family}-{self.level}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """What a family makes of a seed; `families.make` adds who made it."""

    instruction: str
    files: Mapping[str, str]
    checks: tuple[HiddenCheck, ...]
    solution: Mapping[str, str]
    protected: tuple[str, ...] = ()
    tools: tuple[str, ...] = (*READING, *WRITING, *RUNNING)
    system: str = ""
    turns: int = 40
    reply_tokens: int = 8192
    reply_file: str = ""
    gadget: str = field(default="")
