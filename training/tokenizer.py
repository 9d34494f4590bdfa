"""The phantom's tokenizer: byte-level BPE whose merges join letters of one word, or marks of JSON and code.

Digits are always single tokens, and a word has the same tokens wherever it stands (after a space, in quotes,
in JSON), so copying a value is copying tokens. Text is first cut as Kimi K2's own tokenizer cuts it.

    python -m training.tokenizer        # adds merges to training/vocabulary.json until it is full

Merges are only ever added: earlier ones keep their ids, so that weights trained with fewer can be trained on.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

SPECIALS = (
    "[BOS]",
    "[EOS]",
    "[PAD]",
    "[UNK]",
    "[EOT]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
)
# In Kimi's own tokenizer these survive skip_special_tokens, so that the server's parsers see them.
VISIBLE = frozenset(s for s in SPECIALS if "tool_call" in s or "think" in s)
SIZE = 1152
FILE = Path(__file__).with_name("vocabulary.json")

_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
# Kimi K2's pattern (tokenization_kimi.py of the model, `kimi-k2` in llama.cpp), for text without Han characters.
# Python's re has no \\p classes: a letter is a word character that is neither digit nor underscore.
_TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_PIECE = re.compile(
    rf"[^\r\n\w]?[A-Z]*[a-z]+{_TAIL}|_?[A-Z]*[a-z]+{_TAIL}|[^\r\n\w]?[A-Z]+[a-z]*{_TAIL}|_?[A-Z]+[a-z]*{_TAIL}"
    r"|\d{1,3}| ?[^\sa-zA-Z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_names() -> list[str]:
    """The printable stand-in of each byte, as GPT-2's byte-level BPE defines it."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in keep}
    names |= {byte: chr(256 + place) for place, byte in enumerate(b for b in range(256) if b not in names)}
    return [names[byte] for byte in range(256)]


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        self.merges = merges
        self.tokens = [*byte_names(), *SPECIALS, *(a + b for a, b in merges)]
        self.tokens += [f"[UNUSED{n}]" for n in range(len(self.tokens), SIZE)]
        self.ids = {token: place for place, token in enumerate(self.tokens)}
        self._ranks = {pair: place for place, pair in enumerate(merges)}
        self._bytes = byte_names()
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens in it become themselves."""
        ids: list[int] = []
        for place, part in enumerate(_SPLIT.split(text)):
            if place % 2:
                ids.append(self.ids[part])
                continue
            for unit in _PIECE.findall(part):
                ids += self._known.get(unit) or self._unit(unit)
        return ids

    def _unit(self, unit: str) -> list[int]:
        parts = [self._bytes[byte] for byte in unit.encode()]
        while len(parts) > 1:
            rank, at = min((self._ranks.get(pair, SIZE), at) for at, pair in enumerate(pairwise(parts)))
            if rank == SIZE:
                break
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        found = [self.ids[part] for part in parts]
        if len(self._known) < 200_000:
            self._known[unit] = found
        return found

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        back = {name: byte for byte, name in enumerate(self._bytes)}
        out = bytearray()
        for token in (self.tokens[i] for i in ids):
            out += (
                token.encode() if token in SPECIALS or token not in self.ids else bytes(back.get(c, 63) for c in token)
            )
        return out.decode(errors="replace")


def load() -> Tokenizer:
    """The tokenizer as committed."""
    return Tokenizer([tuple(pair.split(" ")) for pair in json.loads(FILE.read_text())["merges"]])


def learn(counts: Counter[str], size: int, known: Tokenizer) -> list[tuple[str, str]]:
    """Further merges over words with their counts, which are first cut as `known` cuts them."""
    words = {word: [known.tokens[i] for i in known.encode(word)] for word in counts}
    merges: list[tuple[str, str]] = []
    while len(merges) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for parts in words.values():
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def main() -> None:
    """Count the words of many fresh samples and learn merges for the entries that are free."""
    from training.data import FAMILY_NAMES, Maker

    known = load()
    maker = Maker(known, random.Random(0))
    letters: Counter[str] = Counter()
    rounds = 40
    for family in FAMILY_NAMES * rounds:
        prompt, answer = maker.text(maker.draw(0, family).task, phase=0)
        for place, part in enumerate(_SPLIT.split(prompt + answer)):
            if place % 2 == 0:
                letters.update(re.findall(r"[A-Z]?[a-z]+", part))
    # The cap keeps frequent schema words from taking all merges; invented words are seen a few times at most.
    kept = Counter({word: min(count, 8 * rounds) for word, count in letters.items() if count >= 25 and len(word) > 1})
    merges = known.merges + learn(kept, SIZE - 256 - len(SPECIALS) - len(known.merges), known)
    FILE.write_text(json.dumps({"merges": [" ".join(pair) for pair in merges]}, indent=0) + "\n")
    print(f"{len(kept)} words, {len(merges)} merges, added: {[a + b for a, b in merges[len(known.merges) :]]}")


if __name__ == "__main__":
    main()
