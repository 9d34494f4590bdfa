"""A request as the twin reads it, from OpenAI's form; what an engine would refuse is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from moebox.loose import get_objects, get_text
from moebox.twin import calls, filler

CALL_TOKENS = 12  # a call's name and marks
DEFAULT_TOKENS = 256  # tokens of an answer nobody limited
Json = Mapping[str, object]  # an object that somebody else wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinRequest:
    """A request as far as the twin looks at it."""

    chat: bool
    prompt: str
    prompt_tokens: int
    output: int
    reason: str
    stream: bool
    usage: bool
    call: tuple[str, str] | None = None  # the tool called instead of text, and its arguments

    def arguments_part(self, start: int, end: int) -> str:
        """The part of the call's arguments that belongs to these tokens of the reply."""
        text = self.call[1] if self.call else ""
        return text[len(text) * start // self.output : len(text) * end // self.output]


class RequestRefused(Exception):
    """A request that an engine would answer with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse_request(body: Json, *, chat: bool, model: str, context: int) -> TwinRequest:
    """What the body asks for; Refused says why it cannot be had."""
    if body.get("model", model) != model:
        raise RequestRefused(404, f"The model `{body['model']}` does not exist; this twin serves `{model}`.")
    prompt, count = _chat_prompt(body.get("messages")) if chat else _prompt(body.get("prompt"))
    if body.get("n", 1) not in (1, None):
        raise RequestRefused(400, "the twin gives one choice: n must be 1")
    limit = _limit(body, count, context)
    options = body.get("stream_options")
    call = calls.choose_call(body) if chat else None
    output, reason = _length(limit, context - count, call=call, tools=bool(body.get("tools")))
    return TwinRequest(
        chat=chat,
        prompt=prompt,
        prompt_tokens=count,
        output=output,
        reason=reason,
        call=call,
        stream=bool(body.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _limit(body: Json, count: int, context: int) -> int | None:
    """The most tokens that may be written, where the body says it."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and not _positive(limit):
        raise RequestRefused(400, "max_tokens must be 1 or more")
    if count >= context or (limit and count + limit > context):
        wanted = f"{limit} tokens in the completion" if limit else "a completion"
        raise RequestRefused(
            400, f"This model's maximum context length is {context} tokens: {count} of prompt and {wanted}."
        )
    return limit


def _positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _length(limit: int | None, room: int, *, call: tuple[str, str] | None, tools: bool) -> tuple[int, str]:
    """Tokens of the reply, and why it ends."""
    output = limit or min(DEFAULT_TOKENS, room)
    if call:
        return min(output, filler.count_tokens(call[1]) + CALL_TOKENS), "tool_calls"
    if tools and output > DEFAULT_TOKENS:
        return DEFAULT_TOKENS, "stop"  # an agent allows far more than it means
    return output, "length" if limit else "stop"


def _chat_prompt(messages: object) -> tuple[str, int]:
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestRefused(400, "messages must be a list of objects with role and content")
    parts = [_content(message) for message in messages]
    text = "\n".join(parts)
    return text, filler.count_tokens(text) + 4 * len(parts)  # a role and its marks are about four tokens


def _content(message: Json) -> str:
    """A message's text, whole or in parts."""
    parts = get_objects(message, "content")
    return "".join(str(part.get("text", "")) for part in parts) or get_text(message, "content")


def _prompt(prompt: object) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt, filler.count_tokens(prompt)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0], filler.count_tokens(prompt[0])
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return str(prompt[:64]), len(prompt)
    raise RequestRefused(400, "prompt must be text or a list of token numbers")
