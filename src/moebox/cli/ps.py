"""`moebox ps`: what runs, what ended, and what was left behind."""

import time
from typing import Annotated, Any

from cyclopts import Parameter

from moebox.cli.output import emit, people
from moebox.units import seconds


def ps(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the engines that moebox started: ready, starting, exited, and processes or containers without an owner.

    Args:
        json: Print JSON.
    """
    rows = listing()
    if json:
        emit({"engines": rows})
        return 0
    if not rows:
        people().print("nothing is running")
        return 0
    show(rows)
    return 0


def listing() -> list[dict[str, Any]]:
    """Every engine with a record, then what only a mark or a label still tells of."""
    from moebox.serve import state
    from moebox.serve.stop import containers

    strays, boxes = state.strays(), containers()
    rows = []
    for one in state.instances():
        life = one.life
        row: dict[str, Any] = {"id": one.id, "status": one.status, "engine": one.engine, "recipe": one.recipe}
        row |= {"base_url": one.base_url, "model": one.model, "gpus": one.gpus, "run": one.run}
        row |= {"pid": life.engine or None, "started": one.started, "code": life.code}
        row |= {"lost_log_bytes": life.lost_bytes, "left": strays.pop(one.id, []), "container": one.container}
        boxes.pop(one.id, None) if one.alive else None
        rows.append(row)
    for name in sorted({*strays, *boxes}):
        row = {"id": name, "status": "left behind", "left": strays.get(name, [])}
        rows.append({**row, "container": boxes.get(name, ("", ""))[1]})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Two lines for each: what it is and where it answers; and one for what needs a hand."""
    out = people()
    for row in rows:
        status = f"exited ({row['code']})" if row["status"] == "exited" else row["status"]
        age = seconds(time.time() - row["started"]) if row.get("started") else ""
        out.print(f"{row['id']}  {status}  {age}".rstrip(), markup=False)
        if row.get("base_url"):
            cards = f"  GPUs {','.join(map(str, row['gpus']))}" if row["gpus"] else ""
            out.print(f"  {row['engine']}  {row['base_url']}  model {row['model']}{cards}", markup=False)
        left = [f"{len(row['left'])} processes"] if row["left"] else []
        left += [f"container {row['container']}"] if row["status"] == "left behind" and row["container"] else []
        if left or row["status"] in ("exited", "lost"):
            rest = f" ({', '.join(left)} left)" if left else ""
            out.print(f"  `moebox down {row['id']}` clears it away{rest}", markup=False)
