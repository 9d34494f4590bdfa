"""OpenAI's responses API: requests made from questions, and replies parsed and checked, whole or streamed.

A reply becomes a ChatAnswer, so that the judges of chat completions read it: `incomplete` is the finish reason
`length`, and `input_tokens` are prompt tokens.
"""

from dataclasses import replace

from moebox.core.verdict import HttpExchange
from moebox.phantom.question import Question, ToolCall
from moebox.stream.sse import parse_events
from moebox.verify.anthropic_api import parse_body, unreadable_answer
from moebox.verify.completions import ChatAnswer
from moebox.verify.trials import CheckSession, Request
from moebox.verify.violations import (
    Violations,
    check_model_name,
    check_usage,
    is_count,
    is_text,
    object_of,
    objects_of,
    parse_strict_json,
    shorten,
    stream_problem,
    text_of,
)

LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
# Deltas, and the type of item that they belong to.
DELTAS = {"response.output_text.delta": "message", "response.function_call_arguments.delta": "function_call"}


def response_request(session: CheckSession, question: Question, *, stream: bool = False, **more: object) -> Request:
    body: Request = {
        "model": session.endpoint.model,
        "input": input_items(question),
        "temperature": 0,
        "max_output_tokens": session.token_limit(question.max_tokens),
        "stream": stream,
        "store": False,
        **session.template_arguments(thinking=False),
        **more,
    }
    if question.tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in question.tools]
    return body


def input_items(question: Question) -> list[dict[str, object]]:
    """The turns of a question as items: calls and their results are items of their own."""
    items: list[dict[str, object]] = []
    for turn in question.messages:
        if turn["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]})
        elif turn.get("tool_calls"):
            items += [
                {"type": "function_call", "call_id": each["id"], **each["function"]} for each in turn["tool_calls"]
            ]
        else:
            items.append({"role": turn["role"], "content": turn["content"]})
    return items


async def send_response(session: CheckSession, body: Request, *, allow_marks: bool = False) -> ChatAnswer:
    """Send one request; see CheckSession.send_request."""
    parse = parse_response_stream if body["stream"] else parse_response
    return await session.send_request("responses", body, parse, allow_marks=allow_marks)


def _item_id(item: dict[str, object]) -> str:
    return text_of(item.get("id")) or text_of(item.get("call_id"))  # llama.cpp's calls have no id


def parse_response(exchange: HttpExchange) -> ChatAnswer:
    violations = Violations()
    body = parse_body(violations, exchange, "response", "output")
    model = text_of(object_of(exchange.request).get("model"))
    return _read_response(violations, body, model) if body else ChatAnswer(violations=violations.items)


def _read_response(violations: Violations, body: dict[str, object], model: str) -> ChatAnswer:
    """Check the fields of a complete response, and build the answer from its items."""
    identity, created, status = body.get("id"), body.get("created_at"), body.get("status")
    violations.require(is_text(identity), lambda: f"the response's id is {shorten(identity)}")
    violations.require(body.get("object") == "response", lambda: f"object is {shorten(body.get('object'))}")
    is_time = is_count(created) or isinstance(created, float)
    violations.require(is_time, lambda: f"created_at is {shorten(created)}, not a time in seconds")
    check_model_name(violations, body.get("model"), model)
    texts, thoughts, calls = "", "", list[ToolCall]()
    for item in objects_of(body.get("output")):
        kind = item.get("type")
        parts = objects_of(item.get("content"))
        if kind == "message":
            violations.require(item.get("role") == "assistant", f"a message's role: {shorten(item)}")
            written = [part.get("text", part.get("refusal")) for part in parts]
            violations.require(set(map(type, written)) <= {str}, f"a part without text: {shorten(parts)}")
            texts += "".join(map(text_of, written))
        elif kind == "reasoning":
            thoughts += "".join(text_of(part.get("text")) for part in parts or objects_of(item.get("summary")))
        elif kind == "function_call":
            call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
            named = is_text(call_id) and is_text(name)
            violations.require(named, f"a function_call without call_id or name: {shorten(item)}")
            as_text = isinstance(arguments, str)
            violations.require(as_text, f"arguments of a function_call are {shorten(arguments)}, not a string")
            calls.append(ToolCall(id=text_of(call_id), name=text_of(name), arguments=text_of(arguments)))
        violations.require(is_text(kind), f"an item without a type: {shorten(item)}")
    violations.require(len({call.id for call in calls}) == len(calls), "two function_calls share a call_id")
    cut = object_of(body.get("incomplete_details")).get("reason")
    violations.require(status in ("completed", "incomplete"), lambda: f"status is {shorten(status)}", "finish")
    violations.require((status == "incomplete") == bool(cut), f"status {status} with the reason {cut}", "finish")
    usage = object_of(body.get("usage"))
    names = {"prompt": "input", "completion": "output", "total": "total"}
    counts = {f"{name}_tokens": usage.get(f"{other}_tokens") for name, other in names.items()}
    if violations.require(bool(usage), "the response has no usage", "usage"):
        check_usage(violations, {key: value for key, value in counts.items() if value is not None})
    return ChatAnswer(
        id=text_of(identity),
        content=texts,
        reasoning=thoughts,
        calls=tuple(calls),
        finish_reason="length" if status == "incomplete" else "tool_calls" if calls else "stop",
        usage=counts,
        violations=violations.items,
    )


def parse_response_stream(exchange: HttpExchange) -> ChatAnswer:
    """Check the order of the events and what they add up to; the answer is that of the last event."""
    violations = Violations()
    if problem := stream_problem(exchange):
        return unreadable_answer(violations, problem)
    order: list[str] = []
    numbers: list[int] = []
    open_items: dict[str, str] = {}  # by id: the type of an item that is not done
    parts: dict[str, int] = {}  # by id of item: the content parts that were announced
    done: list[str] = []
    pieces = dict.fromkeys(DELTAS, "")
    final: dict[str, object] = {}
    for name, data in parse_events(exchange.response):
        if data.strip() == "[DONE]":
            continue  # SGLang ends so too
        try:
            body = object_of(parse_strict_json(data))
        except ValueError as error:
            return unreadable_answer(violations, f"an event is not JSON ({error}): {shorten(data)}")
        kind = text_of(body.get("type"))
        if kind in ("error", "response.failed"):
            return unreadable_answer(violations, f"an error inside the stream: {shorten(body, 160)}")
        violations.require(is_text(kind), f"an event without a type: {shorten(data)}")
        violations.require(name in ("", kind), f"an event called {name!r} is of type {kind!r}")
        violations.require(not final, f"{kind} after the end of the response")
        violations.require(bool(order) or kind == "response.created", f"the stream begins with {kind}")
        numbers += filter(is_count, [body.get("sequence_number")])
        order.append(kind)
        item = object_of(body.get("item"))
        identity = _item_id(item)
        if kind == "response.output_item.added":
            open_items[identity] = text_of(item.get("type"))
        elif kind == "response.content_part.added":
            parts[text_of(body.get("item_id"))] = parts.get(text_of(body.get("item_id")), 0) + 1
        elif kind == "response.output_item.done":
            done.append(identity)
            known = open_items.pop(identity, "") == item.get("type")
            violations.require(known, f"an item ends that is not open: {shorten(item)}")
        elif kind in DELTAS:
            is_open = open_items.get(text_of(body.get("item_id"))) == DELTAS[kind]
            violations.require(is_open, f"{kind} for an item that is not open: {shorten(body.get('item_id'))}")
            pieces[kind] += text_of(body.get("delta"))
            part = body.get("content_index", 0)
            known = not is_count(part) or part < parts.get(text_of(body.get("item_id")), part + 1)
            violations.require(known, "a piece belongs to a content_index that was not announced")
            placed = is_count(body.get("output_index"))
            violations.require(placed, "pieces without output_index, by which SDKs assemble a stream", "style")
        elif kind in LAST_EVENTS:
            final = object_of(body.get("response"))
            violations.require(kind == f"response.{final.get('status')}", f"{kind} with {final.get('status')}")
    violations.require(numbers == sorted(set(numbers)), "sequence_number does not grow with each event")
    violations.require(not open_items, "an item is opened and never done")
    if not final:
        return unreadable_answer(violations, f"the stream ends with {order[-1] if order else 'nothing'}, not completed")
    answer = _read_response(violations, final, text_of(object_of(exchange.request).get("model")))
    same = [*map(_item_id, objects_of(final.get("output")))] == done
    violations.require(same, "the items of the last event have other ids than those that came", "style")
    arguments = "".join(call.arguments for call in answer.calls)
    for came, text in zip(pieces.values(), (answer.content, arguments), strict=True):
        reason = f"the pieces are {shorten(came[-40:])}, the whole is {shorten(text[-40:])}"
        violations.require(came.strip() == text.strip(), reason)
    return replace(answer, stream=True, chunks=len(order), violations=violations.items)
