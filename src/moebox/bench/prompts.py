"""Prompt files (JSON lines, ShareGPT) and request traces, as people have them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moebox.bench import json_files
from moebox.errors import BadInput
from moebox.loose import Json

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrompt:
    """What is asked once."""

    messages: tuple[Json, ...]
    output_tokens: int = 0  # 0: the workload's
    extra_fields: Json = field(default_factory=dict)  # tools and the like, into the body


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of a trace."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def load_prompts(name: str) -> list[FilePrompt]:
    """Prompts from a file of JSON lines, a JSON list, or ShareGPT's conversations."""
    prompts = [prompt for where, item in _read_items(name) if (prompt := _parse_prompt(item, where)) is not None]
    if not prompts:
        raise BadInput(f"{name}: no prompt in it", hint='a line is {"prompt": "…"} or {"messages": […]}')
    return prompts


def load_trace(name: str) -> list[TraceRow]:
    """A trace: JSON lines with timestamp (ms), input_length, output_length and, where prefixes are shared, hash_ids."""
    rows = []
    for where, item in _read_items(name):
        try:
            row = TraceRow(
                at_s=float(item["timestamp"]) / 1e3,
                input_tokens=int(item["input_length"]),
                output_tokens=max(1, int(item["output_length"])),
                blocks=tuple(map(int, item.get("hash_ids") or ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise BadInput(
                f"{where}: not a row of a trace: {problem!r}", hint="timestamp, input_length, output_length"
            ) from None
        rows.append(row)
    if not rows:
        raise BadInput(f"{name}: no request in it")
    return sorted(rows, key=lambda row: row.at_s)


def _read_items(name: str) -> Iterator[tuple[str, Any]]:
    """The items of a JSON list or of JSON lines, and where each stands."""
    text = json_files.read_json_text(Path(name))
    if not text.lstrip().startswith("["):
        return json_files.parse_json_lines(text, name)
    return ((f"{name}[{place}]", item) for place, item in enumerate(json_files.parse_json(text, name)))


def _parse_prompt(item: Any, where: str) -> FilePrompt | None:
    if isinstance(item, str):
        return FilePrompt(messages=_user_message(item))
    if not isinstance(item, dict):
        raise BadInput(f"{where}: neither a string nor an object")
    if "conversations" in item:
        return _parse_sharegpt(item["conversations"])
    more = {key: item[key] for key in ("tools", "tool_choice", "response_format") if key in item}
    tokens = _output_tokens(item, where)
    return FilePrompt(messages=_messages(item, where), output_tokens=tokens, extra_fields=more)


def _output_tokens(item: Json, where: str) -> int:
    tokens = item.get("output_tokens", item.get("max_tokens", 0))
    if not isinstance(tokens, int) or tokens < 0:
        raise BadInput(f"{where}: output_tokens is {tokens!r}")
    return tokens


def _user_message(text: str) -> tuple[Json, ...]:
    return ({"role": "user", "content": text},)


def _messages(item: Json, where: str) -> tuple[Json, ...]:
    """What one item asks: its messages, or its prompt as one of them."""
    messages, text = item.get("messages"), item.get("prompt", item.get("text"))
    if not messages and isinstance(text, str):
        return _user_message(text)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadInput(f"{where}: no prompt, messages or conversations in it")
    return tuple(messages)


def _parse_sharegpt(turns: Any) -> FilePrompt | None:
    """The first question of a conversation, answered at the length its answer had (four characters a token)."""
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns):
        return None
    ask, reply = turns[0], turns[1]
    if _ROLES.get(str(ask.get("from"))) != "user" or not isinstance(ask.get("value"), str):
        return None
    length = len(str(reply.get("value", ""))) // 4
    return FilePrompt(messages=({"role": "user", "content": ask["value"]},), output_tokens=max(4, length))
