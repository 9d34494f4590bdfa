"""Stored calibrations: one JSON file each, in the user's data directory or $MOEBOX_CALIBRATIONS."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, files
from moebox.core.box import Box
from moebox.core.calibration import FORMAT, Calibration, DecodeStep, PrefillStep, calibrated_box, uses_cpu
from moebox.errors import BadInput, UnknownName, refuse_if

MAX_STEP_S = 3600.0  # longer is not plausible; a shared file may contain anything


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibrations:
    """All readable calibrations, newest first, and a line for each unreadable file."""

    calibrations: tuple[Calibration, ...] = ()
    unreadable: tuple[str, ...] = ()


def store_stamp() -> tuple[tuple[str, int], ...]:
    """Names and times of the files; another stamp means other calibrations."""
    try:
        return tuple(sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(calibrations_dir())))
    except OSError:
        return ()


def calibrations_dir() -> Path:
    return Path(os.environ.get("MOEBOX_CALIBRATIONS") or files.xdg_home("data") / "moebox" / "calibrations")


def stored_calibrations() -> StoredCalibrations:
    folder = calibrations_dir()
    found, unreadable = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_calibration(path))
        except BadInput as problem:
            unreadable.append(problem.message)
    found.sort(key=lambda calibration: (calibration.date, calibration.id), reverse=True)
    return StoredCalibrations(calibrations=tuple(found), unreadable=tuple(unreadable))


def read_calibration(path: Path) -> Calibration:
    """Read a file. Raise BadInput if it is not a plausible calibration."""
    value = codec.load_json(path)
    written_format = value.get("format") if isinstance(value, dict) else None
    hint = "`moebox calibrations export` writes them"
    refuse_if(written_format != FORMAT, f"{path}: not a calibration of format {FORMAT}", hint=hint)
    found = codec.decode(Calibration, value, where=str(path))
    for boot in found.boots:
        steps: list[DecodeStep | PrefillStep] = [*boot.decode, *boot.prefill]
        plausible = all(0 < step.seconds < MAX_STEP_S and 0 <= step.spread < MAX_STEP_S for step in steps)
        refuse_if(boot.layers < 1 or not plausible, f"{path}: a boot of {boot.layers} layers has impossible times")
    plausible = all(0 < step.layer_s < MAX_STEP_S and abs(step.fixed_s) < MAX_STEP_S for step in found.expected)
    refuse_if(not plausible, f"{path}: an expected step has impossible times")
    return found


def find_calibration(name: str) -> Calibration:
    """Find a calibration by its id, or the beginning of it."""
    known = {calibration.id: calibration for calibration in stored_calibrations().calibrations}
    near = [name] if name in known else [key for key in known if name and key.startswith(name)]
    refuse_if(len(near) > 1, f"{len(near)} calibrations begin with {name!r}", hint=", ".join(near[:5]))
    if not near:
        hint = None if known else "`moebox rehearse RECIPE --measure` makes one"
        raise UnknownName("calibration", name, known, hint=hint)
    return known[near[0]]


def store_calibration(calibration: Calibration) -> Path:
    """Write a calibration to the store; it replaces an older one with the same id."""
    folder = calibrations_dir()
    with files.report_write_errors(folder):
        if not os.environ.get("MOEBOX_CALIBRATIONS"):
            files.make_private_folder(files.xdg_home("data") / "moebox")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return write_calibration(calibration, folder / f"{calibration.id}.json", mode=0o600)


def write_calibration(calibration: Calibration, path: Path, *, mode: int | None = None) -> Path:
    with files.report_write_errors(path):
        return files.write_atomic(path, codec.to_json(calibration) + "\n", mode=mode, sync=True)


def remove_calibration(name: str) -> Calibration:
    found = find_calibration(name)
    (calibrations_dir() / f"{found.id}.json").unlink(missing_ok=True)
    return found


def with_calibrations(box: Box) -> Box:
    """Add the calibrations that were measured on an equal box."""
    here = calibrated_box(box)
    known = stored_calibrations().calibrations
    own = tuple(each for each in known if each.place.matches(here, host=uses_cpu(each.engine)))
    return replace(box, calibrations=own) if own else box
