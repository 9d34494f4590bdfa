"""Log-probabilities: requests and replies in the formats of the engines, and readings of texts. Nothing is sent here.

A dialect is named by what a server offers, not by the server: `prompt_logprobs` at /v1/completions (vLLM), `generate`
with logprob_start_len (SGLang), `echo` with logprobs (the first OpenAI API), or `prefixes`: one request for each
position, which any server with log-probabilities of its next token can answer (llama.cpp, ik_llama.cpp).
"""

import hashlib
import json
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moebox.loose import Json, as_object, get_objects, get_path, is_number

TokenKey = int | str  # an id, or the token's text if the server gives no ids
Dialect = Literal["prompt_logprobs", "generate", "echo", "prefixes"]
DIALECTS: tuple[Dialect, ...] = ("prompt_logprobs", "generate", "echo", "prefixes")
MIN_TOP = 2
MIN_POSITIONS = 40  # fewer give no figure worth showing
ROUNDED_DECIMALS = 3  # so few decimals are a rounded figure: a float has six or more
CLAMPED_SHARE = 0.05  # of all values that may be equal to the lowest one
UNEQUAL_LEAST = 0.05  # of positions must have a prediction of their own
UNEQUAL_SHARE = 0.2  # of positions at which a server may not write its most likely token: near ties
FLOOR = -1000.0  # engines write -9999 or the lowest float for minus infinity
_ID_MARK = "token_id:"  # how vLLM writes a token under return_tokens_as_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """What a server predicted at one position: the tokens before `depth` were given."""

    depth: int
    token: TokenKey  # of the text; in generated text, the token that the server chose
    top: Mapping[TokenKey, float]  # log-probabilities, most likely first; `token` is among them if it is known

    @property
    def logprob(self) -> float | None:
        """Log-probability of the text's own token, or None if it is not among the known ones."""
        return self.top.get(self.token)


def next_token_request(
    dialect: Dialect, model: str, prompt: Sequence[int] | str, top: int, tokens: int = 1
) -> tuple[str, Json]:
    """Path and body that ask for the most likely tokens after a prompt."""
    if dialect == "generate":
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body: Json = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": top}
        return "/generate", {**body, "text" if isinstance(prompt, str) else "input_ids": prompt}
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": top}
    if dialect == "prompt_logprobs":
        return "/v1/completions", {**body, "return_tokens_as_token_ids": True}
    return "/v1/completions", {**body, "n_probs": top, "cache_prompt": True} if dialect == "prefixes" else body


def prompt_request(dialect: Dialect, model: str, prompt: Sequence[int] | str, top: int) -> tuple[str, Json]:
    """Path and body that ask for the log-probabilities of a whole prompt."""
    path, body = next_token_request(dialect, model, prompt, top)
    if dialect == "generate":
        return path, {**body, "logprob_start_len": 0}
    return path, {**body, **({"prompt_logprobs": top} if dialect == "prompt_logprobs" else {"echo": True})}


def parse_prompt_reply(dialect: Dialect, reply: object, ids: Sequence[int]) -> list[NextToken]:
    """Read the log-probabilities of a prompt; empty if the reply has none or has those of another prompt."""
    choice = (get_objects(reply, "choices") or [{}])[0]
    if dialect == "echo":
        return _build_tokens((token, {**row, token: mine} if row else {}) for token, mine, row in _text_rows(choice))
    if dialect == "generate":
        rows = _generated_rows(reply, "input")
        start = len(ids) - len(rows)
        own = zip(ids[start:], rows, strict=True) if start >= 0 else ()
        return _build_tokens(((token, row if token in row else {}) for token, row in own), start)
    listed = choice.get("prompt_logprobs")
    rows = [
        {int(key): get_path(value, "logprob") for key, value in as_object(row).items() if key.isdigit()}
        for row in (listed if isinstance(listed, list) else ())
    ]
    return _build_tokens(zip(ids, rows, strict=False))


def parse_next_tokens(dialect: Dialect, reply: object, depth: int) -> list[NextToken]:
    """Read the log-probabilities of generated tokens, the first of which follows `depth` tokens."""
    if dialect == "generate":
        return _build_tokens(((next(iter(row), ""), row) for row in _generated_rows(reply, "output")), depth)
    choice = (get_objects(reply, "choices") or [{}])[0]
    rows = []
    for row in get_objects(choice, "logprobs.content"):
        entries = [(entry.get("id"), entry.get("logprob")) for entry in (row, *get_objects(row, "top_logprobs"))]
        known = {key: value for key, value in entries if isinstance(key, int)}
        rows.append((next(iter(known), ""), known if len(known) > 1 else {}))
    texts = [(_key_of(token), {_key_of(key): row[key] for key in row}) for token, _, row in _text_rows(choice)]
    return _build_tokens(rows, depth) or _build_tokens(texts, depth)


def _build_tokens(rows: Iterable[tuple[TokenKey, Mapping[Any, object]]], start: int = 0) -> list[NextToken]:
    """Each token with the log-probabilities in its place, from the depth `start` on; those without any are left out."""
    found = []
    for depth, (token, row) in enumerate(rows, start):
        known = [(key, float(value)) for key, value in row.items() if is_number(value) and value > FLOOR]
        top = dict(sorted(known, key=operator.itemgetter(1), reverse=True))
        found += [NextToken(depth=depth, token=token, top=top)] * bool(row)
    return found


def _text_rows(choice: Json) -> list[tuple[str, object, Json]]:
    """Text, log-probability and alternatives of each token, as the first OpenAI API has them; none if it is no text."""
    columns = [get_path(choice, f"logprobs.{key}") for key in ("tokens", "token_logprobs", "top_logprobs")]
    if not all(isinstance(column, list) for column in columns):
        return []
    rows = zip(*columns, strict=False)
    return [(str(token), mine, as_object(row) if isinstance(token, str) else {}) for token, mine, row in rows]


def _generated_rows(reply: object, side: str) -> list[dict[Any, object]]:
    """Log-probabilities by token of SGLang's rows [log-probability, token, …], the text's own token first."""
    own, tops = (get_path(reply, f"meta_info.{side}_{name}_logprobs") for name in ("token", "top"))
    if not isinstance(own, list) or not isinstance(tops, list) or len(own) != len(tops):
        return []
    pairs = [[mine, *others] if others else [] for mine, others in zip(own, tops, strict=True)]
    listed = [[row for row in rows if isinstance(row, list) and len(row) > 1] for rows in pairs]
    return [{row[1]: row[0] for row in rows if isinstance(row[1], int)} for rows in listed]


def _key_of(text: str) -> TokenKey:
    digits = text.removeprefix(_ID_MARK)
    return int(digits) if digits != text and digits.isdigit() else text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """One text: its tokens by the server's tokenizer, and what the server predicted."""

    kind: str
    name: str
    tokens: tuple[TokenKey, ...]
    positions: tuple[NextToken, ...]


def tokenizer_hash(readings: Sequence[TextReading]) -> str:
    """Hash of the tokens of all texts, their special tokens included."""
    return hashlib.sha256(json.dumps([[reading.name, *reading.tokens] for reading in readings]).encode()).hexdigest()


def find_reading_problem(readings: Sequence[TextReading]) -> str:
    """Return why log-probabilities are not usable, or "": too few, rounded, clamped, or not of this text."""
    positions = [position for reading in readings for position in reading.positions]
    if len(positions) < MIN_POSITIONS:
        return f"only {len(positions)} positions have log-probabilities"
    sizes = Counter(len(position.top) for position in positions)
    if sizes.most_common(1)[0][0] < MIN_TOP:
        return "it gives only the most likely token"
    values = [value for position in positions for value in position.top.values()]
    if max(values) > 1e-3 or not all(map(math.isfinite, values)):
        return f"log-probabilities must be at most 0, and one is {max(values):.3g}"
    lowest = min(values)
    if values.count(lowest) > max(10, CLAMPED_SHARE * len(values)):
        return f"log-probabilities are clamped at {lowest:g}"
    total = max(math.fsum(map(math.exp, position.top.values())) for position in positions)
    if total > 1.01:
        return f"probabilities of one position add up to {total:.2f}"
    if len({tuple(position.top.values()) for position in positions}) < UNEQUAL_LEAST * len(positions):
        return "log-probabilities do not depend on the text"
    scaled = 10.0**ROUNDED_DECIMALS
    if sum(abs(value * scaled - round(value * scaled)) < 1e-6 for value in values) > 0.9 * len(values):
        return f"log-probabilities are rounded to {ROUNDED_DECIMALS} decimals or fewer"
    return ""
