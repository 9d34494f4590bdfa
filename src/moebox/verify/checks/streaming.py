"""streaming: the pieces add up to the answer, with usage, one finish_reason and no special token."""

import difflib
import re
import statistics
from collections.abc import Sequence
from typing import Any

from moebox.core import catalogue
from moebox.core.setting import Effort
from moebox.core.verdict import HttpExchange
from moebox.phantom.question import Question
from moebox.units import plural
from moebox.verify.completions import ChatAnswer, parse_chat_stream
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.trials import CheckSession, Probes, QuestionAttempt, judge_answer
from moebox.verify.violations import CLOCK_TOKENS, parse_json_or

FAMILIES = ("copy", "copy", "secret", "sums")  # with little freedom: the same answer every time at temperature 0
MIN_PIECES = 3
HELD_BACK_SHARE = 0.9  # of a stream's time before its first byte: then it was generated whole and split up
LONG_TOKENS: dict[Effort, int] = {"quick": 160, "normal": 1600, "thorough": 4400}  # of a long answer
COPY_WORDS = 30  # a model that repeats these can repeat thousands
MAX_WORD_TOKENS = 8
CONTEXT_SHARE = 0.45  # of the context that question and answer fill, half of it in a short one; words differ in length
SPARE = 1.3  # tokens allowed for a long answer, relative to the first answer's count
UNKNOWN_LIMIT = 4096
MAX_LOOP_WORDS = 64
MIN_SAME_SHARE = 0.8  # of the words right and in order: the model did not lose the thread
SLOW_S = 1.0  # a faster stream shows nothing about being held back
MIN_TOKENS = 32  # of a text in one piece: more than draft tokens or a stream interval of some servers explain
ONE_PIECE = 0.9  # of a text in one piece: the parser waits for its end
PIECES = {
    part: re.compile(rf'"{key}":\s*"((?:[^"\\]|\\.)*)"')
    for part, key in (("tool calls", "arguments"), ("reasoning", "reasoning(?:_content)?"))
}
LONG_PARTS = {"tool calls": 8000, "reasoning": 16_000}  # a file of about 30 kB; reasoning about a hard question


async def probe_same_words(session: CheckSession) -> None:
    """The pieces add up to the answer that comes without streaming, and count as many tokens."""

    async def attempt(stream: bool) -> str:
        return await compare_modes(session, session.draw(FAMILIES[session.rng.randrange(len(FAMILIES))]))

    await session.run_trials("text", attempt, stream=True)


async def compare_modes(session: CheckSession, question: Question, **more: Any) -> str:
    """A streamed reply has the text, reasoning, calls and token counts of the whole one, whether it is right or not."""
    whole, pieces = [await session.ask_question(question, stream=mode, **more) for mode in (False, True)]
    if reason := _mode_difference(whole, pieces):
        # On a busy engine two answers at temperature 0 may differ by numerics; then whole answers differ too
        again = await session.ask_question(question, **more)
        varies = bool(_mode_difference(whole, again)) and not question.find_fault(pieces)
        return "" if varies else reason
    difference = ""
    # A template may contain the time of day; an end-of-turn token may or may not be counted
    for key, slack in (("prompt", CLOCK_TOKENS), ("completion", 1)):
        a, b = whole.token_count(key), pieces.token_count(key)
        if a is not None and b is not None and abs(a - b) > slack:
            difference = difference or f"the same {key} is {a} tokens whole and {b} streamed"
    session.failures.add("usage", difference, stream=True)
    return ""


def _mode_difference(whole: ChatAnswer, pieces: ChatAnswer) -> str:
    """Describe how a streamed reply differs from a whole one, or return ""; line ends at the end do not matter."""
    for name, a, b in (("", whole.content, pieces.content), ("reasoning ", whole.reasoning, pieces.reasoning)):
        if a.rstrip() != b.rstrip():
            return name + first_difference(a, b)
    # As values: blanks and escapes do not matter
    made, came = ([(call.name, parse_json_or(call.arguments, call)) for call in each.calls] for each in (whole, pieces))
    return "" if made == came else f"the calls {made} came streamed as {came}"


def first_difference(whole: str, pieces: str, names: tuple[str, str] = ("whole", "streamed")) -> str:
    at = common_length(whole, pieces)
    return f"at character {at}: {names[0]} …{whole[at : at + 30]!r}, {names[1]} …{pieces[at : at + 30]!r}"


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """Return how many items both begin with."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


async def probe_plain_stream(session: CheckSession) -> str | ProbeWarning:
    """A stream without stream_options is a stream like any other."""
    body = session.question_request(session.draw("secret"), stream=True)
    body.pop("stream_options", None)
    answer = session.read_answer(await session.post_chat(body))
    session.failures.expect("text", not answer.is_empty, "nothing came in a stream without stream_options", stream=True)
    if not session.accepts_stream_options:
        return ProbeWarning("the server refuses stream_options, so streams have no token counts")
    return f"{answer.chunks} pieces"


async def probe_pieces(session: CheckSession) -> ProbeWarning | None:
    """A long answer comes in many pieces, complete to its last number, with one finish_reason."""
    answer = await session.ask_question(session.draw("count", start=1, end=32), stream=True)
    exchange = session.exchanges[-1]
    if answer.chunks < MIN_PIECES:
        raise ProbeFailed(f"a long answer came in {answer.chunks} pieces: buffered, not streamed")
    if answer.finish_reason != "stop":
        raise ProbeFailed(f"finish_reason {answer.finish_reason!r} although the answer was complete")
    attempt = QuestionAttempt(session, lambda: session.draw("count", end=18, start=5 + session.rng.randrange(4)))
    await session.run_trials("answer", attempt, 0.25, stream=True)
    reason = _held_back(exchange)
    return ProbeWarning(reason) if reason else None


def _held_back(exchange: HttpExchange) -> str:
    """Return how late the first piece of a slow stream came, or ""."""
    late = exchange.seconds > SLOW_S and exchange.first_s > HELD_BACK_SHARE * exchange.seconds
    text = f"the first piece came after {exchange.first_s:.1f} of {exchange.seconds:.1f} s: buffered, not streamed"
    return text if late else ""


async def probe_long_answer(session: CheckSession) -> str | ProbeWarning:
    """A text of thousands of words comes back whole, to its last word."""
    words, tokens = await _long_answer_size(session)
    question = session.draw("copy", length=words)
    with session.allow_slow_replies():
        request = session.chat_request(question.messages, max_tokens=tokens, stream=True)
        answer = session.read_answer(await session.post_dictated(request, question.expect))
    if reason := _held_back(session.exchanges[-1]):
        return ProbeWarning(reason)
    want, got = str(question.expect).split(), answer.content.split()
    if got == want:
        made = answer.token_count("completion")
        return f"{words:,} words, {made:,} tokens" if made else f"{words:,} words"
    kept = common_length(want, got)
    if kept == len(got) or (kept == len(got) - 1 < len(want) and want[kept].startswith(got[kept])):
        # It ended before its last word: one that was cut without a limit is a failure
        made, used = answer.token_count("completion"), answer.token_count("total")
        cut = answer.finish_reason == "length"
        if cut and (made is None or made >= tokens - COPY_WORDS):
            return f"{kept:,} of {words:,} words, then the requested limit of {tokens:,} tokens"
        if cut and session.context_limit and used and used >= session.context_limit - MAX_WORD_TOKENS:
            return f"{kept:,} of {words:,} words, then the end of the context"
        reason = f"the answer ended after {kept:,} of {words:,} words with finish_reason {answer.finish_reason!r}"
        session.failures.add("text", reason, stream=True)
        return reason
    if damage := _describe_damage(want, got):
        return ProbeWarning(f"{kept:,} of {words:,} words unchanged, then: {damage}; the model's fault or the server's")
    raise ProbeSkipped(f"model, not server: it lost the thread after {kept:,} of {words:,} words")


async def _long_answer_size(session: CheckSession) -> tuple[int, int]:
    """Words of a long answer that fits the context beside its question, and the tokens to allow for it."""
    question = session.draw("copy", length=COPY_WORDS)
    answer = await session.ask_question(question, max_tokens=MAX_WORD_TOKENS * COPY_WORDS)
    if reason := judge_answer(question, answer):
        raise ProbeSkipped(f"model, not server: it cannot repeat {COPY_WORDS} words ({reason})")
    per_word = max(0.5, (answer.token_count("completion") or 2 * COPY_WORDS) / COPY_WORDS)
    room = CONTEXT_SHARE * (session.context_limit or UNKNOWN_LIMIT) / (2 if session.is_roomy else 4)
    words = max(COPY_WORDS, round(min(LONG_TOKENS[session.options.effort], room) / per_word))
    return words, round(SPARE * words * per_word) + COPY_WORDS


def _describe_damage(want: Sequence[str], got: Sequence[str]) -> str:
    """Describe damage to a text that goes on correctly, or loops: a model that errs seldom recovers. Else ""."""
    blocks = difflib.SequenceMatcher(None, want, got, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    if same == len(want):
        return f"{plural(len(got) - same, 'word')} too many"
    if same >= MIN_SAME_SHARE * len(want):
        return f"{len(want) - same} lost or changed, the rest right again"
    tail = got[:-1]  # the last may be half a word
    for size in range(1, MAX_LOOP_WORDS):
        if len(tail) > 3 * size and tail[-size:] == tail[-2 * size : -size] == tail[-3 * size : -2 * size]:
            return f"the last {size} come again and again"
    return ""


async def probe_silence(session: CheckSession) -> str | ProbeWarning:
    """No client gives up during a stream: tool calls and reasoning come as they are written. Sends no request."""
    streams = [each for each in session.streams if each.status == 200 and not each.error]
    if not streams:
        raise ProbeSkipped("nothing was streamed")
    longest = max(each.gap_s for each in streams)
    found = f"no byte came for up to {longest:.2g} s in {plural(len(streams), 'stream')}"
    if broken := broken_timeouts(longest):
        return ProbeWarning(f"{found}: {broken}")
    # Some servers send no byte before a reply is complete; part of that silence is the prompt's, as in other streams
    pauses = [max(each.gap_s, each.first_s) for each in streams]
    held = {part: [buffered_tokens(each, part) for each in streams] for part in LONG_PARTS}
    usual = [pause for pause, *sizes in zip(pauses, *held.values(), strict=True) if not any(sizes)]
    wait_s = statistics.median(usual) if usual else min(each.first_s for each in streams)
    for part, tokens in LONG_PARTS.items():
        size, pause_s = max(zip(held[part], pauses, strict=True))  # the longest one shows the speed best
        if not size:
            continue
        least, most = (f"{tokens * max(0.0, pause_s - wait) / size:.0f}" for wait in (wait_s, 0.0))
        seconds = most if most == least else f"{least} to {most}"
        silent = f"{part} come in one piece when they are complete: {seconds} s of silence for {tokens:,} tokens"
        silent += f", as one of {size} tokens took {pause_s:.2g} s"
        if broken := broken_timeouts(float(least)):
            return ProbeWarning(f"{silent}: {broken}")
        found += f"; {silent}"
    return found


def broken_timeouts(seconds: float) -> str:
    """Return who gives up within so much silence, or ""; of others only the time can be stated."""
    rows = catalogue.load_table("client_timeouts")["client"]
    names = [f"{row['name']} after {row['idle_s']} s ({row['raise']})" for row in rows if row["idle_s"] <= seconds]
    others = f"and any other client or proxy with an idle timeout below {seconds:.0f} s"
    return f"{', '.join(names)}, {others} gives up" if names else ""


def buffered_tokens(exchange: HttpExchange, part: str) -> int:
    """Tokens, about, of arguments or reasoning that came in one piece; 0 if they came as they were written."""
    sizes = [*map(len, PIECES[part].findall(exchange.response))]
    if not sizes or (most := max(sizes)) < ONE_PIECE * sum(sizes):
        return 0
    answer = parse_chat_stream(exchange)
    shown = len(answer.content + answer.reasoning + "".join(call.name + call.arguments for call in answer.calls))
    tokens = (answer.token_count("completion") or 0) * most / max(shown, most, 1)
    return round(tokens) if tokens >= MIN_TOKENS else 0


PROBES: Probes = {
    "same words": probe_same_words,
    "without options": probe_plain_stream,
    "in pieces": probe_pieces,
    "long answer": probe_long_answer,
}
