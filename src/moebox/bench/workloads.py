"""What is asked, request by request: a pure function of the workload, its words and an index.

Prompts are cut from one long stretch of words, so that making one costs microseconds while a thousand streams run; each
begins with words of its own, so that no two share a prefix a cache could use unless the workload says so. The stretch
and those words follow from the workload's seed and salt.
"""

import hashlib
import itertools
import json
import random
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.bench import filler
from moebox.bench.generator import Conversation, PromptWords, SingleTurn
from moebox.bench.prompts import FilePrompt, load_prompts, load_trace
from moebox.core.measure import Workload
from moebox.loose import Json

POOL_WORDS = 65536  # words in the long stretch; longer prompts wrap around
UNIQUE_WORDS = 4  # words at the head of each prompt that are its own: one in 10^10 prompts shares them with another
KeepText = Callable[[int], bool]
TRACE_BLOCK_TOKENS = 512  # tokens behind one hash id of a trace (the published Mooncake traces)


@dataclass(frozen=True, slots=True)
class ConversationSource:
    """Talks by index. `times` are due times in seconds where the workload brings its own, `size` how many there are."""

    make_conversation: Callable[[int], Conversation]
    due_times: tuple[float, ...] | None = None
    size: int | None = None


class WordPool:
    """Random words with the offsets to cut them by."""

    def __init__(self, text: PromptWords, workload: Workload) -> None:
        self._text = text
        draw = random.Random(f"stretch {workload.seed} {workload.salt}".rstrip())
        chosen = draw.choices(text.words, k=POOL_WORDS)
        self._starts = array("I", itertools.accumulate((len(word) + 1 for word in chosen), initial=0))
        self._all = " ".join(chosen) + " "
        self._key = workload_key(workload)

    def make_prompt(self, tokens: int, key: object) -> str:
        """About `tokens` tokens (exactly, where every word is one), the same for the same key."""
        words, state = self._text.words, _splitmix64(stable_hash(key) ^ self._key)
        count = max(1, round(tokens / self._text.tokens_per_word))
        own = []
        for _ in range(min(count, UNIQUE_WORDS)):
            state = _splitmix64(state)
            own.append(words[state % len(words)])
        return " ".join(own) + self._cut(_splitmix64(state) % POOL_WORDS, count - len(own))

    def _cut(self, at: int, count: int) -> str:
        parts = [" "] if count > 0 else []
        while count > 0:
            take = min(count, POOL_WORDS - at)
            parts.append(self._all[self._starts[at] : self._starts[at + take]])
            at, count = 0, count - take
        return "".join(parts).rstrip()


def workload_key(workload: Workload) -> int:
    """A number for a workload's seed and salt."""
    if not workload.salt:
        return workload.seed * 0x9E3779B97F4A7C15
    digest = hashlib.blake2b(f"{workload.seed} {workload.salt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def stable_hash(key: object) -> int:
    """A number for a key, the same on every machine and in every process."""
    return key if isinstance(key, int) else zlib.crc32(repr(key).encode())


def _splitmix64(state: int) -> int:
    """One step of splitmix64 (Steele, Lea and Flood, 2014): a fraction of the cost of seeding a generator."""
    state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return state ^ state >> 31


class MultiTurn:
    """A conversation: each turn sends everything said so far and one message more."""

    __slots__ = ("_make", "_messages", "_next", "_turns", "_work", "index", "keep_text", "max_tokens", "turn")

    def __init__(self, index: int, work: Workload, message: Callable[[int, int], str], make: "BodyWriter") -> None:
        self.index, self.turn, self.max_tokens, self.keep_text = index, 0, work.output_tokens, True
        self._work, self._next, self._make = work, message, make
        self._messages = [{"role": "user", "content": message(index, 0)}]

    def next_body(self) -> bytes:
        """The conversation so far."""
        return self._make.json_body(messages=self._messages, tokens=self.max_tokens)

    def accept_reply(self, text: str) -> float | None:
        """Take the reply and think about the next message."""
        self.turn += 1
        if self.turn >= self._work.turns:
            return None
        self._messages.append({"role": "assistant", "content": text})
        self._messages.append({"role": "user", "content": self._next(self.index, self.turn)})
        return self._work.think_s


class BodyWriter:
    """Writes request bodies for one model and API."""

    def __init__(self, workload: Workload, model: str) -> None:
        self._chat = workload.api == "chat"
        self._common: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        self._common["temperature"] = 0.0
        if workload.ignore_eos:
            self._common["ignore_eos"] = True
        self._common |= workload.extra
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # tokens asked -> what stands around a prompt of plain words

    def plain_body(self, text: str, tokens: int) -> bytes:
        """`body` for a text that needs no escaping: words and spaces."""
        if tokens not in self._frames:
            before, _, after = self.json_body(text="\0", tokens=tokens).partition(b"\\u0000")
            self._frames[tokens] = before, after
        before, after = self._frames[tokens]
        return before + text.encode("ascii") + after

    def json_body(
        self,
        *,
        text: str = "",
        messages: Sequence[Json] | None = None,
        tokens: int,
        more: Json | None = None,
    ) -> bytes:
        """The body that asks for `tokens` tokens after this text or these messages."""
        body = {**self._common, "max_tokens": tokens, **(more or {})}
        if self._chat:
            body["messages"] = messages if messages is not None else [{"role": "user", "content": text}]
        else:
            body["prompt"] = text if messages is None else "\n\n".join(str(m.get("content", "")) for m in messages)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def open_source(
    workload: Workload, words: PromptWords, model: str, *, keep_text: KeepText = lambda index: False
) -> ConversationSource:
    """The conversations of a workload; `keep` says of which the replies' text is needed."""
    writer = BodyWriter(workload, model)
    if workload.kind == "prompts":
        return _prompt_source(load_prompts(workload.file), workload, writer, keep_text)
    pool = WordPool(words, workload)
    if workload.kind == "trace":
        return _trace_source(workload, pool, writer, keep_text)
    if workload.kind == "turns":
        return _in_turns(workload, pool, writer)
    return _random_source(workload, pool, words, writer, keep_text)


def _in_turns(workload: Workload, pool: WordPool, writer: BodyWriter) -> ConversationSource:
    def message(index: int, turn: int) -> str:
        return pool.make_prompt(workload.input_tokens, (index, turn))

    return ConversationSource(lambda index: MultiTurn(index, workload, message, writer))


def _random_source(
    workload: Workload, pool: WordPool, words: PromptWords, writer: BodyWriter, keep_text: KeepText
) -> ConversationSource:
    write = _prompt_writer(workload, pool, words)
    plain = workload.kind != "code" and all(word.isascii() and word.isalnum() for word in words.words)

    def put(text: str, tokens: int) -> bytes:
        return writer.plain_body(text, tokens) if plain else writer.json_body(text=text, tokens=tokens)

    return ConversationSource(
        lambda index: SingleTurn(
            index,
            workload.output_tokens,
            lambda i: put(write(i), workload.output_tokens),
            keep_text=keep_text(index),
        )
    )


def _prompt_writer(workload: Workload, pool: WordPool, words: PromptWords) -> Callable[[int], str]:
    if workload.kind == "code":
        word_count = max(8, round(workload.input_tokens / words.tokens_per_code_word))
        task = "rewrite this module with one more field in every class and a test for every function.\n\n"
        salt = f"{workload.seed} {workload.salt}".rstrip()
        # The name comes first: text that all prompts begin with would be answered from a prefix cache.
        return lambda index: (
            f"{pool.make_prompt(UNIQUE_WORDS, ('name', index))}: {task}"
            f"{filler.fake_code(f'{salt} {index}', word_count)}"
        )
    if workload.kind == "prefix":
        shared = [pool.make_prompt(workload.prefix_tokens, f"prefix {i}") for i in range(max(1, workload.prefixes))]
        return lambda index: f"{shared[index % len(shared)]} {pool.make_prompt(workload.input_tokens, index)}"
    return lambda index: pool.make_prompt(workload.input_tokens, index)


def _prompt_source(
    prompts: list[FilePrompt], workload: Workload, writer: BodyWriter, keep_text: KeepText
) -> ConversationSource:
    order = list(range(len(prompts)))
    random.Random(f"order {workload.seed}").shuffle(order)

    def conversation(index: int) -> Conversation:
        prompt = prompts[order[index % len(order)]]
        asked = prompt.output_tokens or workload.output_tokens
        return SingleTurn(
            index,
            asked,
            lambda _: writer.json_body(messages=list(prompt.messages), tokens=asked, more=prompt.extra_fields),
            keep_text=keep_text(index),
        )

    return ConversationSource(conversation)


def _trace_source(workload: Workload, pool: WordPool, writer: BodyWriter, keep_text: KeepText) -> ConversationSource:
    rows = load_trace(workload.file)

    def conversation(index: int) -> Conversation:
        row = rows[index % len(rows)]
        parts = [
            pool.make_prompt(TRACE_BLOCK_TOKENS, f"block {block}")
            for block in row.blocks[: row.input_tokens // TRACE_BLOCK_TOKENS]
        ]
        rest = row.input_tokens - TRACE_BLOCK_TOKENS * len(parts)
        parts += [pool.make_prompt(rest, index)] if rest > 0 else []
        return SingleTurn(
            index,
            row.output_tokens,
            lambda _: writer.json_body(text=" ".join(parts), tokens=row.output_tokens),
            keep_text=keep_text(index),
        )

    first = rows[0].at_s
    return ConversationSource(conversation, due_times=tuple(row.at_s - first for row in rows), size=len(rows))
