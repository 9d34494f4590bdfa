"""Conversations with tools: turns made from a server's own calls, and histories that no well-behaved client sends."""

import json
from typing import Any

from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeFailed, error_text
from moebox.verify.breach import parse_strict_json
from moebox.verify.trials import draw_question, require_answer


def calls_turn(answer: ChatAnswer) -> dict[str, object]:
    """The assistant's turn that made these calls, as clients send it back."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    said: dict[str, object] = {"role": "assistant", "content": answer.content or None}  # null, as SDKs send it
    thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}  # Kimi wants its thoughts back
    return said | thought | {"tool_calls": calls}


def result_turns(answer: ChatAnswer, result: Any, *, named: bool = True) -> list[dict[str, object]]:
    """The same result for each call; `named` as some templates like it, for OpenAI's SDKs send no name."""
    content = json.dumps(result)
    rows: list[dict[str, object]] = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content} for call in answer.calls
    ]
    return rows if named else [{key: row[key] for key in row if key != "name"} for row in rows]


async def probe_malformed_history(session: CheckSession) -> str:
    """Broken arguments, a result for a call that never was, a call without a name: each gets some answer."""
    seen = []
    for title, turns in _histories().items():
        task = draw_question(session, "tool_call")
        request = session.chat_request([*turns, *task.messages], tools=list(task.tools), max_tokens=32)
        exchange = await session.client.post(f"{session.endpoint.base_url}/chat/completions", request)
        session.keep_evidence(exchange)
        if exchange.error:
            raise ProbeFailed(f"{title}: {exchange.error}")
        try:
            parse_strict_json(exchange.response)
        except ValueError:
            raise ProbeFailed(f"{title}: HTTP {exchange.status} with something that is not JSON") from None
        failed = f"{title}: HTTP {exchange.status} for a client's mistake{error_text(exchange)}"
        session.failures.expect("errors", exchange.status < 500, failed)
        seen.append(str(exchange.status))
        await require_answer(session, f"{title}: the next, ordinary question got an empty answer")
    return f"answered {', '.join(seen)}"


def _histories() -> dict[str, list[dict[str, object]]]:
    def call(name: str | None, arguments: str) -> dict[str, object]:
        function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
        return {"id": "functions.get_weather:0", "type": "function", "function": function}

    question: dict[str, object] = {"role": "user", "content": "What is the weather in Oslo?"}
    result: dict[str, object] = {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "{}"}

    def made(calls: dict[str, object]) -> dict[str, object]:
        return {"role": "assistant", "content": "", "tool_calls": [calls]}

    return {
        "arguments cut in half": [question, made(call("get_weather", '{"city": "Os')), result],
        "a result without a call": [question, {**result, "tool_call_id": "functions.never:7"}],
        "a call without a name": [question, made(call(None, "{}")), result],
    }
