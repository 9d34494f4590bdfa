"""Parse a chat or completion request, and decide what the twin replies: filler text or a tool call.

The twin refuses what an engine would refuse. Offered tools, it calls the first one (or the one that `tool_choice`
names) with arguments that fit the schema; given a tool's result, it replies with text, so that a client's loop ends.
"""

import json
import zlib
from dataclasses import dataclass

from moebox import loose

SENTENCE = "This text comes from a simulation by moebox; no model wrote it."
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi"
)
OPENING, FILLER = SENTENCE.split(), GREEK.split()
CHARS_PER_TOKEN = 4  # of English text; the twin has no tokenizer
ROLE_TOKENS = 4  # a message's role and its delimiters, about
CALL_TOKENS = 12  # a tool call's name and its delimiters, about
DEFAULT_TOKENS = 256  # reply length if the client sets no limit
MAX_DEPTH = 4  # nested levels of a schema that are filled
MAX_ITEMS = 16  # properties or items filled on one level
SIMPLE_VALUES: dict[str, object] = {"boolean": False, "null": None}


@dataclass(slots=True, kw_only=True)
class TwinRequest:
    """A parsed request with the length and kind of its reply."""

    chat: bool
    prompt: str
    prompt_tokens: int
    output: int  # tokens of the reply
    reason: str  # finish_reason, in OpenAI's words
    stream: bool
    usage: bool  # whether a stream ends with the token counts
    call: tuple[str, str] | None = None  # the tool called instead of text, and its arguments as JSON
    cached_tokens: int = 0  # of the prompt; known once it is read

    def text_part(self, start: int, end: int) -> str:
        """Return the reply's tokens from `start` up to `end`. The same prompt always gets the same words."""
        seed = zlib.crc32(self.prompt.encode("utf-8", "replace"))
        filler = (FILLER[(seed + place * 7) % len(FILLER)] for place in range(max(start, len(OPENING)), end))
        return "".join(f" {word}" for word in (*OPENING[start:end], *filler))[start == 0 :]

    def arguments_part(self, start: int, end: int) -> str:
        """Return the part of the call's arguments that belongs to these tokens of the reply."""
        text = self.call[1] if self.call else ""
        return text[len(text) * start // self.output : len(text) * end // self.output]


class RequestRefused(Exception):
    """A request that an engine would answer with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def to_chat_request(body: loose.Json) -> loose.Json:
    """Translate a request of Anthropic's API into OpenAI's format. Invalid parts are passed on, to be refused later."""
    messages: list[object] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    given = body.get("messages")
    for message in given if isinstance(given, list) else []:
        if any(block.get("type") == "tool_result" for block in loose.get_objects(message, "content")):
            messages.append({"role": "tool", "content": json.dumps(message["content"])})
        elif isinstance(message, dict):
            messages.append({"role": message.get("role"), "content": message.get("content")})
        else:
            messages.append(message)
    tools = [
        {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in loose.get_objects(body, "tools")
    ]
    choice = loose.get_object(body, "tool_choice")
    chosen: object = {"any": "required", "none": "none"}.get(str(choice.get("type")), "auto")
    if choice.get("type") == "tool":
        chosen = {"function": {"name": choice.get("name")}}
    chat: loose.Document = {key: body[key] for key in ("model", "stream", "max_tokens") if key in body}
    return {**chat, "messages": messages, "tools": tools, "tool_choice": chosen}


def parse_request(body: loose.Json, *, chat: bool, model: str, context: int) -> TwinRequest:
    """Parse a request body. Raise RequestRefused with the reason if an engine would refuse it."""
    if body.get("model", model) != model:
        raise RequestRefused(404, f"The model `{body['model']}` does not exist; this twin serves `{model}`.")
    prompt, count = _chat_prompt(body.get("messages")) if chat else _completion_prompt(body.get("prompt"))
    if body.get("n", 1) not in (1, None):
        raise RequestRefused(400, "the twin gives one choice: n must be 1")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestRefused(400, "max_tokens must be 1 or more")
    if count + (limit or 1) > context:
        wanted = f"{limit} tokens in the completion" if limit else "a completion"
        text = f"This model's maximum context length is {context} tokens: {count} of prompt and {wanted}."
        raise RequestRefused(400, text)
    output, reason = limit or min(DEFAULT_TOKENS, context - count), "length" if limit else "stop"
    call = choose_call(body) if chat else None
    if call:
        output, reason = min(output, count_tokens(call[1]) + CALL_TOKENS), "tool_calls"
    elif body.get("tools") and output > DEFAULT_TOKENS:  # an agent allows far more than it needs
        output, reason = DEFAULT_TOKENS, "stop"
    return TwinRequest(
        chat=chat,
        prompt=prompt,
        prompt_tokens=count,
        output=output,
        reason=reason,
        call=call,
        stream=bool(body.get("stream")),
        usage=bool(loose.get_object(body, "stream_options").get("include_usage")),
    )


def count_tokens(prompt: str) -> int:
    return max(1, -(-len(prompt) // CHARS_PER_TOKEN))


def _chat_prompt(messages: object) -> tuple[str, int]:
    """Return the text of all messages and its token count."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestRefused(400, "messages must be a list of objects with role and content")
    parts = [
        "".join(str(part.get("text", "")) for part in loose.get_objects(message, "content"))
        or loose.get_text(message, "content")
        for message in messages
    ]
    text = "\n".join(parts)
    return text, count_tokens(text) + ROLE_TOKENS * len(parts)


def _completion_prompt(prompt: object) -> tuple[str, int]:
    """Return the text of a completion's prompt and its token count; token numbers are counted as they are."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, count_tokens(prompt)
    if loose.is_int_list(prompt):
        return " ".join(map(str, prompt)), len(prompt)
    raise RequestRefused(400, "prompt must be text or a list of token numbers")


def choose_call(body: loose.Json) -> tuple[str, str] | None:
    """Return the tool to call and its arguments as JSON, or None if the reply is text."""
    offered = [loose.get_object(tool, "function") for tool in loose.get_objects(body, "tools")]
    functions = [(str(function["name"]), function.get("parameters")) for function in offered if function.get("name")]
    choice, messages = body.get("tool_choice") or "auto", body.get("messages")
    has_result = isinstance(messages, list) and messages and loose.get_path(messages[-1], "role") == "tool"
    if not functions or choice == "none" or (choice == "auto" and has_result):
        return None
    wanted = loose.get_path(choice, "function.name")
    name, schema = next((function for function in functions if function[0] == wanted), functions[0])
    return name, json.dumps(fill_schema(schema))


def fill_schema(schema: object, depth: int = 0) -> object:
    """Return the simplest value that fits a JSON schema."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = next(iter(loose.get_texts(schema, "type")), "object")
    if kind == "object":
        known, required = loose.get_object(schema, "properties"), schema.get("required")
        names = [name for name in required if isinstance(name, str)][:MAX_ITEMS] if isinstance(required, list) else []
        return {name: fill_schema(known.get(name, {"type": "string"}), depth + 1) for name in names}
    if kind == "array":
        items = min(int(loose.get_number(schema, "minItems") or 0), MAX_ITEMS)
        return [fill_schema(schema.get("items"), depth + 1)] * items
    if kind in ("integer", "number"):
        least = schema.get("minimum")
        return least if isinstance(least, int | float) else 1
    return SIMPLE_VALUES.get(kind, "simulated")
