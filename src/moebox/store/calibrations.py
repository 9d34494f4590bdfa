"""Where calibrations are kept: one JSON file each, in the user's data directory or $MOEBOX_CALIBRATIONS."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, files
from moebox.core.box import Box
from moebox.core.calibration import FORMAT, Boot, Calibration, DecodeStep, Prefill, on_host, place_of
from moebox.errors import BadInput, UnknownName, refuse_if

LONGEST_S = 3600.0  # of a step; a file that somebody shared may say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What the store holds, and which of its files cannot be read."""

    calibrations: tuple[Calibration, ...] = ()
    unreadable: tuple[str, ...] = ()  # one line each


def stamp() -> tuple[tuple[str, int], ...]:
    """Names and times of the files; another one means other calibrations."""
    try:
        return tuple(sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder())))
    except OSError:
        return ()


def folder() -> Path:
    """Where they are."""
    return Path(os.environ.get("MOEBOX_CALIBRATIONS") or files.data_home() / "moebox" / "calibrations")


def shelf() -> Shelf:
    """All of them, newest first."""
    there = sorted(folder().glob("*.json")) if folder().is_dir() else []
    found, unreadable = [], []
    for path in there:
        try:
            found.append(read(path))
        except BadInput as problem:
            unreadable.append(problem.message)
    found.sort(key=lambda calibration: (calibration.date, calibration.id), reverse=True)
    return Shelf(calibrations=tuple(found), unreadable=tuple(unreadable))


def read(path: Path) -> Calibration:
    """The calibration in a file."""
    value = codec.load_json(path)
    wrote = value.get("format") if isinstance(value, dict) else None
    if wrote != FORMAT:
        raise BadInput(f"{path}: not a calibration of format {FORMAT}", hint="`moebox calibrations export` writes them")
    found = codec.decode(Calibration, value, where=str(path))
    for boot in found.boots:
        refuse_if(not _possible(boot), f"{path}: a boot of {boot.layers} layers has impossible times")
    lines = all(0 < step.layer_s < LONGEST_S and abs(step.fixed_s) < LONGEST_S for step in found.expected)
    refuse_if(not lines, f"{path}: impossible times were expected of a step")
    return found


def _possible(boot: Boot) -> bool:
    steps: list[DecodeStep | Prefill] = [*boot.decode, *boot.prefill]
    return boot.layers >= 1 and all(0 < step.seconds < LONGEST_S and 0 <= step.spread < LONGEST_S for step in steps)


def get(name: str) -> Calibration:
    """The one called `name`, or whose id begins so."""
    known = {calibration.id: calibration for calibration in shelf().calibrations}
    near = [key for key in known if name and key.startswith(name)]
    if name in known:
        near = [name]
    if len(near) > 1:
        raise BadInput(f"{len(near)} calibrations begin with {name!r}", hint=", ".join(near[:5]))
    if not near:
        hint = None if known else "`moebox rehearse RECIPE --measure` makes one"
        raise UnknownName("calibration", name, known, hint=hint)
    return known[near[0]]


def keep(calibration: Calibration) -> Path:
    """Write it to the store, in place of an older one with its id."""
    return write(calibration, folder() / f"{calibration.id}.json")


def write(calibration: Calibration, path: Path) -> Path:
    """Write it to a file, whole or not at all."""
    with files.writing(path):
        return files.write_atomic(path, codec.to_json(calibration) + "\n", sync=True)


def remove(name: str) -> Calibration:
    """Drop it from the store."""
    found = get(name)
    (folder() / f"{found.id}.json").unlink(missing_ok=True)
    return found


def attached(box: Box) -> Box:
    """`box` with the calibrations that were measured on such a box."""
    here = place_of(box)
    own = tuple(
        calibration
        for calibration in shelf().calibrations
        if calibration.place.same(here, host=on_host(calibration.engine))
    )
    return replace(box, calibrations=own) if own else box
