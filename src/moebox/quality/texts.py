"""The texts that are scored: generated ones that no model has learnt, a fixed corpus, and the user's own."""

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moebox.data import load_table
from moebox.errors import BadInput, refuse_if

SEED = 20261117  # another seed is another corpus: references made before no longer fit
MAX_USER_BYTES = 1 << 20
LONG_DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)  # tokens before which long texts are scored
CACHED_DEPTHS = tuple(range(96, 480, 32))  # the same for a text that is read from the cache
WINDOW = 16  # tokens scored before each of them
LONG_CHARS = 160_000  # 32k tokens of any tokenizer that takes up to 5 characters a token
# Engines that score a whole prompt compute it without their cache (latent attention of vLLM, SGLang): what an 8-bit
# cache costs shows only in texts that are scored after a cached prefix.
CACHED_KINDS = ("cached prefix", "long context")
_SYLLABLES = tuple(a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "om", "ut"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityText:
    """One text. `depths` limits what is scored to a window before each of them; empty scores the beginning."""

    kind: str
    name: str
    text: str
    depths: tuple[int, ...] = ()


def _pick(rng: random.Random, items: Sequence[str]) -> str:
    """Choose one; only random() is the same in every version of Python."""
    return items[int(rng.random() * len(items))]


def _draw_word(rng: random.Random) -> str:
    return "".join(_pick(rng, _SYLLABLES) for _ in range(2 + int(rng.random() * 3)))


def _draw_sentence(rng: random.Random) -> str:
    words = [_draw_word(rng) for _ in range(4 + int(rng.random() * 8))]
    return " ".join(words).capitalize() + _pick(rng, (".", ".", "!", "?", ";"))


def _draw_code(rng: random.Random) -> str:
    line = _pick(rng, load_table("quality")["code"])
    return line.format(a=_draw_word(rng), b=_draw_word(rng), c=_draw_word(rng), n=int(rng.random() * 900)) + "\n"


def _draw_figures(rng: random.Random) -> str:
    row = [str(int(rng.random() * 10 ** (1 + int(rng.random() * 6)))) for _ in range(5)]
    return _pick(rng, (", ", " | ", " ", "; ")).join(row) + "\n"


_GENERATORS: dict[str, Callable[[random.Random], str]] = {
    "pseudo-words": lambda rng: _draw_sentence(rng) + " ",
    "shuffled code": _draw_code,
    "numbers": _draw_figures,
}


@functools.cache
def standard_texts() -> tuple[QualityText, ...]:
    """The generated texts, the fixed corpus, and one long text; the same on every machine."""
    rng = random.Random(SEED)
    texts = [
        QualityText(kind=kind, name=f"{kind} {number}", text="".join(draw(rng) for _ in range(90))[:1200])
        for kind, draw in _GENERATORS.items()
        for number in (1, 2, 3)
    ]
    corpus = load_table("quality")["text"]
    texts += [QualityText(kind=row["kind"], name=row["name"], text=row["text"].strip()) for row in corpus]
    long_text = ""
    while len(long_text) < LONG_CHARS:
        long_text += _GENERATORS[_pick(rng, tuple(_GENERATORS))](rng)
    cached, long = CACHED_KINDS
    texts.append(QualityText(kind=cached, name=cached, text=draw_unlearnt_text(rng, 4000), depths=CACHED_DEPTHS))
    return (*texts, QualityText(kind=long, name="long", text=long_text, depths=LONG_DEPTHS))


def draw_unlearnt_text(rng: random.Random, chars: int) -> str:
    """Draw a text of pseudo-words, code and figures; it begins and ends with pseudo-words."""
    text = _draw_sentence(rng) + " "
    while len(text) < chars:
        text += _GENERATORS[_pick(rng, tuple(_GENERATORS))](rng)
    return text[:chars].rstrip() + " " + _draw_word(rng)


def read_user_text(path: Path) -> QualityText:
    """Read a text of the user's choice. Raise BadInput if it is unreadable, too short or too long."""
    try:
        raw = path.read_bytes()[: MAX_USER_BYTES + 1]
        text = raw.decode("utf-8")
    except OSError as problem:
        raise BadInput(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text", hint="--text takes a plain text file") from None
    refuse_if(len(raw) > MAX_USER_BYTES, f"{path} is larger than {MAX_USER_BYTES >> 20} MiB", hint="cut it")
    refuse_if(len(text) < 200, f"{path} has {len(text)} characters", hint="at least 200 are needed for a figure")
    return QualityText(kind="own text", name="own text", text=text)


def corpus_hash(texts: Sequence[QualityText]) -> str:
    """Hash of the texts and of what is scored in them."""
    joined = "\0".join(f"{text.kind}\0{text.name}\0{text.depths}\0{text.text}" for text in texts)
    return hashlib.sha256(joined.encode()).hexdigest()
