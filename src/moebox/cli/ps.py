"""`moebox ps`: what runs, what ended, and what was left behind."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli.output import print_result, stdout_console
from moebox.units import format_seconds

if TYPE_CHECKING:
    from moebox.serve.state import Instance


def ps(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the engines that moebox started: ready, starting, exited, and processes or containers without an owner.

    Args:
        json: Print JSON.
    """
    rows = list_engines()
    print_result(json, {"engines": rows}, lambda: print_engines(rows))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """An engine with a record, or what only a mark or a label still tells of."""

    id: str
    status: str
    engine: str = ""
    recipe: str = ""
    base_url: str = ""
    model: str = ""
    gpus: tuple[int, ...] = ()
    run: str = ""
    pid: int | None = None
    started: float = 0.0
    code: int | None = None
    lost_log_bytes: int = 0
    left: tuple[int, ...] = ()  # processes without a guard
    container: str = ""


def list_engines() -> list[EngineRow]:
    """Every engine with a record, then what only a mark or a label still tells of."""
    from moebox.serve import state
    from moebox.serve.stop import list_containers

    strays, boxes = state.orphan_processes(), list_containers()
    rows = []
    for instance in state.list_instances():
        rows.append(_listed(instance, tuple(strays.pop(instance.id, ()))))
        if instance.is_alive:
            boxes.pop(instance.id, None)
    for name in sorted({*strays, *boxes}):
        left, container = tuple(strays.get(name, ())), boxes.get(name, ("", ""))[1]
        rows.append(EngineRow(id=name, status="left behind", left=left, container=container))
    return rows


def _listed(instance: "Instance", left: tuple[int, ...]) -> EngineRow:
    life = instance.guard_state
    return EngineRow(
        id=instance.id,
        status=instance.status,
        engine=instance.engine,
        recipe=instance.recipe,
        base_url=instance.base_url,
        model=instance.model,
        gpus=instance.gpus,
        run=instance.run,
        pid=life.engine or None,
        started=instance.started,
        code=life.code,
        lost_log_bytes=life.lost_bytes,
        left=left,
        container=instance.container,
    )


def print_engines(rows: Sequence[EngineRow]) -> None:
    """Two lines for each: what it is and where it answers; and one for what needs a hand."""
    if not rows:
        stdout_console().print("nothing is running")
    for line in chain.from_iterable(map(_lines, rows)):
        stdout_console().print(line, markup=False)


def _lines(row: EngineRow) -> Iterator[str]:
    status = f"exited ({row.code})" if row.status == "exited" else row.status
    age = format_seconds(time.time() - row.started) if row.started else ""
    yield f"{row.id}  {status}  {age}".rstrip()
    if row.base_url:
        gpus = f"  GPUs {','.join(map(str, row.gpus))}" if row.gpus else ""
        yield f"  {row.engine}  {row.base_url}  model {row.model}{gpus}"
    rest = _left(row)
    if rest or row.status in ("exited", "lost"):
        yield f"  `moebox down {row.id}` clears it away{rest}"


def _left(row: EngineRow) -> str:
    """What is still there, in brackets; "" where nothing is."""
    left = [f"{len(row.left)} processes"] if row.left else []
    if row.status == "left behind" and row.container:
        left.append(f"container {row.container}")
    return f" ({', '.join(left)} left)" if left else ""
