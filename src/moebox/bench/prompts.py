"""Prompt files (JSON lines, ShareGPT), request traces, and other tools' JSON files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.errors import BadInput, refuse_if
from moebox.loose import Json

MAX_JSON_BYTES = 2**31  # guidellm keeps every request in its file


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrompt:
    messages: tuple[Json, ...]
    output_tokens: int = 0  # 0: the workload's
    extra_fields: Json = field(default_factory=dict)  # tools and the like, added to the body


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_json_text(path: Path) -> str:
    return codec.read_text(path, max_bytes=MAX_JSON_BYTES)


def parse_json(text: str, where: str) -> Any:
    """Parse one document, with the NaN and Infinity that Python's tools write."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: also integers beyond Python's own
        raise BadInput(f"{where}: not valid JSON: {problem}") from None


def parse_json_lines(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the document of each line."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{where}:{number}", parse_json(line, f"{where}:{number}")


def load_prompts(name: str) -> list[FilePrompt]:
    """Load prompts from a file of JSON lines, a JSON list, or ShareGPT's conversations."""
    prompts = [prompt for where, item in _read_items(name) if (prompt := _parse_prompt(item, where)) is not None]
    refuse_if(not prompts, f"{name}: no prompt in it", hint='a line is {"prompt": "…"} or {"messages": […]}')
    return prompts


def load_trace(name: str) -> list[TraceRow]:
    """Load JSON lines with timestamp (ms), input_length, output_length and, if prefixes are shared, hash_ids."""
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
    refuse_if(not rows, f"{name}: no request in it")
    return sorted(rows, key=lambda row: row.at_s)


def _read_items(name: str) -> Iterator[tuple[str, Any]]:
    """Return the place and the value of each item of a JSON list or of JSON lines."""
    text = read_json_text(Path(name))
    if not text.lstrip().startswith("["):
        return parse_json_lines(text, name)
    return ((f"{name}[{place}]", item) for place, item in enumerate(parse_json(text, name)))


def _parse_prompt(item: Any, where: str) -> FilePrompt | None:
    """Return the prompt of one item, or None for a conversation without a question."""
    if isinstance(item, str):
        return FilePrompt(messages=({"role": "user", "content": item},))
    if not isinstance(item, dict):
        raise BadInput(f"{where}: neither a string nor an object")
    if "conversations" in item:  # ShareGPT: the first question, with an answer as long (four characters a token)
        turns = item["conversations"]
        if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns):
            return None
        question, length = turns[0].get("value"), len(str(turns[1].get("value", ""))) // 4
        if turns[0].get("from") not in ("human", "user") or not isinstance(question, str):
            return None
        return FilePrompt(messages=({"role": "user", "content": question},), output_tokens=max(4, length))
    tokens = item.get("output_tokens", item.get("max_tokens", 0))
    if not isinstance(tokens, int) or tokens < 0:
        raise BadInput(f"{where}: output_tokens is {tokens!r}")
    messages, text = item.get("messages"), item.get("prompt", item.get("text"))
    if not messages and isinstance(text, str):
        messages = [{"role": "user", "content": text}]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadInput(f"{where}: no prompt, messages or conversations in it")
    extra_fields = {key: item[key] for key in ("tools", "tool_choice", "response_format") if key in item}
    return FilePrompt(messages=tuple(messages), output_tokens=tokens, extra_fields=extra_fields)
