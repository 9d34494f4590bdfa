"""Silence inside streams: how long no byte comes, why, and whose timeouts that breaks."""

from moebox.core import catalogue
from moebox.core.verdict import HttpExchange
from moebox.stream.sse import parse_events
from moebox.units import plural
from moebox.verify.completions import parse_chat_stream, reasoning_text
from moebox.verify.session import ProbeSkipped, ProbeWarning
from moebox.verify.trials import CheckSession
from moebox.verify.violations import object_of, objects_of, parse_strict_json, text_of

MIN_TOKENS = 32  # of a text in one piece: more than draft tokens or a stream interval of some servers explain
ONE_PIECE = 0.9  # of a text in one piece: the parser waits for its end
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
    for part, tokens in LONG_TOKENS.items():
        # The silence before the first byte counts too: some servers begin a reply when it is complete
        sizes = [(size, max(each.gap_s, each.first_s)) for each in streams if (size := buffered_tokens(each, part))]
        if not sizes:
            continue
        size, pause_s = max(sizes)  # the longest one shows the speed best
        seconds = tokens * pause_s / size
        silent = f"{part} come in one piece when they are complete: {seconds:.0f} s of silence for {tokens:,} tokens"
        silent += f", as one of {size} tokens took {pause_s:.2g} s"
        if broken := broken_timeouts(seconds):
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
    pieces: list[int] = []
    for _, data in parse_events(exchange.response):
        choices = objects_of(object_of(parse_strict_json(data)).get("choices")) if data.strip() != "[DONE]" else []
        for delta in (object_of(choice.get("delta")) for choice in choices):
            calls = [object_of(call.get("function")) for call in objects_of(delta.get("tool_calls"))]
            texts = (
                [text_of(call.get("arguments")) for call in calls] if part == "tool calls" else [reasoning_text(delta)]
            )
            pieces += [len(text) for text in texts if text]
    answer = parse_chat_stream(exchange)
    parts = (answer.content, answer.reasoning, *(call.name + call.arguments for call in answer.calls))
    tokens = (answer.token_count("completion") or 0) * max(pieces, default=0) / (sum(map(len, parts)) or 1)
    whole = max(pieces, default=0) >= ONE_PIECE * sum(pieces)
    return round(tokens) if whole and tokens >= MIN_TOKENS else 0
