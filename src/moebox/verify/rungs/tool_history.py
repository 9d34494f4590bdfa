"""A tool history that no well-behaved client would send: an error is fine, a crash is not."""

from typing import Any

from moebox.verify.answer import strict_json
from moebox.verify.ask import Asker, Failed
from moebox.verify.trials import draw


async def malformed(ask: Asker) -> str:
    """Broken arguments, a result for a call that never was, a call without a name: each gets some answer."""
    seen = []
    for title, turns in _histories(ask).items():
        task = draw(ask, "tool_call")
        request = ask.body([*turns, *task.messages], tools=list(task.tools), max_tokens=32)
        exchange = await ask.send(request)
        if exchange.error:
            raise Failed(f"{title}: {exchange.error}")
        try:
            strict_json(exchange.response)
        except ValueError:
            raise Failed(f"{title}: HTTP {exchange.status} with something that is not JSON") from None
        seen.append(str(exchange.status))
        after = await ask.ask(draw(ask, "secret"))  # it must live on
        if not (after.content or after.reasoning):
            raise Failed(f"{title}: the next, ordinary question got an empty answer")
    return f"answered {', '.join(seen)}"


def _histories(ask: Asker) -> dict[str, list[dict[str, Any]]]:
    def call(name: str | None, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
        return {"id": "functions.get_weather:0", "type": "function", "function": function}

    question = {"role": "user", "content": "What is the weather in Oslo?"}
    result = {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "{}"}

    def turn(made: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": "", "tool_calls": [made]}

    return {
        "arguments cut in half": [question, turn(call("get_weather", '{"city": "Os')), result],
        "a result without a call": [question, {**result, "tool_call_id": "functions.never:7"}],
        "a call without a name": [question, turn(call(None, "{}")), result],
    }
