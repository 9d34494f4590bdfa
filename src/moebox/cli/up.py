"""`moebox up`: from a recipe to a live endpoint."""

import dataclasses
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from moebox.cli import up_view
from moebox.cli.output import emit, talk
from moebox.core.change import changed
from moebox.core.recipe import Recipe, RuntimeKind
from moebox.core.symptom import as_text
from moebox.errors import BadInput
from moebox.units import parse_seconds

if TYPE_CHECKING:
    from moebox.core.model import Model
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.reality import Row
    from moebox.serve.session import Session
    from moebox.store import Run


def up(
    recipe: str,
    *,
    port: int | None = None,
    host: str = "",
    runtime: RuntimeKind | None = None,
    detach: Annotated[bool, Parameter(negative=())] = False,
    patience: str = "15m",
    apply_remedy: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Start RECIPE's engine, show its phases, and wait until it answers a chat.

    Stays until Ctrl-C, which stops the engine; with --detach the engine stays and the command returns.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        port: Listen here instead of the recipe's port; 0 takes a free one.
        host: Listen on this address instead of the recipe's.
        runtime: Run it natively, in docker or podman, or embedded, whatever the recipe says.
        detach: Return once it answers; `moebox ps`, `logs` and `down` find it again.
        patience: How long it may stand still while starting; any progress starts the time anew.
        apply_remedy: When it fails for a known reason with a recipe change as remedy, try that once.
        dry_run: Print the command instead of running it.
        runs: Where run folders live.
        json: Print the endpoint, facts and plan against reality as one JSON document.
    """
    from moebox.serve.recipes import model_of, read_recipe

    asked = settled(read_recipe(recipe), port=port, host=host, runtime=runtime)
    try:
        patience_s = parse_seconds(patience)
    except ValueError as problem:
        raise BadInput(f"--patience: {problem}") from None
    if dry_run:
        return show_command(asked, model_of(asked))
    return serve(asked, patience_s=patience_s, detach=detach, apply_remedy=apply_remedy, runs=runs, json=json)


def settled(recipe: Recipe, *, port: int | None, host: str, runtime: RuntimeKind | None) -> Recipe:
    """The recipe with what the command line says instead."""
    if port is not None and not 0 <= port <= 65535:
        raise BadInput(f"--port {port} is no port")
    listen = dataclasses.replace(
        recipe.listen, port=recipe.listen.port if port is None else port, host=host or recipe.listen.host
    )
    kind = runtime or recipe.runtime.kind
    return dataclasses.replace(recipe, listen=listen, runtime=dataclasses.replace(recipe.runtime, kind=kind))


def show_command(recipe: Recipe, model: "Model | None") -> int:
    """What would be run, ready to paste; keys stand as the variables they come from."""
    from moebox import engines
    from moebox.serve.session import prepare

    order = prepare(recipe, model=model)
    print(engines.shown(order.launch, order.argv))
    return 0


def serve(recipe: Recipe, *, patience_s: float, detach: bool, apply_remedy: bool, runs: Path | None, json: bool) -> int:
    """Start, show, and stay or let go."""
    from moebox.serve import reality
    from moebox.serve.faults import LaunchFailed
    from moebox.store import Run

    heed_sigterm()
    warn(recipe)
    run = Run.create(recipe.name, runs=runs)
    try:
        session = attempt(recipe, run, patience_s)
    except LaunchFailed as problem:
        mended = remedy(recipe, problem) if apply_remedy else None
        if mended is None:
            raise
        recipe, change = mended
        run.event("remedy.applied", symptom=problem.finding and problem.finding.symptom, change=change)
        talk().print(f"{problem.message}\ntrying the remedy: {as_text(change)}", markup=False)
        session = attempt(recipe, run, patience_s)
    try:
        rows = reality.compare(session.facts, reality.planned(session.recipe))
        run.event("plan.reality", rows=rows)
        document = about(session, rows)
        if json:
            emit(document)
        else:
            up_view.ready(document, rows, detached=detach)
        if detach:
            session.detach()
        else:
            session.wait()
    finally:
        session.stop()
    return 0


def warn(recipe: Recipe) -> None:
    """Say beforehand what is known to go wrong; the person who asked decides."""
    from moebox import detect, engines
    from moebox.engines.refuse import MLA_FP8
    from moebox.serve.recipes import model_of

    for one in engines.refusals(recipe, detect.box(), model_of(recipe)):
        if one.severity != "note" and one.symptom != MLA_FP8:  # which is refused, or was mended
            talk().print(f"warning: {one.text}" + (f" ({one.remedy})" if one.remedy else ""), markup=False)


def heed_sigterm() -> None:
    """Make a service manager's SIGTERM stop the engine in good order, like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def attempt(recipe: Recipe, run: "Run", patience_s: float) -> "Session":
    """One try at a launch; a session that answers, or nothing is left of it."""
    from moebox.serve.recipes import model_of
    from moebox.serve.session import launch, prepare

    talk().print(f"starting {recipe.engine} with {recipe.checkpoint}", markup=False)
    with up_view.Phases() as phases:
        session = launch(prepare(recipe, model=model_of(recipe), name=run.id), run, listener=phases)
        try:
            session.wait_ready(patience_s=patience_s)
        except BaseException:
            session.stop()
            raise
        session.listener = None
    return session


def remedy(recipe: Recipe, problem: "LaunchFailed") -> tuple[Recipe, dict[str, Any]] | None:
    """The recipe with the finding's change, or None where there is none or it changes nothing."""
    change = problem.finding.change if problem.finding else {}
    mended = changed(recipe, change) if change else recipe
    return (mended, change) if mended != recipe else None


def about(session: "Session", rows: "list[Row]") -> dict[str, Any]:
    """The document of a ready engine."""
    return {
        "id": session.instance.id,
        "run": str(session.run.path),
        "recipe": session.recipe.name,
        "engine": session.recipe.engine,
        "base_url": session.endpoint.base_url,
        "model": session.endpoint.model,
        "pid": session.instance.life.get("engine"),
        "startup_s": session.startup_s,
        "facts": session.facts,
        "reality": [
            {**{k: getattr(r, k) for k in ("what", "device", "planned", "real", "unit")}, "off": r.off} for r in rows
        ],
    }
