"""A job: files to start from, an instruction, and hidden checks of what the files do afterwards.

A job is made from its family, level and seed alone, so the same three give the same job everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = get_args(Level)

READING = ("list_files", "read_file", "search")
WRITING = ("write_file", "edit_file")
RUNNING = ("run_tests", "run_python")


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCheck:
    """A check that the agent does not see.

    Each snippet runs beside the files in the sandbox and must leave the same `result` as beside the reference solution.
    The expected values never enter the sandbox with the agent's code.
    """

    name: str
    snippets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """What a family makes of a seed."""

    instruction: str
    files: Mapping[str, str]
    checks: tuple[HiddenCheck, ...]
    solution: Mapping[str, str]  # written over `files`, it passes every check
    protected: tuple[str, ...] = ()  # files that must not change
    tools: tuple[str, ...] = (*READING, *WRITING, *RUNNING)
    system: str = ""  # added to the system prompt for this job
    turns: int = 40  # most replies
    reply_tokens: int = 8192  # most tokens of one reply
    reply_file: str = ""  # the code in the last reply is written to this file
    gadget: str = ""  # initial goods of the gadget's store as JSON; "" if the job has no gadget


@dataclass(frozen=True, kw_only=True)  # no slots, so that it can be a second base
class JobName:
    family: str
    level: Level
    seed: int

    @property
    def id(self) -> str:
        return f"{self.family}-{self.level}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob(JobDraft, JobName):
    """A draft with the name that it was made from."""
