"""How long operations took the last time on this machine, to estimate when the next one will be done."""

import json

from moebox import files

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
    try:
        table = json.loads((files.moebox_cache() / "durations.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {str(key): float(value) for key, value in table.items() if isinstance(value, int | float) and value > 0}
