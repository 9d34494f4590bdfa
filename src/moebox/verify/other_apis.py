"""Anthropic's messages API and OpenAI's responses API: requests made from questions, and replies parsed and checked.

A reply, whole or streamed, becomes a ChatAnswer, so that the judges of chat completions read it. Of a response,
`incomplete` is the finish reason `length`, and `input_tokens` are prompt tokens.
"""

import json
from collections import Counter
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.loose import Json, as_object, as_text, drop_keys, get_object, get_objects, get_path, is_count
from moebox.phantom.question import Question, ToolCall
from moebox.stream.events import ANTHROPIC_INPUTS
from moebox.verify.completions import ChatAnswer, parse_reply
from moebox.verify.session import REJECTED_STATUSES, ProbeSkipped, error_text, raise_for_failure, transport_problem
from moebox.verify.trials import CheckSession, Request
from moebox.verify.violations import ReplyReader, UnreadableReply, parse_json_or

NOT_OFFERED = (403, 404, 405, 501)  # replies of a server without that API; 403 of some gateways
VERSION = "2023-06-01"  # the only value of anthropic-version in use
STOP_REASONS = (
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"),
    "model_context_window_exceeded",
)
# Types of deltas: the block that they belong to, and the field that holds the piece.
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool_use", "partial_json"),
}
# Deltas, and the type of item that they belong to.
PIECES = {"response.output_text.delta": "message", "response.function_call_arguments.delta": "function_call"}


def message_request(
    session: CheckSession, question: Question, *, stream: bool = False, turns: list[Any] | None = None
) -> Request:
    """The request of a question, or of `turns` in this API's blocks."""
    body = _common_fields(session, stream) | {"messages": turns or message_turns(question)}
    body["max_tokens"] = session.token_limit(question.max_tokens)
    if question.tools:
        named = {"name": "name", "description": "description", "input_schema": "parameters"}
        functions = [tool["function"] for tool in question.tools]
        body["tools"] = [{name: function[key] for name, key in named.items()} for function in functions]
    return body


def _common_fields(session: CheckSession, stream: bool) -> Request:
    fields = {"model": session.endpoint.model, "temperature": 0, "stream": stream}
    return {**fields, **session.template_arguments(thinking=False)}


def message_turns(question: Question) -> list[Any]:
    """The history of a question in this API's blocks; results of one round of calls are in one turn."""
    turns: list[Any] = []
    for turn in question.messages:
        if turn.get("tool_calls"):
            blocks = [
                {"type": "tool_use", "id": call["id"], "name": given["name"], "input": json.loads(given["arguments"])}
                for call in turn["tool_calls"]
                for given in [call["function"]]
            ]
            turns.append({"role": "assistant", "content": blocks})
        elif turn["role"] == "tool":
            if turns[-1]["role"] != "user" or isinstance(turns[-1]["content"], str):
                turns.append({"role": "user", "content": []})
            result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            turns[-1]["content"].append(result)
        else:
            turns.append(dict(turn))
    return turns


@parse_reply
def parse_message(reply: ReplyReader) -> ChatAnswer:
    """Check a message; that of a stream is assembled first, and the order of its events checked."""
    if reply.request.get("stream"):
        body = _assemble_message(reply)
    else:
        body = reply.parse_body("message", "content")
        _check_start(reply, body, least=1)
        reply.require("stop_sequence" in body, "the message has no stop_sequence", kind="reply-style")
    texts, calls, stop = {"text": "", "thinking": ""}, list[ToolCall](), body.get("stop_reason")
    for block in get_objects(body, "content"):
        kind = as_text(block.get("type"))
        reply.require(bool(kind), "a block without a type: {}", block)
        if kind in texts:
            text = block.get(kind)
            reply.require(isinstance(text, str), f"a {kind} block without {kind}: {{}}", block)
            texts[kind] += as_text(text)
        if kind == "thinking":
            reason = "a thinking block without a signature, which Anthropic's SDKs expect"
            reply.require(isinstance(block.get("signature"), str), reason, kind="reply-style")
        if kind == "tool_use":
            given = block.get("input")
            reply.require(isinstance(given, dict), "the input of a tool_use is {}, not an object", given)
            calls.append(reply.read_call(block.get("id"), block.get("name"), json.dumps(given)))
    reply.require(stop in STOP_REASONS, "stop_reason is {}", stop, kind="finish")
    unfounded = stop == "tool_use" and not calls
    reply.require(not unfounded, "stop_reason 'tool_use' without a tool_use block", kind="finish")
    good = not calls or stop in ("tool_use", "max_tokens")
    reply.require(good, "stop_reason {} with a tool_use block", stop, kind="finish")
    return ChatAnswer(
        id=as_text(body.get("id")),
        content=texts["text"],
        reasoning=texts["thinking"],
        calls=reply.check_ids(calls),
        finish_reason=str(stop or ""),
        usage=get_object(body, "usage"),
    )


def _check_start(reply: ReplyReader, body: Request, *, least: int) -> None:
    """Check the fields that a message begins with, and its counts."""
    reply.check_header(body, type="message", role="assistant")
    usage = body.get("usage")
    if reply.require(isinstance(usage, dict), "usage is {}", usage, kind="usage"):
        for key in ("input_tokens", "output_tokens"):
            number = as_object(usage).get(key)
            reply.require(is_count(number) and number >= least, f"usage counts {{}} {key}", number, kind="usage")


def _assemble_message(reply: ReplyReader) -> Request:
    require = reply.require
    message, ended, usage = Request(), Request(), Request()
    blocks: list[Request] = []
    pieces: list[str] = []  # of each block
    open_blocks: set[int] = set()
    order: list[str] = []
    for kind, body in reply.read_events(strict=True):
        if kind == "ping":
            continue
        require("message_stop" not in order, "an event after message_stop")
        order.append(kind)
        require("message_start" in order, f"{kind} before message_start")
        index = number if is_count(number := body.get("index")) else -1
        is_open = index in open_blocks
        if kind == "message_start":
            message = as_object(body.get("message"))
            _check_start(reply, message, least=0)
            require(message.get("content") == [], "message_start's content is not an empty list")
            usage = dict(get_object(message, "usage"))
        elif kind == "content_block_start":
            block = body.get("content_block")
            require(index == len(blocks), f"block {len(blocks)} begins with the index {{}}", number)
            require(isinstance(block, dict), "a content_block is {}", block)
            open_blocks.add(len(blocks))
            blocks.append(dict(as_object(block)))
            pieces.append("")
        elif kind == "content_block_delta":
            if require(is_open, "a piece for block {}, which is not open", number):
                pieces[index] += _read_piece(reply, blocks[index], get_object(body, "delta"))
        elif kind == "content_block_stop":
            require(is_open, "the block {} ends, which is not open", number)
            open_blocks.discard(index)
        elif kind == "message_delta":
            ended, counts = as_object(body.get("delta")), get_object(body, "usage")
            made = counts.get("output_tokens")
            require(is_count(made) and made > 0, "message_delta counts {} output_tokens", made, kind="usage")
            usage |= counts
    if not order:
        raise UnreadableReply("an empty stream")
    require(order[-1] == "message_stop", f"the stream ends with {order[-1]}, not message_stop")
    require(not open_blocks, "a content block is opened and never closed")
    require("message_delta" in order, "no message_delta, so the stop reason is unknown", kind="finish")
    require(order.count("message_start") < 2, "more than one message_start")
    require(any(map(usage.get, ANTHROPIC_INPUTS)), "the stream counts no input_tokens at all", kind="usage")
    for block, text in zip(blocks, pieces, strict=True):
        if block.get("type") == "tool_use":
            block["input"] = parse_json_or(text) if text else block.get("input")
        else:
            key = "thinking" if block.get("type") == "thinking" else "text"
            block[key] = as_text(block.get(key)) + text
    return {**message, "content": blocks, "stop_reason": ended.get("stop_reason"), "usage": usage}


def _read_piece(reply: ReplyReader, block: Request, delta: Json) -> str:
    """Check a piece of a block, and return its text."""
    kind = str(delta.get("type"))
    if kind == "signature_delta":
        block["signature"] = delta.get("signature")
    if kind not in DELTAS:
        reply.require(kind in ("signature_delta", "citations_delta"), "a delta of type {}", kind, kind="reply-style")
        return ""
    block_type, field = DELTAS[kind]
    opened, piece = block.get("type"), delta.get(field)
    reply.require(opened == block_type, f"a {kind} in a block of type {{}}", opened)
    reply.require(isinstance(piece, str), f"a {kind} without {field}")
    return as_text(piece)


def response_request(session: CheckSession, question: Question, *, stream: bool = False, **more: object) -> Request:
    limit = session.token_limit(question.max_tokens)
    body = {"input": input_items(question), "max_output_tokens": limit, "store": False, **more}
    if question.tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in question.tools]
    return _common_fields(session, stream) | body


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


def _item_id(item: Json) -> str:
    return as_text(item.get("id")) or as_text(item.get("call_id"))  # llama.cpp's calls have no id


@parse_reply
def parse_response(reply: ReplyReader) -> ChatAnswer:
    """Check a response; of a stream the last event has it, and the events before must add up to it."""
    if not reply.request.get("stream"):
        return _read_response(reply, reply.parse_body("response", "output"))
    require, order, numbers = reply.require, list[str](), list[int]()
    open_items: dict[str, str] = {}  # by id: the type of an item that is not done
    announced: Counter[str] = Counter()  # content parts by id of item
    done: list[str] = []
    pieces = dict.fromkeys(PIECES, "")
    final = Request()
    for kind, body in reply.read_events(strict=False):
        require(not final, f"{kind} after the end of the response")
        require(bool(order) or kind == "response.created", f"the stream begins with {kind}")
        numbers += filter(is_count, [body.get("sequence_number")])
        order.append(kind)
        item, owner = get_object(body, "item"), as_text(body.get("item_id"))
        if kind == "response.output_item.added":
            open_items[_item_id(item)] = as_text(item.get("type"))
        elif kind == "response.content_part.added":
            announced[owner] += 1
        elif kind == "response.output_item.done":
            done.append(_item_id(item))
            known = open_items.pop(_item_id(item), "") == item.get("type")
            require(known, "an item ends that is not open: {}", item)
        elif kind in PIECES:
            is_open = open_items.get(owner) == PIECES[kind]
            require(is_open, f"{kind} for an item that is not open: {{}}", body.get("item_id"))
            pieces[kind] += as_text(body.get("delta"))
            part = body.get("content_index")
            known = not is_count(part) or owner not in announced or part < announced[owner]
            require(known, "a piece belongs to a content_index that was not announced")
            placed = is_count(body.get("output_index"))
            require(placed, "pieces without output_index, by which SDKs assemble a stream", kind="reply-style")
        elif kind in ("response.completed", "response.incomplete"):
            final = as_object(body.get("response"))
            require(kind == f"response.{final.get('status')}", f"{kind} with {final.get('status')}")
    require(numbers == sorted(set(numbers)), "sequence_number does not grow with each event")
    require(not open_items, "an item is opened and never done")
    if not final:
        raise UnreadableReply(f"the stream ends with {order[-1] if order else 'nothing'}, not completed")
    answer = _read_response(reply, final)
    same = [*map(_item_id, get_objects(final, "output"))] == done
    require(same, "the items of the last event have other ids than those that came", kind="reply-style")
    arguments = "".join(call.arguments for call in answer.calls)
    for came, text in zip(pieces.values(), (answer.content, arguments), strict=True):
        require(came.strip() == text.strip(), "the pieces are {}, the whole is {}", came[-40:], text[-40:])
    return answer


def _read_response(reply: ReplyReader, body: Request) -> ChatAnswer:
    """Check the fields of a complete response, and build the answer from its items."""
    require, status = reply.require, body.get("status")
    reply.check_header(body, "created_at", object="response")
    texts, thoughts, calls = "", "", list[ToolCall]()
    for item in get_objects(body, "output"):
        kind = as_text(item.get("type"))
        require(bool(kind), "an item without a type: {}", item)
        parts = get_objects(item, "content")
        if kind == "message":
            require(item.get("role") == "assistant", "a message's role: {}", item)
            written = [part.get("text", part.get("refusal")) for part in parts]
            require(set(map(type, written)) <= {str}, "a part without text: {}", parts)
            texts += "".join(map(as_text, written))
        elif kind == "reasoning":
            thoughts += "".join(as_text(part.get("text")) for part in parts or get_objects(item, "summary"))
        elif kind == "function_call":
            calls.append(reply.read_call(item.get("call_id"), item.get("name"), item.get("arguments")))
    cut = get_path(body, "incomplete_details.reason")
    require(status in ("completed", "incomplete"), "status is {}", status, kind="finish")
    require((status == "incomplete") == bool(cut), "status {} with the reason {}", status, cut, kind="finish")
    usage = get_object(body, "usage")
    names = {"prompt": "input", "completion": "output", "total": "total"}
    counts = {f"{name}_tokens": usage.get(f"{other}_tokens") for name, other in names.items()}
    if require(bool(usage), "the response has no usage", kind="usage"):
        reply.check_usage({key: value for key, value in counts.items() if value is not None})
    return ChatAnswer(
        id=as_text(body.get("id")),
        content=texts,
        reasoning=thoughts,
        calls=reply.check_ids(calls),
        finish_reason="length" if status == "incomplete" else "tool_calls" if calls else "stop",
        usage=counts,
    )


async def post_request(session: CheckSession, body: Request, path: str) -> HttpExchange:
    """POST to `messages` or `responses`. Raise ProbeSkipped if that API is not served."""
    key = {"x-api-key": session.endpoint.key} if session.endpoint.key else {}
    headers = {"anthropic-version": VERSION, **key} if path == "messages" else {}
    exchange = await session.post(f"{session.endpoint.base_url}/{path}", body, headers=headers)
    if exchange.status in NOT_OFFERED:
        raise ProbeSkipped(f"the server does not offer /v1/{path}")
    return exchange


async def send_request(session: CheckSession, body: Request, *, allow_marks: bool = False) -> ChatAnswer:
    """Send a request to the API that has its fields, and count the violations of the reply.

    Raise ProbeSkipped if the API is not served, ProbeFailed if the reply cannot be parsed. `allow_marks`: the question
    may make a model write template marks.
    """
    path = "messages" if "messages" in body else "responses"
    exchange, stream = await post_request(session, body, path), bool(body["stream"])
    if exchange.status in (400, 422) and "chat_template_kwargs" in body:
        body = drop_keys(body, "chat_template_kwargs")
        exchange = await post_request(session, body, path)
    session.skip_if_context_too_short(exchange)
    if exchange.status in REJECTED_STATUSES and "tools" in body:
        plain = drop_keys(body, "tools", "tool_choice")
        if (await post_request(session, plain, path)).status == 200:
            text = f"the server does not accept tools at /v1/{path}: HTTP {exchange.status}{error_text(exchange)}"
            raise ProbeSkipped(text, "anthropic" if path == "messages" else path)
    session.failures.add("transport", transport_problem(exchange), stream=stream)
    raise_for_failure(exchange)
    answer = parse_message(exchange) if path == "messages" else parse_response(exchange)
    session.count_violations(answer, stream=stream, allow_marks=allow_marks)
    return answer
