"""A seventh family of broken servers, each from a public report of wrong replies; written before scoring the checks.

`vllm#47901` stands for issue or pull request 47901 of vLLM. Those in `SOME` are broken in one request of three.
"""

import asyncio
import copy
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, Stream, calls, content, error, pieces, says, thinking
from .bend_more import each, message, request
from .chat import Made
from .faults import Fault
from .wire import Request, Response


def _calls_in(chunk: Body) -> list[Body]:
    return chunk["choices"][0]["delta"].get("tool_calls") or [] if chunk["choices"] else []


def _without_arguments(lost: Callable[[list[ToolCall], int], bool]) -> Callable[[Made], Stream]:
    """A stream in which some calls have no arguments; which ones depends on all calls."""

    async def send(made: Made) -> Stream:
        for chunk in chat.chunks(made):
            for item in _calls_in(chunk):
                if lost(list(made.calls), item["index"]):
                    item["function"]["arguments"] = ""
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"

    return send


def empty_calls_lost(sent: list[Body]) -> list[Body]:
    """A call without arguments never arrives in a stream; the finish reason says that there was one."""
    texts: dict[int, str] = {}
    for chunk in sent:
        for item in _calls_in(chunk):
            texts[item["index"]] = texts.get(item["index"], "") + item["function"].get("arguments", "")
    gone = {index for index, text in texts.items() if text.strip() == "{}"}
    return [chunk for chunk in sent if not any(item["index"] in gone for item in _calls_in(chunk))]


def thoughts_cut(sent: list[Body]) -> list[Body]:
    """The last pieces of streamed reasoning are lost when the answer begins."""
    places = [at for at, chunk in enumerate(sent) if chunk["choices"] and chunk["choices"][0]["delta"].get("reasoning")]
    return [chunk for at, chunk in enumerate(sent) if at not in places[-4:]]


def after_quote_lost(sent: list[Body]) -> list[Body]:
    """The piece after a quotation mark is lost."""
    kept, before = [], ""
    for chunk in sent:
        words = content(chunk)
        if words and before.endswith('"'):
            before = words
            continue
        before = words or before
        kept.append(chunk)
    return kept


def some_whole(sent: list[Body]) -> list[Body]:
    """Now and then a chunk holds all words so far."""
    so_far, count = "", 0
    for chunk in sent:
        words = content(chunk)
        so_far += words
        count += bool(words)
        if words and count % 12 == 0:
            chunk["choices"][0]["delta"]["content"] = so_far
    return sent


def empty_finish(chunk: Body) -> None:
    """finish_reason is an empty string until the end."""
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or ""


def last_choice_finishes(sent: list[Body]) -> list[Body]:
    """Only the last of several choices has a finish_reason."""
    most = max(choice["index"] for chunk in sent for choice in chunk["choices"])
    return [
        chunk
        for chunk in sent
        if not any(choice["finish_reason"] and choice["index"] < most for choice in chunk["choices"])
    ]


def _formed(body: Body) -> bool:
    return bool(body.get("response_format")) and thinking(body)


def json_twice(reply: ModelReply, body: Body) -> ModelReply:
    """Under a schema it does not think, and says the JSON twice."""
    if not _formed(body):
        return reply
    return dataclasses.replace(reply, reasoning="", content=f"{reply.content}\n{reply.content}")


def no_thoughts_with_json(reply: ModelReply, body: Body) -> ModelReply:
    """A response format turns thinking off."""
    return dataclasses.replace(reply, reasoning="") if body.get("response_format") else reply


def first_key_free(reply: ModelReply, body: Body) -> ModelReply:
    """The grammar begins one key too late after reasoning."""
    if not _formed(body):
        return reply
    return dataclasses.replace(reply, content=re.sub(r'"(\w+)"', r'"the_\1"', reply.content, count=1))


def in_reasoning(body: Body) -> Body:
    """With a format the text comes as reasoning."""
    for item in body["output"]:
        if item["type"] == "message" and item["content"][0]["text"].startswith("{"):
            part = {"type": "reasoning_text", "text": item["content"][0]["text"]}
            item.update(type="reasoning", summary=[], content=[part])
    return body


def bare_calls(output: Body) -> None:
    """A call without an id and with empty arguments."""
    for call in output.get("tool_calls") or ():
        call["id"] = None
        call["function"]["arguments"] = ""


def channel_in_name(reply: ModelReply, body: Body) -> ModelReply:
    """In later turns of a conversation with tools a mark of the template stays in the name."""
    if not any(turn["role"] == "tool" for turn in body["messages"]):
        return reply
    named = tuple(dataclasses.replace(call, name=f"{call.name}<|channel|>commentary") for call in reply.calls)
    return dataclasses.replace(reply, calls=named)


def named_as_text(reply: ModelReply, body: Body) -> ModelReply:
    """A tool that is named gets plain words as arguments, in streams."""
    if not isinstance(body.get("tool_choice"), dict) or not body.get("stream"):
        return reply
    return dataclasses.replace(
        reply, calls=tuple(dataclasses.replace(call, arguments="Hello!") for call in reply.calls)
    )


async def required_fails(made: Made) -> Stream:
    """With tool_choice required the stream of a model that thinks ends in an error."""
    fails = made.request.get("tool_choice") == "required" and made.reasoning
    for chunk in chat.chunks(made):
        if fails and _calls_in(chunk):
            yield b'data: {"error": {"message": "list index out of range", "code": 500}}\n\n'
            break
        yield f"data: {json.dumps(chunk)}\n\n".encode()
        await asyncio.sleep(0)
    yield b"data: [DONE]\n\n"


def lists_as_text(call: ToolCall) -> ToolCall:
    """Lists and objects with quotes or line ends in them are encoded twice."""
    given = {
        key: json.dumps(value) if isinstance(value, list | dict) and re.search(r"\\[n\"]", json.dumps(value)) else value
        for key, value in json.loads(call.arguments).items()
    }
    return dataclasses.replace(call, arguments=json.dumps(given, ensure_ascii=False))


def sure_of_all(body: Body) -> None:
    """Each token has the log-probability 0, as its alternatives have."""
    for choice in body["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            token["logprob"] = 0.0
            for other in token["top_logprobs"]:
                other["logprob"] = 0.0


def summed_usage(sent: list[Body]) -> list[Body]:
    """The counts after each piece are added up."""
    for chunk in sent:
        if usage := chunk.get("usage"):
            many = usage["completion_tokens"] * (usage["completion_tokens"] + 1) // 2
            usage.update(completion_tokens=many, total_tokens=usage["prompt_tokens"] + many)
    return sent


def no_empty_reasoning(body: Body) -> Body:
    """An item of reasoning without text is refused."""
    items = body["input"] if isinstance(body.get("input"), list) else []
    if any(item.get("type") == "reasoning" and not item.get("content") for item in items):
        raise chat.Refused(400, "Cannot determine type of 'item'")
    return body


def words_and_thoughts(asked: Request, body: Body) -> Response | None:
    """A turn with words, thoughts and calls breaks the template."""
    for turn in body.get("messages") or ():
        if (
            isinstance(turn, dict)
            and turn.get("tool_calls")
            and turn.get("content")
            and (turn.get("reasoning_content") or turn.get("reasoning"))
        ):
            return error(500, "Cannot pass both content and thinking in an assistant message with tool calls!")
    return None


class FullContext:
    """After a reply that filled the context, the next request gets an error."""

    def __init__(self) -> None:
        self.full = False

    async def among(self, made: Made) -> Made:
        if self.full:
            self.full = False
            raise chat.Refused(500, "context shift is disabled")
        self.full = made.prompt_tokens + made.tokens > 0.8 * chat.CONTEXT
        return made


def fails_open(body: Body) -> None:
    """A pattern that the grammar cannot hold takes the whole schema with it."""
    if re.search(r'"pattern": "[^"]*[\\{]', json.dumps(body.get("response_format") or {})):
        body.pop("response_format")


def in_schema_order(reply: ModelReply, body: Body) -> ModelReply:
    """Optional keys that come after a later one of the schema are lost."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in body.get("tools") or ()}

    def ordered(call: ToolCall) -> ToolCall:
        schema = schemas.get(call.name, {})
        names, last, kept = list(schema.get("properties", {})), -1, {}
        for key, value in json.loads(call.arguments).items():
            place = names.index(key) if key in names else len(names)
            if place < last and key not in schema.get("required", ()):
                continue
            last, kept[key] = max(last, place), value
        return dataclasses.replace(call, arguments=json.dumps(kept, ensure_ascii=False))

    return dataclasses.replace(reply, calls=tuple(map(ordered, reply.calls)))


class CrowdedGrammar:
    """With four requests or more in flight, what a schema binds is cut in silence."""

    def __init__(self) -> None:
        self.flying = 0

    async def among(self, made: Made) -> Made:
        self.flying += 1
        await asyncio.sleep(0.03)
        crowd = self.flying >= 4
        self.flying -= 1
        if not crowd or not made.request.get("response_format"):
            return made
        return dataclasses.replace(made, content=made.content[: len(made.content) // 2])


def later_part(sent: list[Body]) -> list[Body]:
    """content_index counts on though there is one part."""
    number = 0
    for event in sent:
        if event["type"].endswith("text.delta"):
            number += 1
            event["content_index"] = number
    return sent


def other_ids(sent: list[Body]) -> list[Body]:
    """The items of the last event have other ids than those that were streamed."""
    last = copy.deepcopy(sent[-1])
    for item in last["response"]["output"]:
        item["id"] = f"{item['id']}-parsed-again"
        if "call_id" in item:
            item["call_id"] = f"{item['call_id']}-parsed-again"
    return [*sent[:-1], last]


def only_thinking(body: Body) -> Body:
    """The whole answer is a block of thinking."""
    blocks = [
        {"type": "thinking", "thinking": block["text"], "signature": ""} if block["type"] == "text" else block
        for block in body["content"]
    ]
    return {**body, "content": blocks}


def goes_on_after_call(reply: ModelReply, body: Body) -> ModelReply:
    """No stop token after a call: what the model writes next is in the content."""
    return dataclasses.replace(reply, content="assistantcommentary We wait for the result.") if reply.calls else reply


_full, _crowd = FullContext(), CrowdedGrammar()
_broken_lists: Any = calls(lists_as_text)

SEVENTH: dict[str, Fault] = {
    "arguments-lost-after-empty-call": Fault(
        stream=_without_arguments(lambda all, at: any(call.arguments == "{}" for call in all[:at]))
    ),  # vllm#47901
    "empty-call-not-streamed": Fault(stream=pieces(empty_calls_lost)),  # sglang#35564
    "first-arguments-lost": Fault(stream=_without_arguments(lambda all, at: len(all) > 1 and at == 0)),  # vllm#41967
    "last-thoughts-lost": Fault(stream=pieces(thoughts_cut)),  # vllm#42781
    "words-after-quotes-lost": Fault(stream=pieces(after_quote_lost)),  # vllm#52469
    "some-chunks-whole": Fault(stream=pieces(some_whole)),  # TensorRT-LLM#3280
    "finish-empty-string": Fault(stream=each(empty_finish)),  # sglang#3912
    "finish-of-last-choice": Fault(several_chunks=last_choice_finishes),  # sglang#8417
    "text-before-thoughts": Fault(reply=says(lambda text: f"thought\n{text}", _formed)),  # vllm#50938
    "json-twice-after-thoughts": Fault(reply=json_twice),  # vllm#54881
    "json-turns-thinking-off": Fault(reply=no_thoughts_with_json),  # vllm#47027
    "first-key-free-after-thoughts": Fault(reply=first_key_free),  # vllm#44441
    "responses-format-in-reasoning": Fault(response=in_reasoning),  # vllm#44012
    "calls-without-id": Fault(whole=message(bare_calls)),  # vllm-ascend#11788
    "channel-in-name": Fault(reply=channel_in_name),  # openai/harmony#114, in vLLM
    "named-arguments-as-words": Fault(reply=named_as_text),  # vllm#13078
    "required-fails-in-streams": Fault(stream=required_fails),  # vllm#49216
    "lists-with-quotes-as-text": Fault(reply=_broken_lists),  # sglang#12456
    "logprobs-all-zero": Fault(whole=lambda body, made: sure_of_all(body) or body, stream=each(sure_of_all)),
    # llama.cpp#27972
    "streamed-usage-summed": Fault(stream=pieces(summed_usage)),  # vllm-omni#2313
    "responses-empty-reasoning-refused": Fault(response_request=no_empty_reasoning),  # llama.cpp#29159
    "words-and-thoughts-break-history": Fault(gate=words_and_thoughts),  # llama.cpp#17040
    "full-context-breaks-the-next": Fault(among=_full.among),  # llama.cpp#16983
    "schema-fails-open": Fault(request=request(fails_open)),  # llama.cpp#19051
    "optional-keys-out-of-order-lost": Fault(reply=in_schema_order),  # llama.cpp#15216
    "schema-cut-in-a-crowd": Fault(among=_crowd.among),  # vllm#49694
    "responses-content-index-counts": Fault(response_events=later_part),  # vllm#45742
    "responses-other-ids-at-the-end": Fault(response_events=other_ids),  # vllm#38227
    "anthropic-only-thinking": Fault(message=only_thinking),  # QwenLM/Qwen3.8#162, in vLLM
    "goes-on-after-calls": Fault(reply=goes_on_after_call),  # TensorRT-LLM#10651
}
SOME = ("calls-without-id", "words-after-quotes-lost", "some-chunks-whole")
