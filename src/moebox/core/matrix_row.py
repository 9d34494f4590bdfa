"""A row of the public matrix: what one run showed, small enough to be sent by a pull request."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from moebox.core import catalogue, registry

NOT_VERIFIED = "not verified by checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCell:
    """One load of a run."""

    concurrency: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    output_tok_s: float
    ttft_ms: float | None = None
    conditions: tuple[str, ...] = ()  # reasons not to compare the figure; empty if there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One run: box, versions, recipe, checks, speed and conditions."""

    format: Literal[1] = 1
    source: str  # moebox, or the registry that it was imported from
    url: str = ""
    date: str
    state: Literal["runs", "wrong"]
    verified: bool  # by moebox's checks: some ran and none failed
    box: str
    gpus: tuple[str, ...] = ()
    cpu: str = ""
    ram: int = 0
    engine: str
    model: str
    checkpoint: str
    recipe_digest: str = ""  # SHA-256 of the recipe as JSON; empty if imported
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    speed: tuple[SpeedCell, ...] = ()
    note: str = ""


def row_problems(row: MatrixRow) -> Iterator[str]:
    """What keeps a row out of the matrix."""
    if not re.fullmatch(r"20\d\d-\d\d-\d\d", row.date):
        yield f"date {row.date!r}: write it like 2026-11-17"
    if row.engine not in registry.engine_names():
        yield f"engine {row.engine!r} is unknown: {', '.join(registry.engine_names())}"
    if row.source == "moebox":
        if not re.fullmatch(r"[0-9a-f]{64}", row.recipe_digest):
            yield "recipe_digest: not a SHA-256"
        if row.model not in catalogue.models():
            yield f"model {row.model!r} is not in the catalogue: add it first"
    elif row.verified or NOT_VERIFIED not in row.note:
        yield f"rows of {row.source} carry verified = false and the note {NOT_VERIFIED!r}"
    elif not row.url.startswith("https://"):
        yield "an imported row needs the address of its source"
    failed = [name for name, verdict in row.checks.items() if verdict == "fail"]
    if row.verified and (failed or not row.checks):
        yield f"verified, but {'failed: ' + ', '.join(failed) if failed else 'no check ran'}"
    if (row.state == "wrong") != bool(failed) and row.checks:
        yield f"state {row.state!r} contradicts the checks"
    if not row.checks and not row.speed:
        yield "neither checks nor speed"
    if any(not 0 < cell.output_tok_s < 1e6 for cell in row.speed):
        yield "output_tok_s: not between 0 and 1,000,000"
