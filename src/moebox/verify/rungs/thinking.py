"""thinking: reasoning apart from content, on and off, in a stream and not; a schema holds after it too."""

from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.rungs.json_modes import constrained
from moebox.verify.trials import draw, judge, sure


async def apart(ask: Asker) -> str:
    """Asked to think, it thinks, and the answer stands apart from that."""
    thought: list[str] = []

    async def attempt() -> str:
        task = draw(ask, "sums", thinking=True)
        answer = await ask.ask(task)
        wrong = judge(task, answer)
        _thought(ask, answer)
        thought.append(answer.reasoning)
        return wrong

    await sure(attempt)
    return f"{len(thought[-1])} characters of reasoning"


async def apart_in_a_stream(ask: Asker) -> None:
    """The same in a stream: first the thoughts, then the answer."""

    async def attempt() -> str:
        task = draw(ask, "sums", thinking=True)
        answer = await ask.ask(task, stream=True)
        wrong = judge(task, answer)
        _thought(ask, answer)
        if not answer.reasoning_first:
            raise Failed("reasoning and content alternate in the stream")
        return wrong

    await sure(attempt)


async def off(ask: Asker) -> None:
    """Asked not to think, it does not, in a stream and without."""
    if not ask.template_arguments:
        raise Skipped("the server takes no chat_template_kwargs, so thinking cannot be turned off from here")
    if ask.options.thinking == "no":
        raise Skipped("this model is not expected to think")
    if "thinking" in ask.endpoint.model.lower():
        raise Skipped("this model always thinks")
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> str:
            task = draw(ask, "sums")
            answer = await ask.ask(task, stream=stream)
            if answer.reasoning.strip() and not answer.content.strip():
                raise Failed("thinking is off, and the whole answer lands in the reasoning field")
            if answer.reasoning.strip():
                raise Failed("thinking is off, yet reasoning came")
            return judge(task, answer)

        await sure(attempt)


async def schema_after_thinking(ask: Asker) -> None:
    """A JSON schema binds the answer that follows the thoughts."""
    if not ask.thinks:
        raise Skipped("no reasoning came when asked for")
    await sure(constrained(ask, "json_schema", thinking=True))
    await sure(constrained(ask, "json_schema", thinking=True, stream=True))


def _thought(ask: Asker, answer: Answer) -> None:
    """Failed or Skipped when no reasoning came."""
    if answer.reasoning.strip():
        ask.thinks = True
        return
    if ask.options.thinking == "yes":
        raise Failed("asked to think, but no reasoning came")
    if ask.options.thinking == "no":
        raise Skipped("this model is not expected to think")
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
)
