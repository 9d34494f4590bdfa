"""Whether the token counts of a reply can be true."""

from typing import Any

from moebox.verify.answer import Answer

LONGEST_TOKEN = 24  # characters of text in one token, on average, that no tokenizer reaches in ordinary answers
HIDDEN = 48  # tokens of an answer that no reader sees: ends of turns, marks around thoughts
HIDDEN_A_CALL = 96  # marks, ids and names around a tool call
SLACK = 2  # tokens over max_tokens that some engines count with the end of turn


def implausible(answer: Answer, request: Any) -> list[str]:
    """Why `completion_tokens` is not the count of what came, if it is not."""
    made = answer.count("completion")
    why = _why(answer, made, request if isinstance(request, dict) else {}) if made is not None else ""
    return [why] if why else []


def _why(answer: Answer, made: int, asked: dict[str, object]) -> str:
    text = answer.content + answer.reasoning + "".join(call.name + call.arguments for call in answer.calls)
    if made * LONGEST_TOKEN < len(text):
        return f"{len(text)} characters were sent, usage counts {made} tokens"
    most = len(text.encode(errors="replace")) + HIDDEN + HIDDEN_A_CALL * len(answer.calls)
    swallowed = answer.finish == "length" and bool(asked.get("tools"))  # half a call, which a parser keeps back
    if made - _unseen(answer) > most and not swallowed:
        return f"{len(text)} characters were sent, usage counts {made} tokens"
    limit = asked.get("max_tokens") or asked.get("max_completion_tokens")
    if isinstance(limit, int) and made > limit + SLACK:
        return f"max_tokens was {limit}, usage counts {made} tokens"
    return ""


def _unseen(answer: Answer) -> int:
    """Tokens of thoughts that the server counts and does not show."""
    details = answer.usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return thought if isinstance(thought, int) and not answer.reasoning else 0
