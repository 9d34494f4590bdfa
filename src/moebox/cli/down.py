"""`moebox down`: stop an engine, and everything that came from it."""

from typing import Annotated

from cyclopts import Parameter

from moebox.cli.output import emit, people
from moebox.errors import BadInput


def down(
    name: str | None = None,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Stop an engine: SIGINT, SIGTERM, then SIGKILL, each with its time; whatever it left behind goes too.

    Args:
        name: The engine's id (or its beginning) or its recipe's name; the only one when left out.
        all_: Stop every engine, and remove what earlier ones left behind.
        json: Print JSON.
    """
    from moebox.serve import state
    from moebox.serve.stop import containers, remove_container, stop, sweep

    if all_ and name:
        raise BadInput("either a name or --all")
    strays, boxes = state.strays(), containers()
    known = {one.id for one in state.instances()}
    left = {*strays, *boxes} - known
    if name in left:
        chosen, left = [], {str(name)}
    else:
        chosen = state.instances() if all_ else [state.find(name)]
        left = left if all_ else set()
    stopped = [{"id": one.id, "was": one.status, "signals": stop(one)} for one in chosen]
    for one_left in sorted(left):
        if one_left in boxes:
            remove_container(*boxes[one_left])
        stopped.append({"id": one_left, "was": "left behind", "signals": ["SIGKILL"] * bool(sweep(one_left))})
    if json:
        emit({"stopped": stopped})
        return 0
    for row in stopped:
        people().print(f"{row['id']}: {row['was']}, now gone", markup=False)
    if not stopped:
        people().print("nothing was running")
    return 0
