"""What is asked, request by request: a pure function of the workload, its words and an index.

Prompts are cut from one long pool of words, so that making one costs microseconds while a thousand streams run; each
begins with words of its own, so that no two share a prefix that a cache could use, unless the workload shares prefixes.
The pool and those words follow from the workload's seed and salt.
"""

import hashlib
import itertools
import json
import random
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import msgspec

from moebox.bench.generator import Conversation, PromptWords
from moebox.bench.prompts import load_prompts, load_trace
from moebox.core.measure import Workload
from moebox.data import FOLDER
from moebox.loose import Json

POOL_WORDS = 65536  # longer prompts wrap around
UNIQUE_WORDS = 4  # at the head of each prompt: one in 10^10 prompts shares them with another
TRACE_BLOCK_TOKENS = 512  # tokens behind one hash id of a trace (the published Mooncake traces)
CODE_TASK = "rewrite this module with one more field in every class and a test for every function.\n\n"


@cache
def common_words() -> tuple[str, ...]:
    """Short lower-case English words: most tokenizers have each as one token after a space."""
    return tuple((FOLDER / "words.txt").read_text(encoding="utf-8").split())


def fake_code(seed: str, words: int) -> str:
    """Write about `words` words that read like a Python module: repetitive, as code is."""
    draw = random.Random(seed)
    lines = ["from dataclasses import dataclass", "", ""]
    count = 3
    while count < words:
        if draw.random() < 0.6:
            verb, noun, item, other = (draw.choice(common_words()) for _ in range(4))
            block = [
                f"def {verb}_{noun}({item}s: list[int], *, {other}: int = {draw.randrange(100)}) -> dict[str, int]:",
                f'    """Return each {noun} of the {item}s with its {other}."""',
                "    result: dict[str, int] = {}",
                f"    for index, {item} in enumerate({item}s):",
                f"        if {item} > {other}:",
                f"            result[f'{noun}_{{index}}'] = {item} * {draw.randrange(2, 9)} + {other}",
                f"    return result if result else {{'{noun}': {other}}}",
                "",
                "",
            ]
        else:
            name, *fields = (draw.choice(common_words()) for _ in range(5))
            block = ["@dataclass(frozen=True)", f"class {name.title()}:"]
            block += [f"    {field}: {draw.choice(['int', 'str', 'float', 'bool'])}" for field in dict.fromkeys(fields)]
            block += ["", ""]
        lines += block
        count += sum(len(line.split()) for line in block)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ConversationSource:
    """Makes conversations by index. A workload with its own times has `due_times` in seconds, as many as requests."""

    make_conversation: Callable[[int], Conversation]
    due_times: tuple[float, ...] | None = None


class WordPool:
    """Random words with the offsets to cut prompts by."""

    def __init__(self, words: PromptWords, workload: Workload) -> None:
        self._words = words
        draw = random.Random(f"stretch {workload.seed} {workload.salt}".rstrip())
        chosen = draw.choices(words.words, k=POOL_WORDS)
        self._starts = array("I", itertools.accumulate((len(word) + 1 for word in chosen), initial=0))
        self._text = " ".join(chosen) + " "
        self._key = workload.seed * 0x9E3779B97F4A7C15
        if workload.salt:
            digest = hashlib.blake2b(f"{workload.seed} {workload.salt}".encode(), digest_size=8).digest()
            self._key = int.from_bytes(digest, "big")

    def make_prompt(self, tokens: int, key: object) -> str:
        """Return about `tokens` tokens (exactly, if every word is one), the same for the same key."""
        words = self._words.words
        number = key if isinstance(key, int) else zlib.crc32(repr(key).encode())  # the same in every process
        state = _splitmix64(number ^ self._key)
        count = max(1, round(tokens / self._words.tokens_per_word))
        unique = []
        for _ in range(min(count, UNIQUE_WORDS)):
            state = _splitmix64(state)
            unique.append(words[state % len(words)])
        at, count = _splitmix64(state) % POOL_WORDS, count - len(unique)
        parts = [" ".join(unique), " "]
        while count > 0:
            take = min(count, POOL_WORDS - at)
            parts.append(self._text[self._starts[at] : self._starts[at + take]])
            at, count = 0, count - take
        return "".join(parts).rstrip()


def _splitmix64(state: int) -> int:
    """One step of splitmix64 (Steele, Lea and Flood, 2014): a fraction of the cost of seeding a generator."""
    state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return state ^ state >> 31


class BodyWriter:
    """Writes request bodies for one model and API."""

    def __init__(self, workload: Workload, model: str) -> None:
        self._chat = workload.api == "chat"
        self._common: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        self._common["temperature"] = 0.0
        if workload.ignore_eos:
            self._common["ignore_eos"] = True
        self._common |= workload.extra

    def write_body(self, prompt: str | Sequence[Json], tokens: int, extra_fields: Json | None = None) -> bytes:
        """Write the body that asks for `tokens` tokens after this text or these messages."""
        body = {**self._common, "max_tokens": tokens, **(extra_fields or {})}
        if self._chat:
            body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        else:
            texts = [prompt] if isinstance(prompt, str) else [str(each.get("content", "")) for each in prompt]
            body["prompt"] = "\n\n".join(texts)
        try:
            return msgspec.json.encode(body)  # ten times as fast as json
        except UnicodeEncodeError:  # an unpaired surrogate in text from elsewhere
            return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def open_source(
    workload: Workload, words: PromptWords, model: str, *, keep_text: Callable[[int], bool] = lambda index: False
) -> ConversationSource:
    """Return the conversations of a workload; `keep_text` decides by index which replies' text is kept."""
    writer, tokens = BodyWriter(workload, model), workload.output_tokens
    if workload.kind == "prompts":
        prompts = load_prompts(workload.file)
        random.Random(f"order {workload.seed}").shuffle(prompts)

        def from_file(index: int) -> Conversation:
            prompt = prompts[index % len(prompts)]
            limit = prompt.output_tokens or tokens

            def write_prompt(_: Sequence[str]) -> bytes:
                return writer.write_body(prompt.messages, limit, prompt.extra_fields)

            return Conversation(index, limit, write_prompt, keep_text(index))

        return ConversationSource(from_file)
    pool = WordPool(words, workload)
    if workload.kind == "trace":
        rows = load_trace(workload.file)

        def from_trace(index: int) -> Conversation:
            row = rows[index % len(rows)]
            blocks = row.blocks[: row.input_tokens // TRACE_BLOCK_TOKENS]
            parts = [pool.make_prompt(TRACE_BLOCK_TOKENS, f"block {block}") for block in blocks]
            rest = row.input_tokens - TRACE_BLOCK_TOKENS * len(parts)
            parts += [pool.make_prompt(rest, index)] if rest > 0 else []
            limit, text = row.output_tokens, " ".join(parts)
            return Conversation(index, limit, lambda _: writer.write_body(text, limit), keep_text(index))

        return ConversationSource(from_trace, due_times=tuple(row.at_s - rows[0].at_s for row in rows))
    if workload.kind == "turns":
        shared = pool.make_prompt(workload.prefix_tokens, "prefix 0") if workload.prefix_tokens else ""

        def write_turn(index: int, replies: Sequence[str]) -> bytes:
            texts = [pool.make_prompt(workload.input_tokens, (index, turn)) for turn in range(len(replies) + 1)]
            messages = [{"role": "user", "content": f"{shared} {texts[0]}" if shared else texts[0]}]
            for reply, text in zip(replies, texts[1:], strict=True):
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text}]
            return writer.write_body(messages, tokens)

        return ConversationSource(
            lambda index: Conversation(
                index, tokens, partial(write_turn, index), True, workload.turns, workload.think_s
            )
        )
    write_prompt = _prompt_writer(workload, pool, words)

    def write_body(index: int, _: Sequence[str]) -> bytes:
        return writer.write_body(write_prompt(index), tokens)

    return ConversationSource(lambda index: Conversation(index, tokens, partial(write_body, index), keep_text(index)))


def _prompt_writer(workload: Workload, pool: WordPool, words: PromptWords) -> Callable[[int], str]:
    if workload.kind == "code":
        count = max(8, round(workload.input_tokens / words.tokens_per_code_word))
        salt = f"{workload.seed} {workload.salt}".rstrip()
        # The name comes first: a text that all prompts begin with would be answered from a prefix cache.
        return lambda index: (
            f"{pool.make_prompt(UNIQUE_WORDS, ('name', index))}: {CODE_TASK}{fake_code(f'{salt} {index}', count)}"
        )
    if workload.kind == "prefix":
        shared = [pool.make_prompt(workload.prefix_tokens, f"prefix {i}") for i in range(max(1, workload.prefixes))]
        return lambda index: f"{shared[index % len(shared)]} {pool.make_prompt(workload.input_tokens, index)}"
    return lambda index: pool.make_prompt(workload.input_tokens, index)
