"""`moebox down`: stop an engine, and everything that came from it."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli.output import print_result, stdout_console
from moebox.errors import refuse_if
from moebox.loose import Document

if TYPE_CHECKING:
    from moebox.serve.state import Instance


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
    refuse_if(all_ and name, "either a name or --all")
    left = _without_owner()  # before anything is stopped: what an engine leaves now is its own
    ownerless = sorted(left if all_ else left & {name or ""})
    stopped = [_stopped(instance) for instance in _chosen(name, all_=all_, ownerless=bool(ownerless))]
    stopped += [_swept(name) for name in ownerless]
    lines = [f"{row['id']}: {row['was']}, now gone" for row in stopped] or ["nothing was running"]
    print_result(json, {"stopped": stopped}, lambda: stdout_console().print("\n".join(lines), markup=False))
    return 0


def _chosen(name: str | None, *, all_: bool, ownerless: bool) -> "list[Instance]":
    """The engines to stop; none where the name is of something left behind."""
    from moebox.serve import state

    if all_:
        return state.list_instances()
    return [] if ownerless else [state.find_instance(name)]


def _without_owner() -> set[str]:
    """Names of processes and containers that no record tells of."""
    from moebox.serve import state
    from moebox.serve.stop import list_containers

    return {*state.orphan_processes(), *list_containers()} - {instance.id for instance in state.list_instances()}


def _stopped(instance: "Instance") -> Document:
    from moebox.serve.stop import stop_instance

    return {"id": instance.id, "was": instance.status, "signals": stop_instance(instance)}


def _swept(name: str) -> Document:
    """Its container removed and its processes ended."""
    from moebox.serve.stop import kill_orphans, list_containers, remove_container

    found = list_containers()
    if name in found:
        remove_container(*found[name])
    return {"id": name, "was": "left behind", "signals": ["SIGKILL"] if kill_orphans(name) else []}
