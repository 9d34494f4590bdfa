"""limits: stop strings stop, max_tokens ends, and a prompt that is too long is refused politely."""

from moebox.verify.answer import strict_json
from moebox.verify.ask import Asker, Failed, Skipped, said
from moebox.verify.rung import Rung
from moebox.verify.trials import draw, no_leak, sure

LAST_SHOWN = "11"  # stands before the stop string, whatever stands between numbers
STOP = "12"
FEW = 8  # tokens, for an answer that wants many more
CHARS_PER_TOKEN = 12  # more than any tokenizer packs into one token of such words, so the text is too long for certain


async def stop_string(ask: Asker) -> None:
    """The answer ends before the stop string, in a stream and without."""
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> str:
            task = draw(ask, "count", start=1, end=30)
            answer = await ask.ask(task, stream=stream, stop=[STOP])
            no_leak(answer)
            how = "streamed" if stream else "whole"
            if STOP in answer.content or "13" in answer.content:
                raise Failed(f"{how}: went on past the stop string {STOP!r}: {answer.content[-40:]!r}")
            if answer.finish != "stop":
                raise Failed(f"{how}: finish_reason {answer.finish!r} at a stop string")
            ends = answer.content.rstrip(" ,.\n").endswith(LAST_SHOWN)
            return "" if ends else f"{how}: does not end with {LAST_SHOWN} before the stop: {answer.content[-40:]!r}"

        await sure(attempt)


async def max_tokens(ask: Asker) -> None:
    """The answer ends at max_tokens and says so."""
    for stream in (False, True):
        task = draw(ask, "story")
        answer = await ask.ask(task, stream=stream, max_tokens=FEW, exact=True)
        how = "streamed" if stream else "whole"
        if answer.finish != "length":
            raise Failed(f"{how}: finish_reason {answer.finish!r} after {FEW} tokens of a story")
        made = answer.usage.get("completion_tokens")
        if isinstance(made, int) and made > FEW:
            raise Failed(f"{how}: {made} tokens although {FEW} were the limit")


async def too_long(ask: Asker) -> str:
    """A prompt beyond the context gets a 4xx with a message, and the server lives on."""
    limit = ask.limit or ask.options.context
    if not limit:
        raise Skipped("the server does not say how long a prompt may be")
    text = "lantern orchard thimble " * (limit * CHARS_PER_TOKEN // 24)
    exchange = await ask.send(ask.body([{"role": "user", "content": text}], max_tokens=8))
    if exchange.error:
        raise Failed(f"a prompt beyond {limit:,} tokens: {exchange.error}")
    if exchange.status == 200:
        told = ask.read(exchange, stream=False).usage.get("prompt_tokens")
        raise Failed(f"a prompt far beyond {limit:,} tokens was taken (the server says it read {told}): cut in silence")
    if not 400 <= exchange.status < 500:
        raise Failed(f"a prompt beyond {limit:,} tokens: HTTP {exchange.status}{said(exchange)}")
    try:
        strict_json(exchange.response)
    except ValueError:
        raise Failed(f"HTTP {exchange.status} without an explanation in JSON") from None
    after = await ask.ask(draw(ask, "secret"))
    if not (after.content or after.reasoning):
        raise Failed("after the refusal, an ordinary question got an empty answer")
    return f"HTTP {exchange.status}{said(exchange)}"


RUNG = Rung(
    name="limits",
    about="stop strings, max_tokens, over-long prompts",
    probes={"stop string": stop_string, "max_tokens": max_tokens, "too long": too_long},
)
