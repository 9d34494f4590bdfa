"""Silence inside streams: how long no byte comes, why, and whose timeouts that breaks."""

import re
import statistics

from moebox.core import catalogue
from moebox.core.verdict import HttpExchange
from moebox.units import plural
from moebox.verify.completions import parse_chat_stream
from moebox.verify.session import ProbeSkipped, ProbeWarning
from moebox.verify.trials import CheckSession

MIN_TOKENS = 32  # of a text in one piece: more than draft tokens or a stream interval of some servers explain
ONE_PIECE = 0.9  # of a text in one piece: the parser waits for its end
PIECES = {
    part: re.compile(rf'"{key}":\s*"((?:[^"\\]|\\.)*)"')
    for part, key in (("tool calls", "arguments"), ("reasoning", "reasoning(?:_content)?"))
}
LONG_TOKENS = {"tool calls": 8000, "reasoning": 16_000}  # a file of about 30 kB; reasoning about a hard question


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
    held = {part: [buffered_tokens(each, part) for each in streams] for part in LONG_TOKENS}
    usual = [pause for pause, *sizes in zip(pauses, *held.values(), strict=True) if not any(sizes)]
    wait_s = statistics.median(usual) if usual else min(each.first_s for each in streams)
    for part, tokens in LONG_TOKENS.items():
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
    answer = parse_chat_stream(exchange)
    sizes = [len(piece) for piece in PIECES[part].findall(exchange.response)]
    most, calls = max(sizes, default=0), "".join(call.name + call.arguments for call in answer.calls)
    shown = len(answer.content + answer.reasoning + calls)
    tokens = (answer.token_count("completion") or 0) * most / max(shown, most, 1)
    return round(tokens) if most >= ONE_PIECE * sum(sizes) and tokens >= MIN_TOKENS else 0
