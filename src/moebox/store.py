"""Run folders: everything that happens is written down as it happens.

    RUN/  recipe.toml  box.toml  plan.json  events.jsonl  engine.log  verdicts/  measurements/  report.html

events.jsonl is append-only, one JSON object a line with `time` (seconds since the epoch), `kind` and `data`.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebox import wire
from moebox.errors import BadInput


def runs_dir() -> Path:
    """Where runs live: $MOEBOX_RUNS, or moebox/runs in the user's data directory."""
    if "MOEBOX_RUNS" in os.environ:
        return Path(os.environ["MOEBOX_RUNS"])
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "moebox" / "runs"


class Run:
    """One run's folder, open for writing and reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str, *, runs: Path | None = None) -> "Run":
        """A new folder named by time, name and a few random letters, so that two at once never share one."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = (runs or runs_dir()) / f"{stamp}-{name}-{secrets.token_hex(2)}"
        path.mkdir(parents=True, exist_ok=False)
        return cls(path)

    @classmethod
    def open(cls, name: str, *, runs: Path | None = None) -> "Run":
        """The run with this path or folder name."""
        for path in (Path(name), (runs or runs_dir()) / name):
            if path.is_dir():
                return cls(path)
        raise BadInput(f"no run called {name!r}", hint="`moebox runs` lists them")

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    def event(self, kind: str, /, *, sync: bool = False, **data: Any) -> None:
        """Append one event; `sync` forces it to disk before going on."""
        line = json.dumps({"time": time.time(), "kind": kind, "data": wire.plain(data)}, ensure_ascii=False)
        with open(self.path / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def events(self) -> Iterator[dict[str, Any]]:
        """Events in order; a torn line is passed over."""
        try:
            text = (self.path / "events.jsonl").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file of the run whole or not at all."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f".{path.name}.{os.getpid()}.part")
        half.write_bytes(text.encode() if isinstance(text, str) else text)
        half.replace(path)
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """`write`, as JSON."""
        return self.write(name, wire.to_json(value))

    def read_json(self, name: str) -> Any:
        """A JSON file of the run, or None where there is none."""
        path = self.path / name
        return wire.load_json(path) if path.exists() else None
