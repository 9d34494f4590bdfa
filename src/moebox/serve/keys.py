"""Keys that moebox made for its own servers, stored for the same user's other commands.

STATE/keys/PORT.json   mode 0600, in a folder of mode 0700; valid as long as the process in it lives
"""

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from moebox import codec, files
from moebox.errors import BadInput, refuse_if
from moebox.serve import state

TWIN_KEY = "MOEBOX_TWIN_KEY"  # the variable by which twins, routers and clients name such a key
KEY_BYTES = 24  # 192 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """The key of a server, and a process that lives as long as the server."""

    pid: int
    started: int  # the kernel's start tick of that pid
    key: str = field(repr=False)


def make_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def keep_key(port: int, key: str, *, pid: int) -> Path:
    """Write the key of the server on `port`, readable by this user alone; return its path."""
    folder = state.state_dir() / "keys"
    hint = "set MOEBOX_STATE to a folder you own"
    try:
        files.make_private_folder(folder)
        refuse_if(folder.stat().st_uid != os.geteuid(), f"{folder}: belongs to another user", hint=hint)
        for old in folder.glob("*.json"):
            if _read_key(old) is None:
                old.unlink(missing_ok=True)
        kept = ServerKey(pid=pid, started=state.process_start_tick(pid), key=key)
        return files.write_atomic(folder / f"{port}.json", codec.to_json(kept), mode=0o600)
    except OSError as problem:
        raise BadInput(f"{folder}: cannot be written: {problem.strerror}", hint=hint) from None


def find_key(variable: str, url: str) -> str | None:
    """The key in an environment variable, or the one that moebox made for the server at http://127.0.0.1:PORT.

    Under another name, such as localhost, another user's server could have that port of another address.
    """
    given = os.environ.get(variable) or None
    if given and variable != TWIN_KEY:  # which may hold the key of an earlier twin
        return given
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        here = parts.scheme == "http" and parts.hostname == "127.0.0.1" and parts.port
    except ValueError:
        return given
    kept = _read_key(state.state_dir() / "keys" / f"{parts.port}.json") if here else None
    return kept.key if kept else given


def _read_key(path: Path) -> ServerKey | None:
    """The key in a file, if this user wrote it and its server lives."""
    with contextlib.suppress(OSError, BadInput):
        if path.lstat().st_uid == os.geteuid():
            kept = codec.decode(ServerKey, codec.load_json(path), where=str(path))
            return kept if state.process_start_tick(kept.pid) == kept.started else None
    return None
