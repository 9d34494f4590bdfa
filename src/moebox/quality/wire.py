"""Requests for log-probabilities and their replies, in the formats of the engines. Nothing is sent from here.

A dialect is named by what a server offers, not by the server: `prompt_logprobs` at /v1/completions (vLLM), `generate`
with logprob_start_len (SGLang), `echo` with logprobs (the first OpenAI API), or `prefixes`: one request for each
position, which any server with log-probabilities of its next token can answer (llama.cpp, ik_llama.cpp).
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moebox.loose import Json, as_object, get_object, get_objects, get_path, is_number

TokenKey = int | str  # an id, or the token's text if the server gives no ids
Dialect = Literal["prompt_logprobs", "generate", "echo", "prefixes"]
DIALECTS: tuple[Dialect, ...] = ("prompt_logprobs", "generate", "echo", "prefixes")
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
    found: list[NextToken] = []
    if dialect == "prompt_logprobs":
        rows = choice.get("prompt_logprobs")
        for depth, row in enumerate(rows if isinstance(rows, list) else ()):
            values = {int(key): get_path(value, "logprob") for key, value in as_object(row).items() if key.isdigit()}
            if depth < len(ids) and values:
                found.append(NextToken(depth=depth, token=ids[depth], top=_sort_known(values)))
        return found
    if dialect == "generate":
        own, tops = get_path(reply, "meta_info.input_token_logprobs"), get_path(reply, "meta_info.input_top_logprobs")
        if not isinstance(own, list) or not isinstance(tops, list) or len(own) != len(tops) or len(own) > len(ids):
            return []
        start = len(ids) - len(own)
        for depth, (mine, others) in enumerate(zip(own, tops, strict=True), start):
            values = _generated_values(mine, others)
            if others and ids[depth] in values:
                found.append(NextToken(depth=depth, token=ids[depth], top=_sort_known(values)))
        return found
    logprobs = get_object(choice, "logprobs")
    tokens, own, tops = map(logprobs.get, ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(own, list) and isinstance(tops, list)):
        return []
    for depth, (token, mine, row) in enumerate(zip(tokens, own, tops, strict=False)):
        if isinstance(token, str) and isinstance(row, dict) and row:
            found.append(NextToken(depth=depth, token=token, top=_sort_known({**row, token: mine})))
    return found


def parse_next_tokens(dialect: Dialect, reply: object, depth: int) -> list[NextToken]:
    """Read the log-probabilities of generated tokens, the first of which follows `depth` tokens."""
    found: list[NextToken] = []
    if dialect == "generate":
        own = get_path(reply, "meta_info.output_token_logprobs")
        tops = get_path(reply, "meta_info.output_top_logprobs")
        pairs = zip(own, tops, strict=False) if isinstance(own, list) and isinstance(tops, list) else ()
        for offset, (mine, others) in enumerate(pairs):
            if values := _generated_values(mine, others):
                found.append(NextToken(depth=depth + offset, token=next(iter(values)), top=_sort_known(values)))
        return found
    logprobs = get_object((get_objects(reply, "choices") or [{}])[0], "logprobs")
    for offset, row in enumerate(get_objects(logprobs, "content")):
        entries = [(entry.get("id"), entry.get("logprob")) for entry in (row, *get_objects(row, "top_logprobs"))]
        known = {key: value for key, value in entries if isinstance(key, int)}
        if len(known) > 1:
            found.append(NextToken(depth=depth + offset, token=next(iter(known)), top=_sort_known(known)))
    tokens, tops = logprobs.get("tokens"), logprobs.get("top_logprobs")
    if not found and isinstance(tokens, list) and isinstance(tops, list):
        for offset, (token, row) in enumerate(zip(tokens, tops, strict=False)):
            if isinstance(token, str) and isinstance(row, dict) and row:
                texts = {_key_of(key): value for key, value in row.items()}
                found.append(NextToken(depth=depth + offset, token=_key_of(token), top=_sort_known(texts)))
    return found


def _generated_values(mine: object, others: Any) -> dict[int, object]:
    """Log-probabilities by token of SGLang's rows [log-probability, token, …], the text's own token first."""
    rows = [row for row in [mine, *(others or ())] if isinstance(row, list) and len(row) >= 2]
    return {row[1]: row[0] for row in rows if isinstance(row[1], int)}


def _key_of(text: str) -> TokenKey:
    digits = text.removeprefix(_ID_MARK)
    return int(digits) if digits != text and digits.isdigit() else text


def _sort_known(values: Mapping[Any, object]) -> dict[TokenKey, float]:
    """Log-probabilities that are numbers, most likely first."""
    known = [(key, float(value)) for key, value in values.items() if is_number(value) and value > FLOOR]
    return dict(sorted(known, key=operator.itemgetter(1), reverse=True))
