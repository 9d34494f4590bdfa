"""How long things took the last time on this machine, so that the next one can say when it will be done."""

import json
from pathlib import Path

from moebox import files

MAX_ENTRIES = 200  # entries kept, the newest


def last_duration(key: str) -> float | None:
    """Seconds that `key` took the last time; None when nobody knows."""
    return _read().get(key)


def remember_duration(key: str, seconds: float) -> None:
    """Keep how long `key` took; a disk that is full or read-only costs an estimate, nothing more."""
    table = _read()
    table.pop(key, None)
    table[key] = round(seconds, 3)
    newest = dict(list(table.items())[-MAX_ENTRIES:])
    try:
        files.write_atomic(_path(), json.dumps(newest))
    except OSError:
        return


def _path() -> Path:
    return files.moebox_cache() / "durations.json"


def _read() -> dict[str, float]:
    try:
        table = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {str(key): float(value) for key, value in table.items() if isinstance(value, int | float) and value > 0}
