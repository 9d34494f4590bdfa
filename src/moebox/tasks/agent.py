"""moebox's own agent: requests a reply, makes its calls, sends the results back, until the model is done or stuck.

Every problem ends the job with a reason; nothing raises, and nothing waits without a limit.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from moebox import codec
from moebox.core import catalogue
from moebox.core.endpoint import ToolCall
from moebox.loose import Json
from moebox.tasks.reply import AgentReply, ReplySettings, ShouldStop, request_reply, tool_result_messages
from moebox.tasks.result import AgentJob, CallRecord, End, TurnRecord
from moebox.tasks.tools import Toolbox, ToolServerDied

SYSTEM = (
    "You are a careful software engineer at work in a folder. Use the tools to look at files, change them and run "
    "code; paths are relative to the folder. Work until the task is done, then reply without calling a tool."
)
SYSTEM_WITHOUT_TOOLS = "You are a careful software engineer. Reply with exactly what is asked for."
NUDGE = str(catalogue.load_table("tasks/instructions")["nudge"])
MAX_BAD_TURNS = 4  # in a row with nothing but invalid calls
MAX_THINKING_REPLIES = 2  # with nothing but thinking
MAX_REPEATS = 5  # of the same call with the same answer in a row
SOON_S = 0.25
FEW_TOKENS = 1024  # of a reply, for a server of unknown context that rejected more
MARGIN_TOKENS = 64  # of context kept free for the template
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class AgentWork:
    """A job while it is worked on, and how it ended."""

    messages: list[Json] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # tokens and seconds of every event in order
    end: End = "turns"
    reason: str = ""
    text: str = ""  # of the last reply
    files: dict[str, bytes] = field(default_factory=dict)  # as it left them
    outside: tuple[str, ...] = ()  # requested paths outside the folder
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """When a job must stop."""

    ends_at: float  # monotonic clock
    late_end: End = "time"  # how the job ends after `ends_at`
    context: int | None = None
    stop: ShouldStop = lambda: False


@dataclass(slots=True)
class _RecentTurns:
    """What was noticed about the last turns."""

    bad_turns: int = 0
    thinking_replies: int = 0
    repeats: int = 0
    last_call: tuple[str, str, str] | None = None
    bad_tools: set[str] = field(default_factory=set)


def run_agent(
    job: AgentJob,
    settings: ReplySettings,
    toolbox: Toolbox,
    limits: WorkLimits,
    *,
    on_turn: Callable[[TurnRecord], None] = lambda turn: None,
) -> AgentWork:
    began = time.monotonic()
    work = AgentWork(messages=[{"role": "user", "content": job.instruction}])
    system = f"{SYSTEM if job.tools else SYSTEM_WITHOUT_TOOLS}\n\n{job.system}".strip()
    recent = _RecentTurns()
    request = partial(
        request_reply, settings, system, work.messages, toolbox.tools, ends_at=limits.ends_at, stop=limits.stop
    )
    for number in range(1, job.turns + 1):
        started = time.monotonic()
        if limits.stop() or started > limits.ends_at:
            stopped = limits.stop()
            work.end, work.reason = ("stopped", "") if stopped else (limits.late_end, f"before reply {number}")
            return work
        max_tokens = _next_reply_tokens(job, limits.context, work, system)
        if max_tokens < 1:
            work.end, work.reason = "context", f"{limits.context} tokens are full before reply {number}"
            return work
        reply = request(max_tokens=max_tokens)
        if reply.context_full and limits.context is None and max_tokens > FEW_TOKENS:
            reply = request(max_tokens=FEW_TOKENS)
        work.text = reply.text
        calls, results, dead_server = _make_calls(toolbox, reply, recent)
        overhead = time.monotonic() - started - reply.seconds - sum(call.seconds for call in calls)
        turn = build_turn(number, started - began, reply, calls, overhead=overhead)
        work.turns.append(turn)
        work.gaps += token_gaps(reply)
        on_turn(turn)
        if dead_server:
            work.end, work.reason = "tool", dead_server
            return work
        end = _job_end(reply, calls, recent, limits)
        if reply.calls and not reply.problem:
            work.messages += tool_result_messages(settings.api, reply, results)
        else:
            work.messages.append({"role": "assistant", "content": reply.text})
        if end:
            work.end, work.reason = end
            return work
        if not reply.calls:  # nothing but thinking, for the first time: it may go on
            work.messages[-1] = {"role": "assistant", "content": reply.text or "…"}
            work.messages.append({"role": "user", "content": NUDGE})
    return work


def _next_reply_tokens(job: AgentJob, context: int | None, work: AgentWork, system: str) -> int:
    """Tokens that fit for the next reply; the server counts the prompt, the first one is estimated."""
    if context is None:
        return job.reply_tokens
    last = work.turns[-1] if work.turns else None
    if last is None or not last.prompt_tokens:
        prompt = (len(system) + len(str(work.messages))) // 4 + 700  # the tools' schemas are about 700
    else:
        results = sum(len(str(message.get("content") or "")) for message in work.messages[-3:]) // 3
        prompt = last.prompt_tokens + (last.completion_tokens or 0) + results
    least = context // 16 if prompt < context else 0
    return max(0, min(job.reply_tokens, max(context - prompt - MARGIN_TOKENS, least)))


def _make_calls(
    toolbox: Toolbox, reply: AgentReply, recent: _RecentTurns
) -> tuple[list[CallRecord], list[tuple[ToolCall, str]], str]:
    """Make the calls of a reply in order; the last item names a tool server that died."""
    records: list[CallRecord] = []
    results: list[tuple[ToolCall, str]] = []
    for call in reply.calls if not reply.problem else ():
        began = time.monotonic()
        try:
            outcome = toolbox.call(call.name, call.arguments)
        except ToolServerDied as problem:
            seconds = time.monotonic() - began
            records.append(CallRecord(tool=call.name, ok=True, error=str(problem), seconds=seconds))
            return records, results, str(problem)
        ok = not outcome.error
        repaired = ok and call.name in recent.bad_tools
        recent.bad_tools = recent.bad_tools - {call.name} if ok else recent.bad_tools | {call.name}
        this_call = (call.name, call.arguments, outcome.text)
        recent.repeats = recent.repeats + 1 if this_call == recent.last_call else 1
        recent.last_call = this_call
        results.append((call, outcome.text))
        record = CallRecord(tool=call.name[:80], ok=ok, error=outcome.error[:300], answer=outcome.text[:200])
        records.append(replace(record, repaired=repaired, seconds=time.monotonic() - began))
    return records, results, ""


def _job_end(
    reply: AgentReply, calls: Sequence[CallRecord], recent: _RecentTurns, limits: WorkLimits
) -> tuple[End, str] | None:
    """How and why the job ends with this reply, or None."""
    if reply.problem == "stopped":
        return "stopped", ""
    if reply.problem and reply.context_full:
        return "context", reply.problem
    if reply.problem:
        late = time.monotonic() > limits.ends_at - SOON_S  # a socket's timeout may end a little early
        return limits.late_end if late else "endpoint", reply.problem
    if calls:
        recent.bad_turns = 0 if any(call.ok for call in calls) else recent.bad_turns + 1
        recent.thinking_replies = 0
        if recent.bad_turns >= MAX_BAD_TURNS:
            return "malformed", calls[-1].error
        if recent.repeats >= MAX_REPEATS:
            tool = calls[-1].tool
            return "loop", f"{tool} called {recent.repeats} times with the same arguments and answer"
        return None
    if reply.text.strip():
        return "done", ""
    if reply.finish in ("length", "max_tokens"):
        tokens = (reply.prompt_tokens or 0) + reply.output_tokens
        if limits.context is not None and tokens >= limits.context - 1:
            return "context", "the reply filled the context"
        return "cut", f"cut at its token limit while {'thinking' if reply.reasoning else 'writing'}"
    recent.thinking_replies += 1
    if recent.thinking_replies < MAX_THINKING_REPLIES:
        return None
    return "thinking", "replied with nothing but thinking" if reply.reasoning else "replied with nothing"


def build_turn(
    number: int, at_s: float, reply: AgentReply, calls: Sequence[CallRecord], *, overhead: float = 0.0
) -> TurnRecord:
    """A reply as one turn, with `overhead` seconds of moebox itself."""
    writing_s = sum(reply.gaps_s)
    tokens = reply.output_tokens - 1
    return TurnRecord(
        **codec.shared_fields(reply, TurnRecord) | {"calls": tuple(calls)},
        number=number,
        at_s=at_s,
        tok_s=tokens / writing_s if writing_s > 0 and tokens > 0 else None,
        overhead_s=max(0.0, overhead),
        thought=len(reply.reasoning),
        said=len(reply.text),
    )


def token_gaps(reply: AgentReply) -> list[tuple[float, float]]:
    """(tokens, seconds) of each event after the first, the tokens distributed evenly over the events."""
    if not (reply.gaps_s and reply.completion_tokens):
        return []
    each = max(reply.output_tokens - 1, 1) / len(reply.gaps_s)
    return [(each, gap) for gap in reply.gaps_s]


def first_and_last_rates(gaps: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Tokens per second in the first and in the last tenth of all events; None for too few events."""
    tenth = len(gaps) // 10
    if tenth < 5:  # a rate of fewer events means nothing
        return None, None
    rates: list[float | None] = []
    for part in (gaps[:tenth], gaps[-tenth:]):
        seconds = sum(gap for _, gap in part)
        rates.append(sum(tokens for tokens, _ in part) / seconds if seconds > 0 else None)
    return rates[0], rates[1]


def extract_code_block(text: str) -> str:
    """The longest block of code in a reply, or all of it if there is no block."""
    blocks = _CODE.findall(text)
    return max(blocks, key=len) + "\n" if blocks else text
