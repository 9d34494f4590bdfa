"""`moebox up`: from a recipe to a live endpoint."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from moebox.cli import flags, up_view
from moebox.cli.output import print_result, stderr_console
from moebox.cli.signals import stop_event
from moebox.core.change import with_settings
from moebox.core.recipe import Recipe, RuntimeKind
from moebox.core.symptom import changes_text
from moebox.core.traits import LAST_PORT
from moebox.errors import refuse_out_of_range
from moebox.escape import escape_invisible
from moebox.serve.where import NodeSelection

if TYPE_CHECKING:
    from moebox.core.deployment import Deployment
    from moebox.core.engine_event import PlanRealityRow
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.session import EngineSession
    from moebox.store import Run

HERE = NodeSelection()


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
    where: Annotated[NodeSelection, Parameter(name="*")] = HERE,
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Start RECIPE's engine, show its phases, and wait until it answers a chat.

    Stays until Ctrl-C, which stops the engine; with --detach the engine stays and the command returns.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        port: Listen here instead of the recipe's port; 0 takes a free one.
        host: Listen on this address instead of the recipe's.
        runtime: Run it natively, in docker or podman, or embedded, instead of what the recipe says.
        detach: Return once it answers; `moebox ps`, `logs` and `down` find it again.
        patience: Longest time without progress while starting.
        apply_remedy: When it fails for a reason that a change of the recipe fixes, make it and try once more.
        dry_run: Print the command instead of running it.
        where: Nodes, for a recipe that spans several.
        runs: Where run folders live.
        json: Print the endpoint, facts and plan against reality as one JSON document.
    """
    from moebox.checkpoint import deploy
    from moebox.flows import recipes

    asked = deploy(apply_flags(recipes.load_recipe(recipe), port=port, host=host, runtime=runtime))
    patience_s = flags.parse_duration("--patience", patience)
    if not where.slurm:
        flags.refuse_without("--slurm", partition=where.partition, account=where.account, time_limit=where.time_limit)
    if not where.is_given:
        flags.refuse_without("--hosts or --slurm", node_python=where.node_python)
    where.check_recipe(asked.recipe)
    if dry_run:
        return print_command(asked, where, json=json)
    return start_and_wait(
        asked, patience_s=patience_s, detach=detach, apply_remedy=apply_remedy, runs=runs, json=json, where=where
    )


def apply_flags(recipe: Recipe, *, port: int | None, host: str, runtime: RuntimeKind | None) -> Recipe:
    """The recipe with what the command line says instead."""
    refuse_out_of_range("--port", port, 0, LAST_PORT)
    listen = dataclasses.replace(
        recipe.listen, port=recipe.listen.port if port is None else port, host=host or recipe.listen.host
    )
    kind = runtime or recipe.runtime.kind
    return dataclasses.replace(recipe, listen=listen, runtime=dataclasses.replace(recipe.runtime, kind=kind))


def print_command(deployment: "Deployment", where: NodeSelection = HERE, *, json: bool = False) -> int:
    """What would be run, ready to paste; keys stand as the variables they come from."""
    from moebox import engines
    from moebox.serve.session import prepare_launch

    told: dict[str, object] = {"recipe": deployment.recipe.name, "engine": deployment.recipe.engine}
    if where.is_given:
        from moebox.serve.nodes import node_commands

        nodes = node_commands(deployment, where)
        told |= {"nodes": nodes}
        text = "\n".join(f"# {node}\n{command}" for node, command in nodes.items())
    else:
        order = prepare_launch(deployment)
        text = engines.shell_text(order.launch, order.argv)
        told |= {"command": text, "argv": order.argv, "env": order.launch.env, "base_url": order.endpoint.base_url}
    print_result(json, told, lambda: print(escape_invisible(text)))
    return 0


def start_and_wait(
    deployment: "Deployment",
    *,
    patience_s: float,
    detach: bool,
    apply_remedy: bool,
    runs: Path | None,
    json: bool,
    where: NodeSelection = HERE,
) -> int:
    """Start, show, and stay or let go."""
    from moebox.core.engine_event import PlanReality, RemedyApplied
    from moebox.serve import reality
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.order import require_engine
    from moebox.store import Run

    asked = stop_event()
    if not where.is_given:
        require_engine(deployment)
    print_warnings(deployment)
    run = Run.create(deployment.recipe.name, runs=runs)
    try:
        session = start_engine(deployment, run, patience_s, where)
    except LaunchFailed as problem:
        fixed = recipe_with_remedy(deployment.recipe, problem) if apply_remedy else None
        if fixed is None:
            raise
        recipe, change = fixed
        run.add_event(RemedyApplied(symptom=problem.finding.symptom if problem.finding else None, change=change))
        stderr_console().print(f"{problem.message}\ntrying the remedy: {changes_text(change)}", markup=False)
        session = start_engine(deployment.with_recipe(recipe), run, patience_s, where)
    try:
        rows = reality.compare_with_plan(session.facts, reality.planned_memory(session.prepared.deployment))
        run.add_event(PlanReality(rows=tuple(rows)))
        document = ready_document(session, rows)
        print_result(json, document, lambda: up_view.print_ready(document, rows, detached=detach))
        if detach:
            session.detach()
        else:
            session.wait_until_exit(stop=asked.is_set)
    finally:
        session.stop()
    return 0


def print_warnings(deployment: "Deployment") -> None:
    """Say beforehand what is known to go wrong, and who may use the engine; the user decides."""
    from moebox import detect, engines
    from moebox.engines.assemble import LOOPBACK
    from moebox.engines.refusals import PATCHABLE_SYMPTOMS

    listen = deployment.recipe.listen
    if not listen.key_env:
        who = "every user of this machine" if listen.host in LOOPBACK else "everyone who can reach this machine"
        said = f"note: the engine asks for no key: {who} may use it (listen.key_env in the recipe)"
        stderr_console().print(said, markup=False, soft_wrap=True)
    for note in deployment.notes:
        stderr_console().print(f"note: {note}", markup=False)
    for caution in engines.find_refusals(deployment.on_box(detect.load_box())):
        if (
            caution.severity != "note" and caution.symptom not in PATCHABLE_SYMPTOMS
        ):  # which are refused, or were patched
            remedy = f" ({caution.remedy})" if caution.remedy else ""
            stderr_console().print(f"warning: {caution.text}{remedy}", markup=False)


def start_engine(
    deployment: "Deployment", run: "Run", patience_s: float, where: NodeSelection = HERE
) -> "EngineSession":
    """One try at a launch; a session that answers, or nothing is left of it."""
    from moebox.serve.nodes import prepare_nodes
    from moebox.serve.session import launch_engine, prepare_launch

    recipe = deployment.recipe
    stderr_console().print(f"starting {deployment.engine.title} with {recipe.checkpoint}", markup=False)
    if where.is_given:
        order = prepare_nodes(deployment, run, where, lambda line: stderr_console().print(line, markup=False))
    else:
        order = prepare_launch(deployment, name=run.id)
    with up_view.StartupPhases(f"up {recipe.engine} {recipe.checkpoint} {recipe.runtime.kind}") as phases:
        session = launch_engine(order, run, listener=phases)
        try:
            session.wait_ready(patience_s=patience_s)
        except BaseException:
            session.stop()
            raise
        session.listener = None
    return session


def recipe_with_remedy(recipe: Recipe, problem: "LaunchFailed") -> tuple[Recipe, dict[str, Any]] | None:
    """The recipe with the finding's change, or None where there is none or it changes nothing."""
    change = problem.finding.change if problem.finding else {}
    fixed = with_settings(recipe, change) if change else recipe
    return (fixed, change) if fixed != recipe else None


def ready_document(session: "EngineSession", rows: "list[PlanRealityRow]") -> dict[str, Any]:
    """The document of a ready engine."""
    return {
        "id": session.instance.id,
        "run": str(session.run.path),
        "recipe": session.recipe.name,
        "engine": session.recipe.engine,
        "base_url": session.endpoint.base_url,
        "model": session.endpoint.model,
        "pid": session.instance.guard_state.engine or None,
        "startup_s": session.startup_s,
        "facts": session.facts,
        "reality": [
            {**{k: getattr(r, k) for k in ("what", "device", "planned", "real", "unit")}, "off": r.relative_error}
            for r in rows
        ],
    }
