"""Reference files: log-probabilities of one server, to compare others with on any machine.

A line with the SHA-256 of the rest, then compressed JSON. The hash is checked before anything is parsed, and it names
the file when it is published.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from moebox import codec
from moebox.errors import BadInput, refuse_if, require_all
from moebox.quality.wire import NextToken, TextReading, TokenKey, find_reading_problem, tokenizer_hash

MAGIC = b"moebox-quality-1 "
FILE_NAME = "reference.moeq"  # in a run folder
MAX_FILE_BYTES = 32 << 20
MAX_JSON_BYTES = 256 << 20
STEPS = 10_000  # of a nat: log-probabilities are stored as whole numbers of them
KEPT = 20  # most likely tokens kept at each position, as many as vLLM gives by default


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceFacts:
    """What a reference was made from."""

    model: str
    corpus: str  # hash of the texts
    tokenizer: str  # hash of their tokens
    engine: str = ""
    version: str = ""
    weights: str = ""  # hash of the header or configuration of the weights, if they were on the same machine
    weights_name: str = ""
    box: str = ""
    moebox: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredText:
    kind: str
    name: str
    tokens: tuple[TokenKey, ...]
    depths: tuple[int, ...]
    keys: tuple[tuple[TokenKey, ...], ...]
    values: tuple[tuple[int, ...], ...]  # minus the log-probability, in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference file, checked."""

    about: ReferenceFacts
    readings: tuple[TextReading, ...]
    sha256: str = ""

    @property
    def title(self) -> str:
        """ "phantom, llamacpp b123, 2026-11-17, sha256 1f0c9a2b"."""
        engine = " ".join(filter(None, (self.about.engine, self.about.version)))
        return ", ".join(filter(None, (self.about.model, engine, self.about.date, f"sha256 {self.sha256[:8]}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReference:
    """The JSON document of a reference file."""

    about: ReferenceFacts
    texts: tuple[StoredText, ...] = ()


def reference_bytes(about: ReferenceFacts, readings: Sequence[TextReading]) -> bytes:
    texts = []
    for reading in readings:
        keys, values = [], []
        for position in reading.positions:
            kept = dict(list(position.top.items())[:KEPT])
            if position.logprob is not None:
                kept[position.token] = position.logprob
            keys.append(tuple(kept))
            values.append(tuple(round(-value * STEPS) for value in kept.values()))
        new_stored = StoredText(
            kind=reading.kind,
            name=reading.name,
            tokens=reading.tokens,
            depths=tuple(position.depth for position in reading.positions),
            keys=tuple(keys),
            values=tuple(values),
        )
        texts.append(new_stored)
    packed = zlib.compress(msgspec.json.encode(StoredReference(about=about, texts=tuple(texts))), 9)
    return MAGIC + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def read_reference(path: Path) -> Reference:
    """Read a reference file, or that of a run folder. Raise BadInput if it is not one, or was changed."""
    path = path / FILE_NAME if path.is_dir() else path
    hint = "`moebox quality URL --save FILE` writes one"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise BadInput(f"{path}: {problem.strerror}", hint=hint) from None
    head, _, packed = raw.partition(b"\n")
    refuse_if(len(raw) > MAX_FILE_BYTES, f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: not a reference")
    refuse_if(not head.startswith(MAGIC), f"{path} is not a reference of moebox", hint=hint)
    sha256 = hashlib.sha256(packed).hexdigest()
    refuse_if(head[len(MAGIC) :] != sha256.encode(), f"{path} was changed or cut: its hash does not fit", hint=hint)
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_JSON_BYTES)
        refuse_if(unpacker.unconsumed_tail, f"{path} unpacks to more than {MAX_JSON_BYTES >> 20} MiB")
        plain = msgspec.json.decode(text)
    except (zlib.error, msgspec.DecodeError, RecursionError) as problem:
        raise BadInput(f"{path} cannot be unpacked: {problem}") from None
    stored = codec.decode(StoredReference, plain, where=str(path))
    readings = tuple(_restore(text, str(path)) for text in stored.texts)
    if problem_text := find_reading_problem(readings):
        raise BadInput(f"{path}: {problem_text}")
    fits = stored.about.tokenizer == tokenizer_hash(readings)
    refuse_if(not fits, f"{path}: the hash of its tokens does not fit", hint=hint)
    return Reference(about=stored.about, readings=readings, sha256=sha256)


def _restore(text: StoredText, where: str) -> TextReading:
    """One text of a reference file; BadInput if its lists do not fit each other."""
    count, length = len(text.depths), len(text.tokens)
    rows = list(zip(text.depths, text.keys, text.values, strict=False))
    require_all(
        f"{where}: {text.name[:80]!r}",
        {
            "one list of tokens and of values at each depth": count == len(text.keys) == len(text.values),
            "depths lie in the text": all(0 <= depth < length for depth in text.depths),
            "depths are not repeated": len(set(text.depths)) == count,
            "as many values as tokens": all(len(keys) == len(values) > 0 for _, keys, values in rows),
        },
    )
    positions = [
        NextToken(
            depth=depth,
            token=text.tokens[depth],
            top=dict(sorted(zip(keys, (-value / STEPS for value in values), strict=True), key=lambda pair: -pair[1])),
        )
        for depth, keys, values in rows
    ]
    return TextReading(kind=text.kind, name=text.name, tokens=text.tokens, positions=tuple(positions))
