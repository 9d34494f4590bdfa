"""thinking: reasoning apart from content, on and off, in a stream and not; a schema holds after it too."""

from moebox.phantom.tasks import Reply
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung
from moebox.verify.rungs.json_modes import constrained
from moebox.verify.trials import Questions, Trial, draw, right_if, trials, wrong

LEAST_SHARED = 30  # characters of reasoning that stand in the answer too before they are a leak


async def apart(ask: Asker) -> str:
    """Asked to think, it thinks, and the answer stands apart from that."""
    return await _apart(ask, stream=False)


async def apart_in_a_stream(ask: Asker) -> str:
    """The same in a stream: first the thoughts, then the answer."""
    return await _apart(ask, stream=True)


async def _apart(ask: Asker, *, stream: bool) -> str:
    lengths: list[int] = []

    async def attempt() -> Trial:
        task = draw(ask, "sums", thinking=True)
        answer = await ask.ask(task, stream=stream)
        _thought(ask, answer)
        lengths.append(len(answer.reasoning))
        return wrong(mixed(answer))

    await trials(ask, "reasoning" + STREAMED * stream, attempt, ask.options.share(0.67))
    asked = Questions(ask, lambda: draw(ask, "sums", thinking=True), stream=stream)
    await trials(ask, "answer" + STREAMED * stream, asked, ask.options.share(0.34))
    return f"{lengths[-1]} characters of reasoning"


def mixed(answer: Answer) -> str:
    """ "" or how reasoning and answer run into each other."""
    thought, said = answer.reasoning.strip(), answer.content.strip()
    if not said and not answer.calls and answer.finish == "stop":
        return f"only reasoning came, no answer: …{thought[-60:]!r}"
    if len(thought) >= LEAST_SHARED and thought[:LEAST_SHARED] in said:
        return f"the reasoning stands in the answer too: {said[:80]!r}"
    return "" if answer.reasoning_first else "reasoning and content alternate in the stream"


def spilled(thinking: Reply, plain: Reply) -> str:
    """ "" or how an answer begins with thoughts that belong apart, by what is said to the same without thinking."""
    long, end = thinking.content.strip(), plain.content.strip()
    more = len(long) - len(end)
    if thinking.reasoning or not end or more < LEAST_SHARED:
        return ""
    return f"thoughts stand in the answer, with no reasoning apart: {long[:60]!r}" if long.endswith(end) else ""


def kept_on(ask: Asker) -> str:
    """ "" or why thinking cannot be turned off from here."""
    if not ask.template_arguments:
        return "the server takes no chat_template_kwargs, so thinking cannot be turned off from here"
    if ask.options.thinking == "no":
        return "this model is not expected to think"
    return "this model always thinks" if "thinking" in ask.endpoint.model.lower() else ""


async def off(ask: Asker) -> None:
    """Asked not to think, it does not, in a stream and without, though it was asked to just before."""
    if why := kept_on(ask):
        raise Skipped(why)
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> Trial:
            if ask.thinks:
                await ask.ask(draw(ask, "sums", thinking=True), stream=stream)
            answer = await ask.ask(draw(ask, "sums"), stream=stream)
            if answer.reasoning.strip() and not answer.content.strip():
                return wrong("thinking is off, and the whole answer lands in the reasoning field")
            return right_if(not answer.reasoning.strip(), "thinking is off, yet reasoning came")

        await trials(ask, "reasoning" + STREAMED * stream, attempt, ask.options.share(0.34))
        asked = Questions(ask, lambda: draw(ask, "sums"), stream=stream)
        await trials(ask, "answer" + STREAMED * stream, asked, ask.options.share(0.17))


async def schema_after_thinking(ask: Asker) -> None:
    """A JSON schema binds the answer that follows the thoughts."""
    ask.need_thinking()
    for stream in (False, True):
        asked = constrained(ask, "json_schema", thinking=True, stream=stream)
        await trials(ask, "json" + STREAMED * stream, asked, ask.options.share(0.34))


def _thought(ask: Asker, answer: Answer) -> None:
    """Failed or Skipped when no reasoning came."""
    if answer.reasoning.strip():
        ask.thinks = True
        return
    if ask.options.thinking == "no":
        raise Skipped("this model is not expected to think")
    if ask.options.thinking == "yes" or ask.thinks:
        raise Failed("asked to think, but no reasoning came")
    raise Skipped("no reasoning came when asked for: a model that does not think, or a missing reasoning parser")


RUNG = Rung(
    name="thinking",
    about="reasoning apart from the answer, on and off",
    probes={
        "apart": apart,
        "apart in a stream": apart_in_a_stream,
        "off": off,
        "schema after thinking": schema_after_thinking,
    },
    cost=52,
)
