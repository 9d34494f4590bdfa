"""Our own agent: asks for a reply, makes its calls, tells the answers, until the model is done or cannot go on.

Everything that goes wrong ends the job with its reason; nothing raises and nothing waits for ever.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moebox.loose import Json
from moebox.tasks.job import AgentJob
from moebox.tasks.reply import AgentReply, ReplySettings, RequestedCall, Stop, request_reply, tool_result_messages
from moebox.tasks.result import CallRecord, End, TurnRecord
from moebox.tasks.tools import Toolbox, ToolServerDied

SYSTEM = (
    "You are a careful software engineer at work in a folder. Use the tools to look at files, change them and run "
    "code; paths are relative to the folder. Work until the task is done, then reply without calling a tool."
)
ALONE = "You are a careful software engineer. Reply with exactly what is asked for."
NUDGE = "Go on: call a tool, or say done if the task is finished."
BAD_CALLS = 4  # turns with nothing but bad calls, one after the other, that end a job
THOUGHTS = 2  # replies of nothing but thinking that end it
REPEATS = 5  # the same call with the same answer, one after the other, that ends it
SOON_S = 0.25
LITTLE = 1024  # tokens of a reply that a server of unknown context is asked for after it refused more
MARGIN = 64  # tokens of context kept free for the template's own
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class AgentWork:
    """A job while it is worked on, and how it ended."""

    messages: list[Json] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # tokens, seconds: of every event in order
    end: End = "turns"
    reason: str = ""
    text: str = ""  # the last reply's


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """Where a job must stop."""

    ends_at: float  # monotonic
    late_end: End = "time"  # what it means to be past `until`
    context: int | None = None
    stop: Stop = lambda: False


OnTurn = Callable[[TurnRecord], None]


def run_agent(
    job: AgentJob, settings: ReplySettings, toolbox: Toolbox, limits: WorkLimits, *, on_turn: OnTurn = lambda turn: None
) -> AgentWork:
    """Do the job."""
    began = time.monotonic()
    done = AgentWork(messages=[{"role": "user", "content": job.instruction}])
    system = f"{SYSTEM if job.tools else ALONE}\n\n{job.system}".strip()
    memory = _Memory()
    for number in range(1, job.turns + 1):
        started = time.monotonic()
        most = _allowed(job, limits, done, system, number)
        if not most:
            return done
        got = _reply(settings, system, done, toolbox, limits, most)
        done.text = got.text
        calls, results, died = _calls(toolbox, got, memory)
        used = sum(call.seconds for call in calls)
        overhead = time.monotonic() - started - got.seconds - used
        turn = build_turn(number, started - began, got, calls, overhead=overhead)
        done.turns.append(turn)
        done.gaps += token_gaps(got)
        on_turn(turn)
        if died:
            done.end, done.reason = "tool", died
            return done
        verdict = _ended(got, calls, memory, limits)
        done.messages += _told(settings, got, results)
        if verdict:
            done.end, done.reason = verdict
            return done
        if not got.calls:  # nothing but thinking, once: it may go on
            done.messages[-1] = {"role": "assistant", "content": got.text or "…"}
            done.messages.append({"role": "user", "content": NUDGE})
    return done


def _allowed(job: AgentJob, bounds: WorkLimits, done: AgentWork, system: str, number: int) -> int:
    """Tokens that the next reply may have; 0, and the end noted, where there is to be none."""
    end = _over(bounds)
    if end:
        done.end, done.reason = end, "" if end == "stopped" else f"before reply {number}"
        return 0
    most = _most(job, bounds.context, done, system)
    if most < 1:
        done.end, done.reason = "context", f"{bounds.context} tokens are full before reply {number}"
    return max(most, 0)


def _told(ask: ReplySettings, got: AgentReply, results: Sequence[tuple[RequestedCall, str]]) -> list[Json]:
    """A reply and what its calls brought, as the conversation keeps them."""
    if got.calls and not got.problem:
        return tool_result_messages(ask.api, got, results)
    return [{"role": "assistant", "content": got.text}]


def _reply(ask: ReplySettings, system: str, done: AgentWork, box: Toolbox, bounds: WorkLimits, most: int) -> AgentReply:
    """One reply; asked for again with less room where the server, which did not say its context, finds it too much."""
    got = request_reply(
        ask, system, done.messages, box.tools, max_tokens=most, ends_at=bounds.ends_at, stop=bounds.stop
    )
    if got.context_full and bounds.context is None and most > LITTLE:
        got = request_reply(
            ask, system, done.messages, box.tools, max_tokens=LITTLE, ends_at=bounds.ends_at, stop=bounds.stop
        )
    return got


class _Memory:
    """What the last turns were like."""

    def __init__(self) -> None:
        self.bad_turns = 0
        self.thoughts = 0
        self.same = 0
        self.last: tuple[str, str, str] | None = None
        self.bad_tools: set[str] = set()

    def call(self, name: str, arguments: str, answer: str) -> None:
        """Count how often in a row the very same was called and answered."""
        now = (name, arguments, answer)
        self.same = self.same + 1 if now == self.last else 1
        self.last = now


def _over(bounds: WorkLimits) -> End | None:
    if bounds.stop():
        return "stopped"
    return bounds.late_end if time.monotonic() > bounds.ends_at else None


def _most(job: AgentJob, context: int | None, done: AgentWork, system: str) -> int:
    """Tokens the next reply may have; the prompt is counted by the server, or guessed for the first."""
    if context is None:
        return job.reply_tokens
    prompt = _prompt_tokens(done, system)
    return min(job.reply_tokens, max(context - prompt - MARGIN, context // 16 if prompt < context else 0))


def _prompt_tokens(done: AgentWork, system: str) -> int:
    """Tokens of the next prompt: those of the last turn and what was added since, or all of it guessed."""
    last = done.turns[-1] if done.turns else None
    if last is None or not last.prompt_tokens:
        return (len(system) + len(str(done.messages))) // 4 + 700  # the tools' schemas are about 700
    results = sum(len(str(message.get("content") or "")) for message in done.messages[-3:]) // 3
    return last.prompt_tokens + (last.completion_tokens or 0) + results


def _calls(
    box: Toolbox, got: AgentReply, memory: _Memory
) -> tuple[list[CallRecord], list[tuple[RequestedCall, str]], str]:
    """Make the calls of a reply, in order."""
    seen: list[CallRecord] = []
    results: list[tuple[RequestedCall, str]] = []
    for call in got.calls if not got.problem else ():
        began = time.monotonic()
        try:
            used = box.call(call.name, call.arguments)
        except ToolServerDied as problem:
            seen.append(CallRecord(tool=call.name, ok=True, error=str(problem), seconds=time.monotonic() - began))
            return seen, results, str(problem)
        ok = not used.error
        repaired = ok and call.name in memory.bad_tools
        memory.bad_tools = memory.bad_tools - {call.name} if ok else memory.bad_tools | {call.name}
        memory.call(call.name, call.arguments, used.text)
        results.append((call, used.text))
        seen.append(
            CallRecord(
                tool=call.name[:80],
                ok=ok,
                error=used.error[:300],
                repaired=repaired,
                seconds=time.monotonic() - began,
                answer=used.text[:200],
            )
        )
    return seen, results, ""


def _ended(got: AgentReply, calls: Sequence[CallRecord], memory: _Memory, bounds: WorkLimits) -> tuple[End, str] | None:
    """Whether the job ends with this reply, and why."""
    if got.problem:
        return _failure(got, bounds)
    if calls:
        return _stuck(calls, memory)
    if got.text.strip():
        return "done", ""
    if got.finish in ("length", "max_tokens"):
        return _cut(got, bounds)
    memory.thoughts += 1
    if memory.thoughts < THOUGHTS:
        return None
    return "thinking", "replied with nothing but thinking" if got.reasoning else "replied with nothing"


def _stuck(calls: Sequence[CallRecord], memory: _Memory) -> tuple[End, str] | None:
    """Whether its calls lead nowhere."""
    memory.bad_turns = 0 if any(call.ok for call in calls) else memory.bad_turns + 1
    memory.thoughts = 0
    if memory.bad_turns >= BAD_CALLS:
        return "malformed", calls[-1].error
    if memory.same >= REPEATS:
        return "loop", f"{calls[-1].tool} called {memory.same} times with the same arguments and answer"
    return None


def _cut(got: AgentReply, bounds: WorkLimits) -> tuple[End, str]:
    """By the context's end, or by the limit that we gave."""
    tokens = (got.prompt_tokens or 0) + got.output_tokens
    if bounds.context is not None and tokens >= bounds.context - 1:
        return "context", "the reply filled the context"
    return "cut", f"cut at its token limit while {'thinking' if got.reasoning else 'writing'}"


def _failure(got: AgentReply, bounds: WorkLimits) -> tuple[End, str]:
    if got.problem == "stopped":
        return "stopped", ""
    if got.context_full:
        return "context", got.problem
    if (
        time.monotonic() > bounds.ends_at - SOON_S
    ):  # a socket's timeout is set to what was left, and may end a hair early
        return bounds.late_end, got.problem
    return "endpoint", got.problem


def build_turn(
    number: int, at_s: float, got: AgentReply, calls: Sequence[CallRecord], *, overhead: float = 0.0
) -> TurnRecord:
    """A reply as one turn, `overhead` seconds of it ours."""
    writing = sum(got.gaps_s)
    tokens = got.output_tokens - 1
    return TurnRecord(
        number=number,
        at_s=at_s,
        seconds=got.seconds,
        prompt_tokens=got.prompt_tokens,
        completion_tokens=got.completion_tokens,
        cached_tokens=got.cached_tokens,
        ttft_s=got.ttft_s,
        tok_s=tokens / writing if writing > 0 and tokens > 0 else None,
        overhead_s=max(0.0, overhead),
        thought=len(got.reasoning),
        said=len(got.text),
        calls=tuple(calls),
        problem=got.problem,
    )


def token_gaps(got: AgentReply) -> list[tuple[float, float]]:
    """(tokens, seconds) of each event after the first; a reply's tokens are spread evenly over its events."""
    if not got.gaps_s:
        return []
    each = max(got.output_tokens - 1, 1) / len(got.gaps_s)
    return [(each, gap) for gap in got.gaps_s]


def first_and_last_rates(gaps: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Tokens a second over the first and over the last tenth of everything written."""
    share = len(gaps) // 10
    if share < 5:  # a rate of fewer events says nothing
        return None, None
    return _rate(gaps[:share]), _rate(gaps[-share:])


def _rate(gaps: Sequence[tuple[float, float]]) -> float | None:
    seconds = sum(gap for _, gap in gaps)
    return sum(tokens for tokens, _ in gaps) / seconds if seconds > 0 else None


def extract_code_block(text: str) -> str:
    """The longest block of code in a reply; all of it where there is no block."""
    blocks = _CODE.findall(text)
    return max(blocks, key=len) + "\n" if blocks else text


def transcript_lines(system: str, done: AgentWork) -> str:
    """Every message of the job, as JSON lines."""
    rows = [{"role": "system", "content": system}, *done.messages]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
