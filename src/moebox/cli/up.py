"""`moebox up`: from a recipe to a live endpoint, with the phases of the start and the memory beside the plan."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from moebox import codec, detect, engines
from moebox.cli import flags
from moebox.cli.display import LiveDisplay, WaitingLine, make_grid, make_table
from moebox.cli.flags import AsJson, Settings, Switch
from moebox.cli.output import Part, View, print_lines, print_note, print_parts, print_result
from moebox.cli.ps import restore_interrupted
from moebox.core.deployment import Deployment
from moebox.core.engine_event import PlanReality, PlanRealityRow, RemedyApplied, read_forecast
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Listen
from moebox.core.setting import split_settings, with_settings
from moebox.core.symptom import Finding, changes_text
from moebox.core.traits import LAST_PORT
from moebox.engines.assemble import LOOPBACK
from moebox.engines.events import LogEvent
from moebox.engines.support import PATCHABLE_SYMPTOMS
from moebox.errors import ExternalError, refuse_if, refuse_out_of_range
from moebox.escape import escape_invisible
from moebox.flows import recipes
from moebox.loose import Document
from moebox.serve import facts
from moebox.serve.faults import LaunchFailed
from moebox.serve.nodes import node_commands, prepare_nodes
from moebox.serve.order import require_engine
from moebox.serve.session import EngineSession, launch_engine, prepare_launch
from moebox.serve.where import NodePrograms, NodeSelection, NodeSettings, ServiceSettings, SlurmJob
from moebox.store import Run
from moebox.units import format_count, format_gb, format_gib, format_percent, format_seconds


def up(
    recipe: str,
    *,
    port: int | None = None,
    detach: Switch = False,
    service: Switch = False,
    apply_remedy: Switch = False,
    dry_run: Switch = False,
    force: Switch = False,
    hosts: Path | None = None,
    slurm: Switch = False,
    settings: Settings = (),
    json: AsJson = False,
) -> int:
    """Start RECIPE's engine, show its phases, and wait until it answers a chat.

    Stays until Ctrl-C, which stops the engine; with --detach the engine stays and the command returns.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        port: Listen on this port instead of the recipe's; 0 takes a free one.
        detach: Return once it answers; `moebox ps`, `logs` and `down` find it again.
        service: Keep it up: restart it when it dies or hangs, and keep the evidence. Writes a systemd unit
            and starts it; without systemd, or inside that unit, it is kept up from here (docs/living.md).
        apply_remedy: If the start fails for a reason that a change of the recipe fixes, change it and try once more.
        dry_run: Print the command instead of running it.
        force: With --dry-run, print the command of a recipe that does not fit.
        hosts: Nodes to start it on over ssh: a file with one a line, and after the name its address if that differs.
        slurm: Start it on nodes that Slurm allocates.
        settings: Another value of the recipe, such as runtime.kind=docker, listen.host=0.0.0.0 or flags.max-num-seqs=8;
            or of the nodes: slurm.partition=gpu, slurm.account=me, slurm.time_limit=8:00:00, nodes.python=python3.12
            (which needs no package); or patience_s=15m, the longest time without progress while starting; repeatable.
    """
    refuse_out_of_range("--port", port, 0, LAST_PORT)
    chosen, others = split_settings(NodeSettings(), settings)
    where = NodeSelection(hosts=hosts, slurm=slurm, settings=chosen)
    deployment = recipes.load_deployment(recipe, others)
    if port is not None:
        deployment = deployment.with_recipe(deployment.recipe.with_port(port))
    refuse_if(not slurm and chosen.slurm != SlurmJob(), "slurm.partition, account and time_limit need --slurm")
    refuse_if(not where.is_given and chosen.nodes != NodePrograms(), "nodes.python needs --hosts or --slurm")
    refuse_if(slurm and hosts, "--hosts and --slurm are two ways to name nodes; give one")
    alone, hint = where.is_given and deployment.recipe.parallel.nodes < 2, "plan it for several: --box 2x8x-h200"
    refuse_if(alone, f"{deployment.recipe.name} runs on one node", hint=hint)
    misfit = None if force else recipes.find_recipe_misfit(deployment)
    problems, listen = known_problems(deployment), deployment.recipe.listen
    if dry_run:
        if misfit:
            raise misfit.error()
        if listen.host not in LOOPBACK:
            note_missing_key(listen)
        print_command(deployment, problems, where, json=json)
        print_warnings(deployment.notes, problems)
        return 0
    flags.refuse_without("--dry-run", force=force)
    restore_interrupted()
    if not where.is_given:
        require_engine(deployment)
    if misfit:
        print_parts(f"warning: {misfit.text} ({misfit.remedy})", stderr=True)
    note_missing_key(listen)
    # patchable symptoms are refused elsewhere, or the engine is patched
    print_warnings(deployment.notes, [warning for warning in problems if warning.symptom not in PATCHABLE_SYMPTOMS])
    if service:
        refuse_if(where.is_given or detach, "--service starts one engine on this machine", hint="leave out --detach")
        return keep_up(deployment, recipe, settings, chosen.service, chosen.patience_s)
    run = Run.create(deployment.recipe.name)
    try:
        session = start_engine(deployment, run, chosen.patience_s, where)
    except LaunchFailed as problem:
        change = problem.finding.change if problem.finding else {}
        changed = with_settings(deployment.recipe, change) if change else deployment.recipe
        if not apply_remedy or changed == deployment.recipe:
            raise
        run.add_event(RemedyApplied(symptom=problem.finding.symptom if problem.finding else None, change=change))
        print_note(f"{problem.message}\ntrying the remedy: {changes_text(change)}")
        session = start_engine(deployment.with_recipe(changed), run, chosen.patience_s, where)
    try:
        rows = facts.compare_with_plan(session.facts, facts.planned_memory(session.prepared.deployment))
        run.add_event(PlanReality(rows=tuple(rows)))
        document: Document = {"id": session.instance.id, "run": str(run.path), "recipe": session.recipe.name}
        document |= {"engine": session.recipe.engine, "base_url": session.endpoint.base_url}
        document |= {"model": session.endpoint.model, "pid": session.instance.guard_state.engine or None}
        load = {"bytes": session.weights_bytes, "disk_bytes_s": session.disk_rate} if session.disk_rate else None
        document |= {"startup_s": session.startup_s, "load": load, "facts": session.facts}
        document["reality"] = [{**codec.to_plain(row), "off": row.relative_error} for row in rows]
        print_result(json, document, lambda: print_ready(session, rows, detached=detach))
        if detach:
            session.detach()
        else:
            session.wait_until_exit()
    finally:
        session.stop()
    return 0


def keep_up(
    deployment: Deployment, recipe: str, given: Sequence[str], settings: ServiceSettings, patience_s: float
) -> int:
    """Install and start a systemd unit, or keep the engine up from this process if there is no systemd."""
    from moebox.flows.service import Service, install_unit

    if Path("/run/systemd/system").is_dir() and "NOTIFY_SOCKET" not in os.environ:
        path, commands = install_unit(deployment, recipe, given)
        print_lines([f"wrote {path}"])
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise ExternalError(f"`{command}` failed: {done.stderr.strip()[:200]}", hint=f"the unit is {path}")
        print_lines([f"{path.stem} is enabled; `journalctl -fu {path.stem}` shows it"])
        return 0
    service = Service(deployment, Run.create(deployment.recipe.name), settings, report=print_note)
    service.keep_up(patience_s=patience_s, on_ready=lambda session: print_ready(session, [], detached=False))
    return 0


def print_command(deployment: Deployment, warnings: list[PlanWarning], where: NodeSelection, *, json: bool) -> None:
    """Print the commands that would be run, ready to paste; keys are written as the variables they come from."""
    document: Document = {"recipe": deployment.recipe.name, "engine": deployment.recipe.engine}
    if where.is_given:
        nodes = node_commands(deployment, where)
        document |= {"nodes": nodes}
        text = "\n".join(f"# {node}\n{command}" for node, command in nodes.items())
    else:
        prepared = prepare_launch(deployment)
        text = engines.shell_text(prepared.launch, prepared.argv)
        document |= {"command": text, "argv": prepared.argv}
        document |= {"env": prepared.launch.env, "base_url": prepared.endpoint.base_url}
    document |= {"warnings": warnings, "notes": deployment.notes}
    print_result(json, document, lambda: print(escape_invisible(text)))


def note_missing_key(listen: Listen) -> None:
    """Print who may use an engine, unless it asks for a key."""
    if not listen.key_env:
        users = "every user of this machine" if listen.host in LOOPBACK else "everyone who can reach this machine"
        print_note(f"note: the engine asks for no key: {users} may use it (listen.key_env in the recipe)")


def known_problems(deployment: Deployment) -> list[PlanWarning]:
    """Return what is known to go wrong on this machine, or on the planned box if this machine has no GPU."""
    box = detect.load_box()
    if not box.gpus and deployment.recipe.planned_for.box:
        box = recipes.planned_box(deployment.recipe.planned_for)
    return [warning for warning in engines.find_refusals(deployment.on_box(box)) if warning.severity != "note"]


def print_warnings(notes: Sequence[str], problems: list[PlanWarning]) -> None:
    """Print notes on the recipe, and which known problems the start may meet."""
    print_parts(*(f"note: {note}" for note in notes), stderr=True)
    print_parts(*(f"{warning.severity}: {warning.text_with_remedy}" for warning in problems), stderr=True)


def start_engine(deployment: Deployment, run: Run, patience_s: float, where: NodeSelection) -> EngineSession:
    """Start the engine and wait until it answers; an engine that fails to start is stopped completely."""
    recipe = deployment.recipe
    print_note(f"starting {deployment.engine.title} with {recipe.checkpoint}")
    if where.is_given:
        prepared = prepare_nodes(deployment, run, where, print_note)
    else:
        prepared = prepare_launch(deployment, name=run.id)
    with StartupPhases(f"up {recipe.engine} {recipe.checkpoint} {recipe.runtime.kind}") as phases:
        session = launch_engine(prepared, run, listener=phases)
        if session.disk_rate:
            forecast = read_forecast(session.weights_bytes, session.disk_rate)
            print_note(f"loading {format_gb(session.weights_bytes)} of weights: {forecast}")
        session.wait_ready(patience_s=patience_s)
        session.listener = None
    return session


def print_ready(session: EngineSession, rows: list[PlanRealityRow], *, detached: bool) -> None:
    """Print the endpoint, the engine's memory beside the plan, and how to stop it."""

    def format_figure(value: float, unit: str) -> str:
        return f"{format_count(value)} tokens" if unit == "tokens" else format_gib(value)

    endpoint = session.endpoint
    took = format_seconds(session.startup_s)
    parts: list[Part] = [f"ready after {took}: {endpoint.base_url}  model {endpoint.model}"]
    parts += [session.ready.load_text] if session.ready and session.ready.load_text else []
    cells = []
    for row in rows:
        off, planned = row.relative_error, format_figure(row.planned, row.unit) if row.planned else "–"
        error = "" if off is None else f"{'+' if off >= 0 else ''}{format_percent(off)}"
        cells.append((f"{row.what} {row.device}".strip(), planned, format_figure(row.real, row.unit), error))
    parts += [make_table(("", "planned", "real", "off"), cells, left_columns=("",))] if rows else []
    parts.append(f"run {session.run.path}")
    print_parts(*parts, f"`moebox down {session.instance.id}` stops it" if detached else "Ctrl-C stops it")


class StartupPhases(WaitingLine):
    """Shows the phases of a starting engine on stderr: a live line on a terminal, lines elsewhere."""

    def __init__(self, key: str) -> None:
        super().__init__("", key)
        self.phase, self.phase_began = "", self.began
        self.done, self.total, self.shown_tenths = 0, 0, 0

    def __enter__(self) -> Self:
        LiveDisplay.__enter__(self)
        if not self.live and self.last_s:
            print_note(f"about {format_seconds(self.last_s)}, as last time")
        return self

    def __rich__(self) -> View:
        from rich.progress_bar import ProgressBar

        if not self.phase:
            return ""
        title = "asking for a first answer" if self.phase == "ready" else self.phase
        bar = ProgressBar(self.total or None, self.done, width=12)
        count = f"{self.done}/{self.total or '?'}"
        return make_grid([(self.spinner, title, bar, count, (self.progress_text(), "dim"))])

    def __call__(self, event: LogEvent | Finding) -> None:
        """Show a finding or an event of the engine's log."""
        if isinstance(event, Finding):
            if event.severity == "warning":  # a fatal one is printed when the engine has ended
                print_note(f"{event.severity}: {event.cause} ({event.remedy})")
            return
        new = event.phase and event.kind in ("phase", "progress", "ready") and event.phase != self.phase
        if new:
            now = time.monotonic()
            if self.phase and self.phase != "ready":
                print_note(f"{self.phase}: {format_seconds(now - self.phase_began)}")
            self.phase, self.phase_began = str(event.phase), now
            self.done, self.total, self.shown_tenths = 0, 0, 0
        if not event.total or not (new or event.kind == "progress"):
            return
        self.done, self.total = event.done or 0, event.total
        tenths = 10 * self.done // self.total
        if not self.live and tenths > self.shown_tenths:  # a log gets ten lines, not thousands
            self.shown_tenths = tenths
            print_note(f"{self.phase}: {event.done} of {event.total}")
