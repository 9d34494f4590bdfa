"""Ways for a server to go wrong, second family: functions that bend requests, replies, answers and streams."""

import asyncio
import copy
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from moebox.phantom.question import ModelReply

from . import chat
from .bend import Body, calls, content, pieces, thinking
from .chat import Made
from .wire import Response


def request(change: Callable[[Body], Any]) -> Callable[[Body], Body]:
    """A request that is changed before it is read."""

    def bend(body: Body) -> Body:
        if not isinstance(body.get("messages"), list):
            return body  # to be refused as it is
        mine = copy.deepcopy(body)
        change(mine)
        return mine

    return bend


def turns(change: Callable[[list[Body]], list[Body]]) -> Callable[[Body], Body]:
    """A conversation that is changed before it is read."""
    return request(lambda body: body.update(messages=change(body["messages"])))


def whole(change: Callable[[Body], Any]) -> Callable[[Body, Made], Body]:
    """A whole reply that is changed."""

    def bend(body: Body, made: Made) -> Body:
        change(body)
        return body

    return bend


def message(change: Callable[[Body], Any]) -> Callable[[Body, Made], Body]:
    """The message of a whole reply."""
    return whole(lambda body: change(body["choices"][0]["message"]))


def each(change: Callable[[Body], Any]) -> Any:
    """A stream whose chunks are changed one by one."""

    def all_of_them(sent: list[Body]) -> list[Body]:
        mine = [copy.deepcopy(chunk) for chunk in sent]
        for chunk in mine:
            change(chunk)
        return mine

    return pieces(all_of_them)


def deltas(change: Callable[[Body], Any]) -> Any:
    """The same, by their deltas."""

    def inner(chunk: Body) -> None:
        if chunk["choices"]:
            change(chunk["choices"][0]["delta"])

    return each(inner)


def call_deltas(change: Callable[[Body], Any]) -> Any:
    """The same, by their pieces of tool calls."""
    return deltas(lambda delta: [change(item) for item in delta.get("tool_calls", ())])


def mojibake(text: str) -> str:
    """UTF-8 read as Latin-1."""
    return text.encode().decode("latin-1")


def plain_part(turn: Body) -> Body:
    """Of several parts the first."""
    return {**turn, "content": turn["content"][0]["text"]} if isinstance(turn.get("content"), list) else turn


def hole(turn: Body) -> Body:
    """The middle fifth of a long text is not read."""
    text = turn.get("content")
    if not isinstance(text, str) or len(text) < 4000:
        return turn
    fifth = len(text) // 5
    return {**turn, "content": text[: 2 * fifth] + text[3 * fifth :]}


def duplicated(sent: list[Body]) -> list[Body]:
    """One chunk of words comes twice."""
    spoken = [place for place, chunk in enumerate(sent) if content(chunk)]
    at = spoken[len(spoken) // 2] if spoken else 0
    return [*sent[: at + 1], *([sent[at]] if spoken else []), *sent[at + 1 :]]


def swapped(sent: list[Body]) -> list[Body]:
    """Two neighbours change places."""
    spoken = [place for place, chunk in enumerate(sent) if content(chunk)]
    if len(spoken) < 2:
        return sent
    a, b = spoken[len(spoken) // 2 - 1], spoken[len(spoken) // 2]
    sent[a], sent[b] = sent[b], sent[a]
    return sent


def last_call_lost(sent: list[Body]) -> list[Body]:
    """Of several streamed calls the last is lost."""
    last = max((item["index"] for chunk in sent for item in _items(chunk)), default=0)
    return [chunk for chunk in sent if not last or all(item["index"] != last for item in _items(chunk))]


def piece_lost(sent: list[Body]) -> list[Body]:
    """One piece of streamed arguments is lost."""
    parts = [place for place, chunk in enumerate(sent) if any("name" not in item["function"] for item in _items(chunk))]
    return [chunk for place, chunk in enumerate(sent) if not parts or place != parts[len(parts) // 2]]


def _items(chunk: Body) -> list[Body]:
    found: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return found


def after_finish(sent: list[Body]) -> list[Body]:
    """The last words come after the finish_reason."""
    last = max((place for place, chunk in enumerate(sent) if content(chunk)), default=None)
    ends = [place for place, chunk in enumerate(sent) if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    if last is None or not ends:
        return sent
    moved = sent.pop(last)
    sent.insert(ends[0], moved)
    return sent


def thoughts_too(delta: Body) -> None:
    """Streamed reasoning stands in the content as well."""
    if delta.get("reasoning"):
        delta["content"] = delta["reasoning"]


def after_thoughts_lost(sent: list[Body]) -> list[Body]:
    """The first word after the reasoning is lost."""
    thought = any(chunk["choices"] and chunk["choices"][0]["delta"].get("reasoning") for chunk in sent)
    first = next((place for place, chunk in enumerate(sent) if content(chunk)), None)
    return [chunk for place, chunk in enumerate(sent) if not thought or place != first]


def cut_long(reply: ModelReply, body: Body) -> ModelReply:
    """Long answers end early, as if they were complete."""
    words = reply.content.split(" ")
    return dataclasses.replace(reply, content=" ".join(words[:120])) if len(words) > 120 else reply


class Remembers:
    """Servers that keep what they should not."""

    def __init__(self) -> None:
        self.by_beginning: dict[str, ModelReply] = {}
        self.by_messages: dict[str, Made] = {}
        self.thinks = False
        self.count = itertools.count()
        self.slots = 12

    def beginning(self, reply: ModelReply, body: Body) -> ModelReply:
        """A prefix cache that looks at the beginning and the length only."""
        text = json.dumps(body["messages"])
        key = f"{text[:400]}{len(text)}{text[-120:]}" if len(text) > 1200 else text
        return self.by_beginning.setdefault(key, reply)

    async def messages(self, made: Made) -> Made:
        """Answers kept by messages, whatever the settings."""
        key = hashlib.sha256(json.dumps(made.request["messages"]).encode()).hexdigest()
        old = self.by_messages.setdefault(key, made)
        return dataclasses.replace(old, request=made.request, number=made.number)

    def sticky(self, body: Body) -> Body:
        """Once it thinks, it thinks on."""
        self.thinks = self.thinks or thinking(body)
        switches = {**(body.get("chat_template_kwargs") or {}), "thinking": self.thinks}
        return {**body, "chat_template_kwargs": switches}

    def tired(self, reply: ModelReply, body: Body) -> ModelReply:
        """After a hundred requests it babbles."""
        return ModelReply(content="the the the the the the") if next(self.count) > 100 else reply

    async def leaks_slots(self, made: Made) -> Any:
        """A stream that is not read to its end keeps its slot; without slots nothing is answered."""
        if self.slots <= 0:
            await asyncio.sleep(3600)
        self.slots -= 1
        for chunk in chat.chunks(made):
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0.002)
        yield b"data: [DONE]\n\n"
        self.slots += 1

    async def late(self, made: Made) -> Made:
        """One request in fifty is eight seconds late."""
        if next(self.count) % 50 == 30:
            await asyncio.sleep(8)
        return made


def memory() -> Remembers:
    """A server with a memory of its own."""
    return Remembers()


def ascii_only(text: str) -> str:
    """Everything outside ASCII is lost."""
    return text.encode("ascii", "ignore").decode()


def everywhere(change: Callable[[str], str]) -> Callable[[ModelReply, Body], ModelReply]:
    """Words and arguments alike."""

    def bend(reply: ModelReply, body: Body) -> ModelReply:
        changed = tuple(dataclasses.replace(call, arguments=change(call.arguments)) for call in reply.calls)
        return dataclasses.replace(reply, content=change(reply.content), calls=changed)

    return bend


def stringly(call: Any) -> Any:
    """Numbers become strings."""
    given = {key: str(value) for key, value in json.loads(call.arguments).items()}
    return dataclasses.replace(call, arguments=json.dumps(given))


def shifted(body: Body) -> None:
    """Log-probabilities of the token before."""
    listed = (body["choices"][0].get("logprobs") or {"content": []})["content"]
    names = [item["token"] for item in listed]
    for item, name in zip(listed, names[-1:] + names[:-1], strict=True):
        item["token"] = name


def arguments(change: Callable[[str], str]) -> Callable[[ModelReply, Body], ModelReply]:
    """Arguments of calls that are changed."""
    return calls(lambda call: dataclasses.replace(call, arguments=change(call.arguments)))


def escaped(text: str) -> str:
    """Escapes that are escaped once more."""
    return json.dumps(json.loads(text)).replace("\\u", "\\\\u")


def no_tokens(body: Body) -> None:
    """No completion tokens are counted."""
    body["usage"].update(completion_tokens=0, total_tokens=body["usage"]["prompt_tokens"])


def one_token(chunk: Body) -> None:
    """The stream counts its last chunk only."""
    if "usage" in chunk:
        chunk["usage"].update(completion_tokens=1, total_tokens=chunk["usage"]["prompt_tokens"] + 1)


def half_pair(delta: Body) -> None:
    """Letters beyond the basic plane lose their second half."""
    if delta.get("content"):
        delta["content"] = re.sub("[\U00010000-\U0010ffff]", "\ud83d", delta["content"])


def stripped(delta: Body) -> None:
    """Blanks around pieces are lost."""
    if delta.get("content"):
        delta["content"] = delta["content"].strip()


def any_object(body: Body) -> None:
    """A schema is taken for json_object."""
    if body.get("response_format"):
        body["response_format"] = {"type": "json_object"}


def ascii_body(body: Body) -> None:
    """The request loses everything outside ASCII."""
    body.update(json.loads(ascii_only(json.dumps(body, ensure_ascii=False))))


def as_text_input(body: Body) -> Body:
    """Anthropic's input as a string."""
    blocks = [block | ({"input": "{}"} if block["type"] == "tool_use" else {}) for block in body["content"]]
    return {**body, "content": blocks}


def index_zero(sent: list[Body]) -> list[Body]:
    """Anthropic's blocks are all the first."""
    return [event | ({"index": 0} if "index" in event else {}) for event in sent]


def seen(turn: Body) -> Body:
    """Pictures are left out without a word."""
    if not isinstance(turn.get("content"), list):
        return turn
    return {**turn, "content": [part for part in turn["content"] if part["type"] == "text"]}


def last_round(all: list[Body]) -> list[Body]:
    """Of a conversation with tools the last round."""
    asked = [place for place, turn in enumerate(all) if turn["role"] == "user"]
    used = any(turn["role"] == "tool" for turn in all)
    return all[asked[-1] :] if used and asked else all


def rude(request: Any, body: Body) -> Response | None:
    """Bad requests get a page for people."""
    bad = bool(body) and not isinstance(body.get("messages"), list)
    return Response("<html>Internal Server Error</html>", 500) if bad else None


def gpt(body: Body) -> None:
    """Another model's name."""
    body["model"] = "gpt-4"


def no_system(all: list[Body]) -> list[Body]:
    """System messages are left out."""
    return [turn for turn in all if turn["role"] != "system"]


def no_stop_string(body: Body) -> None:
    """`stop` is read where it is a list."""
    if isinstance(body.get("stop"), str):
        del body["stop"]


def without(key: str) -> Callable[[Body], Body]:
    """A field that is not read."""
    return request(lambda body: body.pop(key, None))
