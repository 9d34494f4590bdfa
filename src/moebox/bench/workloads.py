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
from moebox.bench.generator import Conversation, OneTurn, Text
from moebox.bench.prompts import Prompt, load_prompts, load_trace
from moebox.core.measure import Workload
from moebox.loose import Json

STRETCH = 65536  # words in the long stretch; longer prompts wrap around
OWN = 4  # words at the head of each prompt that are its own: one in 10^10 prompts shares them with another
Keep = Callable[[int], bool]
BLOCK = 512  # tokens behind one hash id of a trace (the published Mooncake traces)


@dataclass(frozen=True, slots=True)
class Source:
    """Talks by index. `times` are due times in seconds where the workload brings its own, `size` how many there are."""

    conversation: Callable[[int], Conversation]
    times: tuple[float, ...] | None = None
    size: int | None = None


class Stretch:
    """Random words with the offsets to cut them by."""

    def __init__(self, text: Text, workload: Workload) -> None:
        self._text = text
        draw = random.Random(f"stretch {workload.seed} {workload.salt}".rstrip())
        chosen = draw.choices(text.words, k=STRETCH)
        self._starts = array("I", itertools.accumulate((len(word) + 1 for word in chosen), initial=0))
        self._all = " ".join(chosen) + " "
        self._key = number_of(workload)

    def prompt(self, tokens: int, key: object) -> str:
        """About `tokens` tokens (exactly, where every word is one), the same for the same key."""
        words, state = self._text.words, _mix(hash_of(key) ^ self._key)
        count = max(1, round(tokens / self._text.tokens_per_word))
        own = []
        for _ in range(min(count, OWN)):
            state = _mix(state)
            own.append(words[state % len(words)])
        return " ".join(own) + self._cut(_mix(state) % STRETCH, count - len(own))

    def _cut(self, at: int, count: int) -> str:
        parts = [" "] if count > 0 else []
        while count > 0:
            take = min(count, STRETCH - at)
            parts.append(self._all[self._starts[at] : self._starts[at + take]])
            at, count = 0, count - take
        return "".join(parts).rstrip()


def number_of(workload: Workload) -> int:
    """A number for a workload's seed and salt."""
    if not workload.salt:
        return workload.seed * 0x9E3779B97F4A7C15
    digest = hashlib.blake2b(f"{workload.seed} {workload.salt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def hash_of(key: object) -> int:
    """A number for a key, the same on every machine and in every process."""
    return key if isinstance(key, int) else zlib.crc32(repr(key).encode())


def _mix(state: int) -> int:
    """One step of splitmix64 (Steele, Lea and Flood, 2014): a fraction of the cost of seeding a generator."""
    state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return state ^ state >> 31


class Turns:
    """A conversation: each turn sends everything said so far and one message more."""

    __slots__ = ("_make", "_messages", "_next", "_turns", "_work", "asked", "index", "keep", "turn")

    def __init__(self, index: int, work: Workload, message: Callable[[int, int], str], make: "Maker") -> None:
        self.index, self.turn, self.asked, self.keep = index, 0, work.output_tokens, True
        self._work, self._next, self._make = work, message, make
        self._messages = [{"role": "user", "content": message(index, 0)}]

    def body(self) -> bytes:
        """The conversation so far."""
        return self._make.body(messages=self._messages, tokens=self.asked)

    def replied(self, text: str) -> float | None:
        """Take the reply and think about the next message."""
        self.turn += 1
        if self.turn >= self._work.turns:
            return None
        self._messages.append({"role": "assistant", "content": text})
        self._messages.append({"role": "user", "content": self._next(self.index, self.turn)})
        return self._work.think_s


class Maker:
    """Writes request bodies for one model and API."""

    def __init__(self, workload: Workload, model: str) -> None:
        self._chat = workload.api == "chat"
        self._common: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        self._common["temperature"] = 0.0
        if workload.ignore_eos:
            self._common["ignore_eos"] = True
        self._common |= workload.extra
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # tokens asked -> what stands around a prompt of plain words

    def plain(self, text: str, tokens: int) -> bytes:
        """`body` for a text that needs no escaping: words and spaces."""
        if tokens not in self._frames:
            before, _, after = self.body(text="\0", tokens=tokens).partition(b"\\u0000")
            self._frames[tokens] = before, after
        before, after = self._frames[tokens]
        return before + text.encode("ascii") + after

    def body(
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


def open_source(workload: Workload, text: Text, model: str, *, keep: Keep = lambda index: False) -> Source:
    """The conversations of a workload; `keep` says of which the replies' text is needed."""
    make = Maker(workload, model)
    if workload.kind == "prompts":
        return _from_prompts(load_prompts(workload.file), workload, make, keep)
    stretch = Stretch(text, workload)
    if workload.kind == "trace":
        return _from_trace(workload, stretch, make, keep)
    if workload.kind == "turns":
        return _in_turns(workload, stretch, make)
    return _from_words(workload, stretch, text, make, keep)


def _in_turns(workload: Workload, stretch: Stretch, make: Maker) -> Source:
    def message(index: int, turn: int) -> str:
        return stretch.prompt(workload.input_tokens, (index, turn))

    return Source(lambda index: Turns(index, workload, message, make))


def _from_words(workload: Workload, stretch: Stretch, text: Text, make: Maker, keep: Keep) -> Source:
    write = _writer(workload, stretch, text)
    plain = workload.kind != "code" and all(word.isascii() and word.isalnum() for word in text.words)

    def put(text: str, tokens: int) -> bytes:
        return make.plain(text, tokens) if plain else make.body(text=text, tokens=tokens)

    return Source(
        lambda index: OneTurn(
            index,
            workload.output_tokens,
            lambda i: put(write(i), workload.output_tokens),
            keep=keep(index),
        )
    )


def _writer(workload: Workload, stretch: Stretch, text: Text) -> Callable[[int], str]:
    if workload.kind == "code":
        words = max(8, round(workload.input_tokens / text.tokens_per_code_word))
        task = "rewrite this module with one more field in every class and a test for every function.\n\n"
        salt = f"{workload.seed} {workload.salt}".rstrip()
        # The name comes first: text that all prompts begin with would be answered from a prefix cache.
        return lambda index: f"{stretch.prompt(OWN, ('name', index))}: {task}{filler.code(f'{salt} {index}', words)}"
    if workload.kind == "prefix":
        shared = [stretch.prompt(workload.prefix_tokens, f"prefix {i}") for i in range(max(1, workload.prefixes))]
        return lambda index: f"{shared[index % len(shared)]} {stretch.prompt(workload.input_tokens, index)}"
    return lambda index: stretch.prompt(workload.input_tokens, index)


def _from_prompts(prompts: list[Prompt], workload: Workload, make: Maker, keep: Keep) -> Source:
    order = list(range(len(prompts)))
    random.Random(f"order {workload.seed}").shuffle(order)

    def conversation(index: int) -> Conversation:
        prompt = prompts[order[index % len(order)]]
        asked = prompt.output_tokens or workload.output_tokens
        return OneTurn(
            index,
            asked,
            lambda _: make.body(messages=list(prompt.messages), tokens=asked, more=prompt.more),
            keep=keep(index),
        )

    return Source(conversation)


def _from_trace(workload: Workload, stretch: Stretch, make: Maker, keep: Keep) -> Source:
    rows = load_trace(workload.file)

    def conversation(index: int) -> Conversation:
        row = rows[index % len(rows)]
        parts = [stretch.prompt(BLOCK, f"block {block}") for block in row.blocks[: row.input_tokens // BLOCK]]
        rest = row.input_tokens - BLOCK * len(parts)
        parts += [stretch.prompt(rest, index)] if rest > 0 else []
        return OneTurn(
            index,
            row.output_tokens,
            lambda _: make.body(text=" ".join(parts), tokens=row.output_tokens),
            keep=keep(index),
        )

    first = rows[0].at_s
    return Source(conversation, times=tuple(row.at_s - first for row in rows), size=len(rows))
