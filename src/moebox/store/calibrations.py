"""Stored calibrations: one JSON file each, in the user's data directory or $MOEBOX_CALIBRATIONS."""

import functools
import math
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, files
from moebox.core import catalogue
from moebox.core.box import MAX_BANDWIDTH, Box
from moebox.core.calibration import FORMAT, Calibration, DecodeStep, PrefillStep, calibrated_box, shape_id, uses_cpu
from moebox.errors import BadInput, UnknownName, refuse_if
from moebox.escape import escape_invisible

MAX_STEP_S = 3600.0  # longer is not plausible; a shared file may contain anything
MAX_SPREAD = 300.0  # standard deviation of ln(real / timed): its range is still a number
SLACK = 0.5  # `--measure` replaces mixed GGUF types of up to 8.5 bits by the 4.5 of q4_0
NAME = re.compile(r"[A-Za-z0-9._+-]{1,200}")  # ids are names of files
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


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
            found.append(replace(read_calibration(path), id=path.stem))
        except BadInput as problem:
            unreadable.append(escape_invisible(problem.message, keep=""))
    found.sort(key=lambda calibration: (calibration.date, calibration.id), reverse=True)
    return StoredCalibrations(calibrations=tuple(found), unreadable=tuple(unreadable))


def read_calibration(path: Path) -> Calibration:
    """Read a file. Raise BadInput if it is not a plausible calibration."""
    value = codec.load_json(path)
    written_format = value.get("format") if isinstance(value, dict) else None
    hint = "`moebox calibrations export` writes them"
    refuse_if(written_format != FORMAT, f"{path}: not a calibration of format {FORMAT}", hint=hint)
    found = codec.decode(Calibration, value, where=str(path))
    counts, times = [found.layers], []
    shares = [found.fit_spread, found.prompt_fit_spread, found.doubt]
    for boot in found.boots:
        steps: list[DecodeStep | PrefillStep] = [*boot.decode, *boot.prefill]
        counts += [boot.layers, *(step.batch for step in boot.decode), *(step.tokens for step in boot.prefill)]
        times += [(boot.layers, step.seconds) for step in steps]
        shares += [step.spread for step in steps]
    for expected in found.expected:
        times += [(found.layers, expected.fixed_s + expected.layer_s * found.layers), (1, expected.layer_s)]
    least_s = max(SLACK * least_layer_s(found.shape, found.quant, found.place.gpus, found.engine), 1e-9)
    impossible = [(layers, seconds) for layers, seconds in times if not layers * least_s <= seconds < MAX_STEP_S]
    layers, seconds = next(iter(impossible), (1, 0.0))
    tomorrow = time.strftime("%Y-%m-%d", time.localtime(time.time() + 86400))  # it may be today elsewhere
    rules = {
        f"the id {found.id!r} must be letters, digits, dots, dashes and underscores": NAME.fullmatch(found.id),
        f"the date {found.date!r} is not a day like 2026-11-15": DATE.fullmatch(found.date),
        f"the date {found.date} is in the future": found.date <= tomorrow,
        "layers, streams and prompts must be 1 or more": min(counts) > 0,
        f"errors must be from 0 to {MAX_SPREAD:g}": all(0 <= share <= MAX_SPREAD for share in shares),
        f"impossible times: a step of {layers} layers in {seconds:.2g} s (from {layers * least_s:.2g} s, in which the "
        f"box reads the weights that one token needs, to {MAX_STEP_S:,.0f} s)": not impossible,
    }
    for rule, holds in rules.items():
        refuse_if(not holds, f"{path}: {rule}", hint="measure again: `moebox rehearse RECIPE --measure`")
    return found


@functools.cache
def least_layer_s(shape: str, quant: str, gpus: str, engine: str) -> float:
    """Return the seconds in which a box reads the experts of one token in a layer; 0 if a table lacks one of them.

    A layer without experts has about as many bytes as those of one token.
    """
    alike = (model for model in catalogue.models().values() if shape_id(model) == shape)
    forms = ((m, each) for m in alike for each in catalogue.published_checkpoints(m.name) if each.quant == quant)
    sizes = [each.expert_layer_bytes * model.experts_used / model.experts for model, each in forms]
    known, counts = catalogue.gpus(), re.findall(r"(\d{1,4})x (\S+)", gpus)
    rate = sum(int(count) * getattr(known.get(name), "bandwidth", math.inf) for count, name in counts)
    return min(sizes, default=0.0) / (rate + MAX_BANDWIDTH * uses_cpu(engine) or math.inf)


def find_calibration(name: str) -> Calibration:
    """Find a calibration by its id, or the beginning of it."""
    known = {calibration.id: calibration for calibration in stored_calibrations().calibrations}
    return known[complete_name(name, known)]


def complete_name(name: str, known: Collection[str]) -> str:
    """Return the one of the `known` names that is `name` or begins with it."""
    near = [name] if name in known else [key for key in known if name and key.startswith(name)]
    refuse_if(len(near) > 1, f"{len(near)} calibrations begin with {name!r}", hint=", ".join(near[:5]))
    if not near:
        hint = None if known else "`moebox rehearse RECIPE --measure` makes one"
        raise UnknownName("calibration", name, known, hint=hint)
    return near[0]


def store_calibration(calibration: Calibration) -> None:
    """Write a calibration to the store; it replaces an older one with the same id."""
    folder = calibrations_dir()
    with files.report_write_errors(folder):
        if not os.environ.get("MOEBOX_CALIBRATIONS"):
            files.make_private_folder(files.xdg_home("data") / "moebox")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_calibration(calibration, folder / f"{calibration.id}.json", mode=0o600)


def write_calibration(calibration: Calibration, path: Path, *, mode: int | None = None) -> None:
    with files.report_write_errors(path):
        files.write_atomic(path, codec.to_json(calibration) + "\n", mode=mode, sync=True)


def remove_calibration(name: str) -> str:
    """Remove a file of the store, readable or not, by its name or the beginning of it. Return the name as shown."""
    paths = {escape_invisible(path.stem, keep=""): path for path in calibrations_dir().glob("*.json")}
    shown = complete_name(escape_invisible(name, keep=""), paths)
    paths[shown].unlink(missing_ok=True)
    return shown


def with_calibrations(box: Box) -> Box:
    """Add the calibrations that were measured on an equal box."""
    here = calibrated_box(box)
    known = stored_calibrations().calibrations
    own = tuple(each for each in known if each.place.matches(here, host=uses_cpu(each.engine)))
    return replace(box, calibrations=own) if own else box
