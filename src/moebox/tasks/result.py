"""What came of jobs: typed, written to RUN/tasks.json as it happens, and read back by the report as the same types."""

from dataclasses import dataclass, field
from typing import Literal

from moebox import codec
from moebox.core.verdict import Score
from moebox.store import Run
from moebox.tasks.job import Level

# How a job ended. The last three are unfinished: `--resume` does those again.
End = Literal[
    "done",  # a reply without a tool call
    "turns",  # as many replies as the job allows
    "time",  # the job's own time was up
    "context",  # the conversation does not fit the server's context any more
    "cut",  # a reply was cut at its token limit with nothing usable in it
    "endpoint",  # the server refused or broke off, and still answers
    "thinking",  # replies of nothing but thinking
    "malformed",  # one call after the other that no tool can take
    "loop",  # the same call with the same answer again and again
    "tool",  # a tool's own server died
    "client",  # a real client failed or was not able to start
    "budget",
    "stopped",
    "gone",  # the server does not answer any more
]
UNFINISHED: tuple[End, ...] = ("budget", "stopped", "gone")
FILE = "tasks.json"
END_TITLES: dict[End, str] = {
    "done": "done",
    "turns": "used all its turns",
    "time": "out of time",
    "context": "context full",
    "cut": "reply cut",
    "endpoint": "endpoint failed",
    "thinking": "nothing but thinking",
    "malformed": "calls that no tool takes",
    "loop": "went in circles",
    "tool": "a tool's server died",
    "client": "the client failed",
    "budget": "budget used up",
    "stopped": "stopped",
    "gone": "the server stopped answering",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One tool call."""

    tool: str
    ok: bool  # it was a valid call
    error: str = ""
    repaired: bool = False  # the valid call that followed a bad one of the same tool
    seconds: float = 0.0
    answer: str = ""  # how the tool's answer begins


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One reply, and the calls it made."""

    number: int  # from 1
    at_s: float  # since the job began
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    tok_s: float | None = None  # while it was writing
    overhead_s: float = 0.0  # ours: neither the server's nor a tool's
    thought: int = 0  # characters of reasoning
    said: int = 0  # characters of text
    calls: tuple[CallRecord, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCheckResult:
    """One hidden check."""

    name: str
    passed: int
    of: int
    detail: str = ""  # the first that did not: what came, not what was wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """One job, worked and scored."""

    family: str
    level: Level
    seed: int
    solved: bool
    end: End
    why: str = ""  # what ended it, where that was not the agent
    wrong: str = ""  # where it went wrong, "" where it was solved
    wrong_turn: int = 0
    checks: tuple[HiddenCheckResult, ...] = ()
    tampered: tuple[str, ...] = ()  # protected files that were changed
    outside: tuple[str, ...] = ()  # paths outside the folder that were asked for
    seconds: float = 0.0
    turns: tuple[TurnRecord, ...] = ()
    first_tok_s: float | None = None  # over the first tenth of what was written
    last_tok_s: float | None = None  # over the last tenth
    transcript: str = ""  # the file that holds every message

    @property
    def id(self) -> str:
        """As the job's."""
        return f"{self.family}-{self.level}-{self.seed}"

    @property
    def all_calls(self) -> list[CallRecord]:
        """Of all turns."""
        return [call for turn in self.turns for call in turn.calls]

    @property
    def hidden_tests(self) -> tuple[int, int]:
        """Hidden tests passed, of how many."""
        return sum(check.passed for check in self.checks), sum(check.of for check in self.checks)

    @property
    def output_tokens(self) -> int:
        """Written by the model in all."""
        return sum(turn.completion_tokens or 0 for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyScore:
    """Jobs of one family and level together."""

    family: str
    level: Level
    solved: Score
    hidden: Score  # hidden tests over all jobs; they hang together within one, so the interval is too narrow
    valid_calls: Score
    repaired_calls: int = 0
    turns: float = 0.0  # mean
    output_tokens: float = 0.0  # mean
    seconds: float = 0.0  # mean
    tok_s: float | None = None
    ends: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """Which job."""

    family: str
    level: Level
    seed: int

    @property
    def id(self) -> str:
        """As the job's."""
        return f"{self.family}-{self.level}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """All jobs of one `moebox task`: what was asked and what came of it so far."""

    url: str
    model: str
    agent: str = "moebox"  # or the real client that did the work
    agent_version: str = ""  # of such a client
    api: str = "openai"
    sandbox: str = ""
    context: int | None = None  # of the server, where it says
    wanted: tuple[JobName, ...] = ()
    results: tuple[JobResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worker_title(self) -> str:
        """Who did the work, for people."""
        return "our own agent" if self.agent == "moebox" else f"{self.agent} {self.agent_version}".strip()

    @property
    def unfinished_jobs(self) -> list[JobName]:
        """Jobs that have no result, or an unfinished one."""
        done = {result.id for result in self.results if result.end not in UNFINISHED}
        return [name for name in self.wanted if name.id not in done]

    @property
    def finished_results(self) -> list[JobResult]:
        """Results that count."""
        return [result for result in self.results if result.end not in UNFINISHED]


def load_task_run(run: Run) -> TaskRun | None:
    """What a run folder says of its jobs; None where it has none."""
    document = run.read_json(FILE)
    return codec.decode(TaskRun, document, where=FILE) if document is not None else None
