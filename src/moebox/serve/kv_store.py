"""The KV store of an engine on disk: prepared before a start, slots of llama.cpp saved at the end and restored.

FOLDER/moebox-store.json    what wrote the store, and the digest of each saved slot
FOLDER/slot-N.bin           a saved slot; slot-N.part while it is written
"""

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from moebox import codec, files, http
from moebox.core.deployment import Deployment
from moebox.core.endpoint import Endpoint
from moebox.core.engine_event import SlotsKept
from moebox.engines.kv_store import GIB, store_folder, store_identity
from moebox.errors import BadInput, ExternalError
from moebox.loose import get_number
from moebox.serve import preflight
from moebox.store import Run
from moebox.units import format_gib, plural

RECORD = "moebox-store.json"
REMOVE = "remove it, or set kv_tiers.folder"
SLOT_S = 600.0  # for one slot: tens of gigabytes on a slow disk


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecord:
    """What a store was written by, and its slots: file name to digest."""

    identity: dict[str, str]
    slots: dict[str, str] = field(default_factory=dict)
    most: int = 0  # bytes


def prepare_store(deployment: Deployment) -> Path | None:
    """Make or check the store of a recipe; None without one. Raise ExternalError if it cannot be used."""
    tiers = deployment.recipe.tiers
    if not tiers.disk_gib:
        return None
    folder, identity = Path(store_folder(deployment)), store_identity(deployment)
    if weights := preflight.weight_files(deployment):  # those under the same path may be others by now
        every = (*weights, *weights[0].parent.glob("config.json"))  # in the Hub's cache links to hashes
        seen = [(file.resolve().name, file.stat().st_size, file.stat().st_mtime_ns) for file in every]
        identity["bytes"] = hashlib.sha256(repr(seen).encode()).hexdigest()
    if digest := preflight.image_digest(deployment):  # pulled since the folder was named, or again under the same tag
        identity["image digest"] = digest
    try:
        files.make_private_folder(folder)
        record = read_record(folder)
        if record is None and any(folder.iterdir()):
            raise ExternalError(f"{folder} holds files of another program", hint="empty it, or set kv_tiers.folder")
        record = record or StoreRecord(identity=identity)
        other = [name for name in identity if record.identity.get(name, identity[name]) != identity[name]]
        if other:
            found = {"bytes": "other weights"}.get(other[0], f"{other[0]} {record.identity[other[0]]}")
            raise ExternalError(f"the KV store {folder} was written with {found}", hint=REMOVE)
        for part in folder.glob("*.part"):  # of a save that was killed
            part.unlink()
        record = replace(record, identity=record.identity | identity, most=int(tiers.disk_gib * GIB))
        used = trim_store(folder, record)
        room = shutil.disk_usage(folder).free
        if used + room < tiers.disk_gib * GIB:
            text = f"kv_tiers.disk_gib: {tiers.disk_gib:g} GiB do not fit, {folder} has {format_gib(used + room)}"
            raise ExternalError(text, hint=f"kv_tiers.disk_gib = {(used + room) // GIB}, or another kv_tiers.folder")
    except OSError as problem:
        raise ExternalError(f"the KV store {folder} cannot be used: {problem.strerror}") from None
    return folder


def trim_store(folder: Path, record: StoreRecord) -> int:
    """Remove the oldest files beyond the size of a store (vLLM's files have no limit), and record which slots are left.

    Return the bytes that are left.
    """
    found = sorted((path.stat().st_mtime, path) for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    used = sum(path.stat().st_size for _, path in found)
    for _, path in found:
        if used <= (record.most or used):
            break
        used -= path.stat().st_size
        path.unlink()
    left = {name: digest for name, digest in record.slots.items() if (folder / name).exists()}
    files.write_atomic(folder / RECORD, codec.to_json(replace(record, slots=left)), mode=0o600, sync=True)
    return used


def read_record(folder: Path) -> StoreRecord | None:
    """The record of a store; None if there is none or it is not readable."""
    try:
        return codec.decode(StoreRecord, codec.load_json(folder / RECORD), where=str(folder))
    except BadInput:
        return None


def keep_slots(endpoint: Endpoint, folder: Path, run: Run) -> None:
    """Save the slots before a stop, which no problem here may prevent, and note in the run what happened."""
    with contextlib.suppress(OSError):  # the folder of the run may be gone
        run.add_event(SlotsKept(text=save_slots(endpoint, folder)))


def save_slots(endpoint: Endpoint, folder: Path) -> str:
    """Save every slot of llama.cpp; a slot that cannot be saved keeps its older file. Return one line of what happened.

    Each file is written under another name, and recorded with its digest before it is used.
    """
    record, saved, problems = read_record(folder), list[int](), dict[str, list[int]]()
    listed = http.get(f"{endpoint.server_url}/slots", headers=endpoint.headers, timeout_s=30.0)
    slots = listed.json_if_ok()
    if record is None or not isinstance(slots, list):
        reason = f"GET /slots: {listed.error}" if record else f"{folder / RECORD} is missing or damaged"
        return f"no slot was saved: {reason}"
    for number in range(len(slots)):
        part = folder / f"slot-{number}.part"
        reply = _ask_slot(endpoint, number, "save", part.name)
        tokens = get_number(reply.json(), "n_saved")
        reason = {None: "no n_saved in the reply", 0.0: "it is empty"}.get(tokens, "nothing written")
        try:
            if reply.ok and tokens and part.is_file() and part.stat().st_size:
                record = replace(record, slots={**record.slots, f"slot-{number}.bin": _file_digest(part)})
                os.replace(part, part.with_suffix(".bin"))
                trim_store(folder, record)
                saved.append(number)
                continue
            part.unlink(missing_ok=True)
        except OSError as failure:
            reason = str(failure.strerror)
        problems.setdefault(reason if reply.ok else reply.error, []).append(number)
    if lost := [number for number in saved if not (folder / f"slot-{number}.bin").exists()]:
        problems["kv_tiers.disk_gib is too small for it"] = lost
    parts = [f"{len(saved) - len(lost)} of {plural(len(slots), 'slot')} saved in {folder}"]
    parts += [f"slot {', '.join(map(str, each))} was not saved ({reason})" for reason, each in problems.items()]
    return "; ".join(parts)


def restore_slots(endpoint: Endpoint, folder: Path) -> str:
    """Restore every slot whose file is as it was saved: llama.cpp is corrupted by one that it refuses (issue 27052)."""
    record, restored, problem = read_record(folder), 0, ""
    for name, digest in record.slots.items() if record else ():
        try:
            is_whole = _file_digest(folder / name) == digest
        except OSError:
            is_whole = False
        if not is_whole:
            problem = f"{name} is not as it was saved and was left out"
            continue
        reply = _ask_slot(endpoint, int(name.removeprefix("slot-").removesuffix(".bin")), "restore", name)
        restored += reply.ok
        problem = problem if reply.ok else f"{name} was refused ({reply.error})"
    if not record or not record.slots:
        return ""
    text = f"{restored} of {plural(len(record.slots), 'slot')} restored from {folder}"
    return f"{text}; {problem}" if problem else text


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ask_slot(endpoint: Endpoint, number: int, action: str, name: str) -> http.HttpReply:
    url = f"{endpoint.server_url}/slots/{number}?action={action}"
    return http.post_json(url, {"filename": name}, headers=endpoint.headers, timeout_s=SLOT_S)
