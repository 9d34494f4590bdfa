"""A job, and its result: written to RUN/tasks.json as it comes, and read back by the report as the same types.

A job has files to start from, an instruction, and hidden checks of what the files do afterwards. It is made from its
family, level and seed alone, so the same three give the same job everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from moebox import codec
from moebox.core.verdict import Score
from moebox.store import Run

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

    @property
    def snippets(self) -> list[str]:
        """The snippets of all checks."""
        return [snippet for check in self.checks for snippet in check.snippets]


Unfinished = Literal["budget", "stopped", "gone"]  # `--resume` does those again
Finished = Literal[
    "done", "turns", "time", "context", "cut", "endpoint", "thinking", "malformed", "loop", "tool", "client"
]
End = Finished | Unfinished  # how a job ended
UNFINISHED: tuple[Unfinished, ...] = get_args(Unfinished)
FILE = "tasks.json"
END_TITLES: dict[End, str] = {
    "done": "done",  # a reply without a tool call
    "turns": "used all its turns",  # as many replies as the job allows
    "time": "out of time",  # the job's own
    "context": "context full",  # the conversation no longer fits the server's
    "cut": "reply cut",  # at its token limit with nothing usable in it
    "endpoint": "endpoint failed",  # the server rejected a request or broke off, and still answers
    "thinking": "nothing but thinking",
    "malformed": "calls that no tool takes",
    "loop": "went in circles",  # the same call with the same answer again and again
    "tool": "a tool's server died",
    "client": "the client failed",  # or could not start
    "budget": "budget used up",
    "stopped": "stopped",
    "gone": "the server stopped answering",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    tool: str
    ok: bool  # a valid call
    error: str = ""
    repaired: bool = False  # the valid call after an invalid one of the same tool
    seconds: float = 0.0
    answer: str = ""  # beginning of the tool's answer


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    number: int  # from 1
    at_s: float  # since the job began
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    tok_s: float | None = None  # while it was writing
    overhead_s: float = 0.0  # of moebox: neither the server's nor a tool's
    thought: int = 0  # characters of reasoning
    said: int = 0  # characters of text
    calls: tuple[CallRecord, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCheckResult:
    name: str
    passed: int
    of: int
    detail: str = ""  # the first failure: the value that came, not the one wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(JobName):
    solved: bool
    end: End
    why: str = ""  # reason of an end that was not the agent's
    wrong: str = ""  # first mistake, "" if solved
    wrong_turn: int = 0
    checks: tuple[HiddenCheckResult, ...] = ()
    tampered: tuple[str, ...] = ()  # protected files that were changed
    outside: tuple[str, ...] = ()  # requested paths outside the folder
    seconds: float = 0.0
    turns: tuple[TurnRecord, ...] = ()
    first_tok_s: float | None = None  # in the first tenth of the output
    last_tok_s: float | None = None  # in the last tenth
    transcript: str = ""  # file with every message

    @property
    def all_calls(self) -> list[CallRecord]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def hidden_tests(self) -> tuple[int, int]:
        return sum(check.passed for check in self.checks), sum(check.of for check in self.checks)

    @property
    def output_tokens(self) -> int:
        """Tokens that the model wrote in all turns."""
        return sum(turn.completion_tokens or 0 for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyScore:
    family: str
    level: Level
    solved: Score
    hidden: Score  # tests of one job depend on each other, so the interval is too narrow
    valid_calls: Score
    repaired_calls: int = 0
    turns: float = 0.0  # mean
    output_tokens: float = 0.0  # mean
    seconds: float = 0.0  # mean
    tok_s: float | None = None
    ends: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """All jobs of one `moebox task`, wanted and done so far."""

    url: str
    model: str
    key_env: str = ""
    agent: str = "moebox"  # or a real client
    agent_version: str = ""  # of a real client
    api: str = "openai"
    sandbox: str = ""
    context: int | None = None  # of the server, if it reports it
    wanted: tuple[JobName, ...] = ()
    results: tuple[JobResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worker_title(self) -> str:
        """The agent's name for readers."""
        return "our own agent" if self.agent == "moebox" else f"{self.agent} {self.agent_version}".strip()

    @property
    def finished_results(self) -> list[JobResult]:
        """Results that count."""
        return [result for result in self.results if result.end not in UNFINISHED]

    @property
    def unfinished_jobs(self) -> list[JobName]:
        """Jobs without a result, or with an unfinished one."""
        done = {result.id for result in self.finished_results}
        return [name for name in self.wanted if name.id not in done]


def load_task_run(run: Run) -> TaskRun | None:
    """The jobs of a run folder, or None if it has none."""
    document = run.read_json(FILE)
    return codec.decode(TaskRun, document, where=FILE) if document is not None else None
