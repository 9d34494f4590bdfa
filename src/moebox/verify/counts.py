"""Whether the token counts of a reply can be true."""

import hashlib
import json
from typing import Any

from moebox.verify.answer import ChatAnswer

LONGEST_TOKEN = 24  # characters of text in one token, on average, that no tokenizer reaches in ordinary answers
HIDDEN = 48  # tokens of an answer that no reader sees: ends of turns, marks around thoughts
HIDDEN_A_CALL = 96  # marks, ids and names around a tool call
CLOCK_TOKENS = 3  # tokens that the time of day in a template is more at some times than at others
# What a request may set without a word of its prompt being another.
UNREAD = (
    *("stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "grammar"),
    *("temperature", "top_p", "seed", "logprobs", "top_logprobs"),
)
SLACK = 2  # tokens over max_tokens that some engines count with the end of turn


class PromptCounts:
    """How many tokens each prompt was; the same prompt is as many when it comes again, hours later too."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def count_change(self, request: Any, counted: int | None) -> list[str]:
        """Why the count of a prompt cannot be true, if it cannot."""
        if counted is None or not isinstance(request, dict):
            return []
        asked = {key: value for key, value in request.items() if key not in UNREAD}
        key = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).digest()
        before = self._known.setdefault(key, counted)
        same = abs(counted - before) <= CLOCK_TOKENS
        return [] if same else [f"the same prompt is {before} tokens at first, and {counted} when it is asked again"]


def implausible_usage(answer: ChatAnswer, request: Any) -> list[str]:
    """Why `completion_tokens` is not the count of what came, if it is not."""
    made = answer.token_count("completion")
    why = _why(answer, made, request if isinstance(request, dict) else {}) if made is not None else ""
    return [why] if why else []


def _why(answer: ChatAnswer, made: int, asked: dict[str, object]) -> str:
    text = answer.content + answer.reasoning + "".join(call.name + call.arguments for call in answer.calls)
    too_few = made * LONGEST_TOKEN < len(text)
    most = len(text.encode(errors="replace")) + HIDDEN + HIDDEN_A_CALL * len(answer.calls)
    swallowed = answer.finish_reason == "length" and bool(asked.get("tools"))  # half a call, which a parser keeps back
    too_many = made - _unseen(answer) > most and not swallowed
    if too_few or too_many:
        return f"{len(text)} characters were sent, usage counts {made} tokens"
    limit = asked.get("max_tokens") or asked.get("max_completion_tokens")
    if isinstance(limit, int) and made > limit + SLACK:
        return f"max_tokens was {limit}, usage counts {made} tokens"
    return ""


def _unseen(answer: ChatAnswer) -> int:
    """Tokens of thoughts that the server counts and does not show."""
    details = answer.usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return thought if isinstance(thought, int) and not answer.reasoning else 0
