"""How long operations took the last time on this machine, to estimate when the next one will be done."""

import json

from moebox import codec, files
from moebox.errors import BadInput

MAX_ENTRIES = 200  # the newest are kept


def last_duration(key: str) -> float | None:
    """Seconds that `key` took the last time, None if unknown."""
    return _read_table().get(key)


def remember_duration(key: str, seconds: float) -> None:
    """Store how long `key` took; on a full or read-only disk do nothing."""
    table = _read_table()
    table.pop(key, None)
    table[key] = round(seconds, 3)
    newest = dict(list(table.items())[-MAX_ENTRIES:])
    try:
        files.write_atomic(files.moebox_cache() / "durations.json", json.dumps(newest))
    except OSError:
        return


def _read_table() -> dict[str, float]:
    path = files.moebox_cache() / "durations.json"
    try:
        return codec.decode(dict[str, float], codec.load_json(path), where=str(path))
    except (OSError, BadInput):
        return {}
