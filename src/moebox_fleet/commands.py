"""`moebox fleet up, ps, down, verify, bench and render`: a fleet behind its router."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import AsJson, Names, OutputPath, Settings, Switch
from moebox.cli.output import exit_code, print_lines, print_result, stderr_console, stdout_console, write_file
from moebox.core.setting import Effort, apply_settings
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.serve.state import TWIN_KEY
from moebox.units import format_percent, format_seconds
from moebox_fleet import routers
from moebox_fleet.file import RouterKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from moebox_fleet.bench import FleetBenchStep
    from moebox_fleet.loss import MemberLoss
    from moebox_fleet.up import FleetRecord

# What a killed member held, by what counted it.
HELD = {
    "router": "with {inside} streams behind {router}",
    "member": "with {inside} requests in it",
    "": "behind {router}",
}


def up(
    file: Path = Path("fleet.toml"),
    *,
    twin: Switch = False,
    detach: Switch = False,
    patience: str = "15m",
    json: AsJson = False,
) -> int:
    """Start a fleet's members and the router in front of them; Ctrl-C stops all of it.

    Args:
        file: The fleet file.
        twin: Start simulations of the members' boxes instead of engines.
        detach: Return once it answers; `moebox fleet ps` and `down` find it again.
        patience: Longest time without progress while a member starts.
    """
    from moebox_fleet import up as fleet_up

    patience_s = flags.parse_duration("--patience", patience)
    running = fleet_up.start_fleet(file, twins=twin, patience_s=patience_s, notify=_print_note)
    record = running.record

    def show() -> None:
        print_lines([f"{record.name}: {record.base_url} serves {record.model}"])
        if record.router.key_env == TWIN_KEY:
            print(f"export {TWIN_KEY}={record.endpoint().key}", file=sys.stderr)  # the console would hide it
        _print_note(f"{record.router.kind} {routers.router_traits()[record.router.kind].note}")

    try:
        print_result(json, record, show)
        if detach:
            running.detach()
            return 0
        running.wait()
    except BaseException:
        running.stop()
        raise
    return 0


def _print_note(line: str) -> None:
    stderr_console().print(line, style="dim", markup=False)


def ps(*, json: AsJson = False) -> int:
    """List fleets with their members, and whether each answers."""
    from moebox_fleet import up as fleet_up

    fleets, lines = [], []
    for record in fleet_up.list_fleets():
        rows = fleet_up.fleet_status(record)
        about = {"name": record.name, "base_url": record.base_url, "model": record.model}
        fleets.append({**about, "parts": rows})
        lines.append(f"{record.name}  {record.model}  {record.router.policy} routing")
        lines += [f"  {row['name']:<18} {row['kind']:<14} {row['status']:<22} {row['url']}" for row in rows]
    return print_result(json, {"fleets": fleets}, lambda: print_lines(lines or ["no fleet is running"]))


def down(name: str = "", /, *, json: AsJson = False) -> int:
    """Stop a fleet: its router, then every member that moebox started.

    Args:
        name: The fleet's name or file. Default: the only one.
    """
    from moebox_fleet import up as fleet_up

    record = fleet_up.find_fleet(name)
    stopped = fleet_up.stop_fleet(record)
    line = f"{record.name}: {', '.join(stopped) or 'nothing'} stopped"
    return print_result(json, {"fleet": record.name, "stopped": stopped}, lambda: print_lines([line]))


def verify(
    name: str = "",
    /,
    *,
    only: Names = (),
    kill: str = "",
    effort: Effort = "normal",
    context: str = "",
    settings: Settings = (),
    json: AsJson = False,
) -> int:
    """Check the answers through the router, and what only a fleet can get wrong.

    The fleet file gives the checks what a router hides: the engine behind it and its context.

    Args:
        name: The fleet's name or file. Default: the only one.
        only: Only these checks (comma-separated or repeated).
        kill: Kill this member (or the `busiest`) with SIGKILL under load, list the broken streams, start it again.
        effort: quick, normal or thorough, as for `verify`.
        context: Length of the long text in tokens, like 64k.
        settings: Another option of `verify`, such as seed=1 or deadline_s=5m; or streams=64 in flight at --kill;
            repeatable.
    """
    from moebox.cli.verify import VerifyView, parse_options
    from moebox.store import Run
    from moebox.verify.options import FleetVerifySettings
    from moebox.verify.runner import results_document, select_checks
    from moebox_fleet import up as fleet_up
    from moebox_fleet import verify as fleet_verify

    names = flags.split_names(*only)
    chosen = [check.name for check in select_checks(names, "")]
    options = parse_options(FleetVerifySettings, effort, context, settings, chosen)
    refuse_out_of_range("--set streams", options.streams, 1, 4096)
    unused = not kill and options.streams != FleetVerifySettings().streams
    refuse_if(unused, "streams needs --kill", hint="add --kill, or leave it out")
    record = fleet_up.find_fleet(name)
    run = Run.create(f"verify-{record.name}")
    with VerifyView(run.path, quiet=json) as view:
        verdict = fleet_verify.verify_fleet(
            record,
            options,
            only=names,
            kill=kill,
            streams=options.streams,
            run=run,
            notify=None if json else view.print_check,
        )

    def show() -> None:
        affinity = verdict.affinity
        lines = [f"affinity: {affinity.reason}", *(f"  {probe.name}: {probe.reason}" for probe in affinity.probes)]
        for line in (*lines, *member_loss_lines(verdict.loss)):
            stdout_console().print(line, markup=False)
        view.print_summary(verdict.checks, options.trials)
        if not verdict.is_good and verdict.checks.has_passed:
            stdout_console().print("every check passed, but the fleet did not: see above", style="red")

    document = {**results_document(verdict.checks), **fleet_verify.verdict_document(verdict), "run": str(run.path)}
    return print_result(json, document, show, good=verdict.is_good)


def member_loss_lines(loss: "MemberLoss | None") -> list[str]:
    if loss is None:
        return []
    held = HELD[loss.counted_by].format(inside=loss.inside, router=loss.router)
    lines = [f"{loss.member} killed {held}: {loss.finished} of {loss.streams} streams finished, {len(loss.lost)} lost"]
    lines += [f"  {count} × {reason}" for reason, count in loss.reasons.items()]
    for name in loss.lost:
        lines.append(f"  lost: {name}{', which the member did not serve' if name in loss.elsewhere else ''}")
    if loss.served_after_s is None:
        return [*lines, "  no request was answered after it"]
    lines.append(f"  a new request was answered after {format_seconds(loss.served_after_s)}")
    if not loss.is_good:
        lines.append(f"  more streams broke behind {loss.router} than the member held")
    return lines


def bench(name: str = "", /, *, members: str = "", settings: Settings = (), json: AsJson = False) -> int:
    """Measure how throughput grows with members, and the overhead of the router.

    Args:
        name: The fleet's name or file. Default: the only one.
        members: Member counts to measure, such as 1,2,4. Default: 1, 2, 4 … up to all of them.
        settings: Another value of the load, repeatable: concurrency=8 and requests=64 for each member,
            input_tokens=256, output_tokens=64.
    """
    from moebox_fleet import bench as fleet_bench
    from moebox_fleet import up as fleet_up

    record = fleet_up.find_fleet(name)
    most, parts = len(record.members), [*map(str.strip, members.split(","))]
    wrong = members and not all(map(str.isdigit, parts))
    refuse_if(wrong, f"--members: {members!r} is not a list of counts", hint="write it like 1,2,4")
    usual = {min(2**power, most) for power in range(most.bit_length() + 1)}
    sizes = tuple(sorted(set(map(int, parts)) if members else usual))
    load = apply_settings(fleet_bench.FleetLoad(), settings)
    least = min(load.concurrency, load.requests, load.input_tokens, load.output_tokens)
    refuse_if(least < 1, "concurrency, requests, input_tokens and output_tokens must be 1 or more")
    steps = fleet_bench.bench_fleet(record, sizes, load, notify=_print_note)
    document = {"fleet": record.name, "router": record.router.kind, "simulation": record.twins, "steps": steps}
    print_result(json, document, lambda: stdout_console().print(bench_page(record, steps)))
    return exit_code(not any(step.failed for step in steps))


def bench_page(record: "FleetRecord", steps: "list[FleetBenchStep]") -> "RenderableType":
    """Return the scaling and the router's overhead."""
    from rich.console import Group
    from rich.text import Text

    heads = ("members", "tok/s", "scaling", "TTFT direct", "routed", "added", "router CPU", "a request")
    rows = [
        (
            str(step.members),
            f"{step.output_throughput:,.0f}",
            format_percent(step.scaling),
            f"{step.direct_ttft_ms:.1f} ms",
            f"{step.routed_ttft_ms:.1f} ms",
            f"{step.routed_ttft_ms - step.direct_ttft_ms:+.1f} ms",
            format_percent(step.router_cpu_share),
            f"{step.router_cpu_ms_per_request:.2f} ms",
        )
        for step in steps
    ]
    notes = ["Scaling is relative to one member behind the same router; router CPU is of one core, under load."]
    if any(step.client_limited for step in steps):
        notes.append("The load generator was at its limit: these figures include it.")
    if record.twins:
        notes.append("Members are simulations.")
    return Group(make_table(heads, rows), *(Text(note, style="dim") for note in notes))


def render(
    file: Path = Path("fleet.toml"),
    *,
    file_format: Annotated[Literal["router", "compose", "k8s", "slurm"], Parameter(name="--as")] = "router",
    router: RouterKind | None = None,
    output: OutputPath = None,
    force: Switch = False,
    json: AsJson = False,
) -> int:
    """Write the router's configuration and the members' launch files, as files that run without moebox.

    Args:
        file: The fleet file.
        file_format: What to write: the router alone, Compose, Kubernetes (a kustomize base) or Slurm.
        router: Another router than the file's: sglang-router, vllm-router or litellm.
        output: A folder to write them to. Default: print them.
        force: Write it although a member does not fit its box.
    """
    from moebox_fleet.render import render_fleet

    texts = render_fleet(file, file_format, kind=router, force=force)
    if output:
        for name, text in texts.items():
            write_file(output / name, text, executable=name.endswith((".sh", ".sbatch")))

    def show() -> None:
        if output:
            print_lines([f"{output}: {', '.join(texts)}"])
        for name, text in () if output else texts.items():
            print(f"# ==> {name} <==\n{text}")

    return print_result(json, {"form": file_format, "output": output, "files": texts}, show)
