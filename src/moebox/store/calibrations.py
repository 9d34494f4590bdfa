"""Where calibrations are kept: one JSON file each, in the user's data directory or $MOEBOX_CALIBRATIONS."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, files
from moebox.core.box import Box
from moebox.core.calibration import FORMAT, Boot, Calibration, DecodeStep, PrefillStep, calibrated_box, uses_cpu
from moebox.errors import BadInput, UnknownName, refuse_if

MAX_STEP_S = 3600.0  # of a step; a file that somebody shared may say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibrations:
    """What the store holds, and which of its files cannot be read."""

    calibrations: tuple[Calibration, ...] = ()
    unreadable: tuple[str, ...] = ()  # one line each


def store_stamp() -> tuple[tuple[str, int], ...]:
    """Names and times of the files; another one means other calibrations."""
    try:
        return tuple(sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(calibrations_dir())))
    except OSError:
        return ()


def calibrations_dir() -> Path:
    """Where they are."""
    return Path(os.environ.get("MOEBOX_CALIBRATIONS") or files.data_home() / "moebox" / "calibrations")


def stored_calibrations() -> StoredCalibrations:
    """All of them, newest first."""
    there = sorted(calibrations_dir().glob("*.json")) if calibrations_dir().is_dir() else []
    found, unreadable = [], []
    for path in there:
        try:
            found.append(read_calibration(path))
        except BadInput as problem:
            unreadable.append(problem.message)
    found.sort(key=lambda calibration: (calibration.date, calibration.id), reverse=True)
    return StoredCalibrations(calibrations=tuple(found), unreadable=tuple(unreadable))


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file."""
    value = codec.load_json(path)
    wrote = value.get("format") if isinstance(value, dict) else None
    if wrote != FORMAT:
        raise BadInput(f"{path}: not a calibration of format {FORMAT}", hint="`moebox calibrations export` writes them")
    found = codec.decode(Calibration, value, where=str(path))
    for boot in found.boots:
        refuse_if(not _possible(boot), f"{path}: a boot of {boot.layers} layers has impossible times")
    lines = all(0 < step.layer_s < MAX_STEP_S and abs(step.fixed_s) < MAX_STEP_S for step in found.expected)
    refuse_if(not lines, f"{path}: impossible times were expected of a step")
    return found


def _possible(boot: Boot) -> bool:
    steps: list[DecodeStep | PrefillStep] = [*boot.decode, *boot.prefill]
    return boot.layers >= 1 and all(0 < step.seconds < MAX_STEP_S and 0 <= step.spread < MAX_STEP_S for step in steps)


def find_calibration(name: str) -> Calibration:
    """The one called `name`, or whose id begins so."""
    known = {calibration.id: calibration for calibration in stored_calibrations().calibrations}
    near = [key for key in known if name and key.startswith(name)]
    if name in known:
        near = [name]
    if len(near) > 1:
        raise BadInput(f"{len(near)} calibrations begin with {name!r}", hint=", ".join(near[:5]))
    if not near:
        hint = None if known else "`moebox rehearse RECIPE --measure` makes one"
        raise UnknownName("calibration", name, known, hint=hint)
    return known[near[0]]


def store_calibration(calibration: Calibration) -> Path:
    """Write it to the store, in place of an older one with its id."""
    return write_calibration(calibration, calibrations_dir() / f"{calibration.id}.json")


def write_calibration(calibration: Calibration, path: Path) -> Path:
    """Write it to a file, whole or not at all."""
    with files.report_write_errors(path):
        return files.write_atomic(path, codec.to_json(calibration) + "\n", sync=True)


def remove_calibration(name: str) -> Calibration:
    """Drop it from the store."""
    found = find_calibration(name)
    (calibrations_dir() / f"{found.id}.json").unlink(missing_ok=True)
    return found


def with_calibrations(box: Box) -> Box:
    """`box` with the calibrations that were measured on such a box."""
    here = calibrated_box(box)
    own = tuple(
        calibration
        for calibration in stored_calibrations().calibrations
        if calibration.place.matches(here, host=uses_cpu(calibration.engine))
    )
    return replace(box, calibrations=own) if own else box
