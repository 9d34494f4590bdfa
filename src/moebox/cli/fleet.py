"""`moebox fleet`: several boxes behind an existing router, planned, rendered, started, verified and measured as one."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.output import exit_code, print_lines, print_result, stderr_console, stdout_console, write_file
from moebox.cli.pinned import PlanArgs
from moebox.errors import BadInput, DoesNotFit, refuse_if, refuse_out_of_range
from moebox.fleet import file as files
from moebox.fleet import routers
from moebox.fleet.file import Fleet
from moebox.fleet.route import Policy
from moebox.fleet.simulate import FleetOutcome, FleetQuestion
from moebox.fleet.users import find_workload as workload_called
from moebox.serve.keys import TWIN_KEY

if TYPE_CHECKING:
    from moebox.cli.verify_view import VerifyView
    from moebox.flows.fleet_bench import FleetBenchStep
    from moebox.flows.fleet_plan import FleetCandidate, FleetPlan
    from moebox.flows.fleet_record import FleetRecord
    from moebox.flows.fleet_verify import FleetVerdict

NOTHING = PlanArgs()
STREAMS = 64  # in flight when a member is killed


def plan(
    target: str = "fleet.toml",
    *,
    users: int,
    slo: str,
    workload: str = "agents",
    box: str = "",
    prices: Path | None = None,
    policy: Policy | None = None,
    slo_share: float = 0.9,
    time: str = "20m",
    most: int = 64,
    seed: int = 1,
    pinned: Annotated[PlanArgs, Parameter(name="*")] = NOTHING,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find how many of which box serve so many users within an SLO, by simulation.

    Each fleet is simulated in virtual time with its router: conversations that grow, prefix caches, queues, and the
    death of one box. Prices in the fleet file add cost, and the same tokens from a hosted API.

    Args:
        target: A fleet file (fleet.toml where none is named), or a model as `plan` takes it together with --box.
        users: People or agents who use it at the same time.
        slo: Limits that a good request keeps, like ttft=2s,tpot=50ms.
        workload: What users do: agents, chat, documents, tools, or one of the fleet file's own.
        box: Boxes to compare, such as 8x-h200,8x-b200; those of the fleet file's members without it.
        prices: A fleet file whose [prices] and [workload] hold, where the target is a model.
        policy: How the router sends requests: prefix, round-robin or least-load.
        slo_share: Share of requests that must be good.
        time: Virtual time of each simulated fleet; a quarter of it warms up.
        most: Most boxes to try.
        seed: For lengths and pauses.
        pinned: Settings of the plan that must hold.
        json: Print JSON.
    """
    from moebox.bench.search import parse_slo
    from moebox.flows import fleet_plan

    refuse_out_of_range("--most", most, 1, 512)
    path = Path(target) if target.endswith(".toml") else None
    if path:
        flags.refuse_unused(f"{path} has its own prices and workload", prices=prices)
        flags.refuse_unused("the members of a fleet file have recipes", **asdict(pinned))
    fleet = _fleet(path, prices)
    seconds = flags.parse_duration("--time", time)
    question = FleetQuestion(
        work=workload_called(workload, fleet.workload),
        users=users,
        seconds=seconds,
        warm_s=seconds / 4,
        slo=parse_slo(slo, share=slo_share),
        policy=policy or fleet.router.policy,
        seed=seed,
    )
    question.validate()
    listed = fleet_plan.member_candidates(fleet, path) if path and fleet.member and not box else []
    refused: dict[str, str] = {}
    candidates = _unique(listed) if listed else _candidates(target, box, question, pinned, refused)
    watch = None if json else _progress
    found = fleet_plan.plan_fleet(
        candidates, question, workload, fleet.prices, refused=refused, most=most, on_outcome=watch
    )
    if listed:
        found = fleet_plan.with_listed_fleet(found, listed)
    print_result(json, fleet_plan.plan_document(found), lambda: _show_plan(found, fleet))
    return exit_code(any(size.sized.enough for size in found.answers))


def _show_plan(found: "FleetPlan", fleet: Fleet) -> None:
    from moebox.cli.fleet_view import plan_page

    stdout_console().print(plan_page(found, fleet.prices))


def _fleet(path: Path | None, prices: Path | None) -> Fleet:
    """The fleet file, or the one whose prices and workload hold for a model."""
    hint = "name a fleet file, or a model with --box: moebox fleet plan kimi-k2.6 --box 8x-h200 …"
    refuse_if(path and not path.exists(), f"{path}: no such file", hint=hint)
    source = path or prices
    return files.read_fleet(source) if source else Fleet()


def _candidates(
    target: str, box: str, question: FleetQuestion, pinned: PlanArgs, refused: dict[str, str]
) -> "list[FleetCandidate]":
    """The model on each of the boxes; those it does not fit on go to `refused`, with the reason."""
    from moebox.flows import fleet_plan

    names = flags.split_names(box)
    _refuse_boxes(target, names)
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(fleet_plan.candidate_for_model(target, name, question, pinned.constraints()))
        except DoesNotFit as problem:
            refused[name] = problem.message
    if not found:
        raise DoesNotFit(f"{target} fits on none of {', '.join(names)}: {next(iter(refused.values()))}")
    return found


def _refuse_boxes(target: str, names: list[str]) -> None:
    """BadInput for a fleet file, which has members instead, and for a model without a box."""
    if target.endswith(".toml"):
        of_model = "--box is for a model; the members of a fleet file name their own"
        refuse_if(names, of_model, hint="leave --box out")
        raise BadInput(f"{target} has no members to plan for", hint="add [[member]], or name a model and --box")
    refuse_if(not names, "no boxes to compare", hint="--box 8x-h200,8x-rtx-pro-6000-server")


def _unique(listed: "list[FleetCandidate]") -> "list[FleetCandidate]":
    """Each kind of box once."""
    return list({(candidate.box.name, candidate.recipe.name): candidate for candidate in listed}.values())


def _progress(outcome: FleetOutcome) -> None:
    boxes = len(outcome.boxes)
    what = "one dies" if outcome.question.fail_at else outcome.question.policy
    name = outcome.boxes[0].name
    stderr_console().print(
        f"{boxes:>4} × {name}, {what}: {outcome.good_share:.1%} of requests good", style="dim", markup=False
    )


def up(
    file: Path = Path("fleet.toml"),
    *,
    twin: Annotated[bool, Parameter(negative=())] = False,
    detach: Annotated[bool, Parameter(negative=())] = False,
    patience: str = "15m",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Start a fleet's members and the router in front of them; Ctrl-C stops all of it.

    Args:
        file: The fleet file.
        twin: Start simulations of the members' boxes instead of engines.
        detach: Return once it answers; `moebox fleet ps` and `down` find it again.
        patience: Longest time without progress while a member starts.
        json: Print the fleet as one JSON document.
    """
    from moebox.cli.signals import stop_event
    from moebox.flows import fleet_up

    asked = stop_event()
    running = fleet_up.start_fleet(
        file, twins=twin, patience_s=flags.parse_duration("--patience", patience), notify=_say
    )
    try:
        print_result(json, running.record, lambda: _show_up(running.record))
        if detach:
            running.detach()
            return 0
        running.wait(stop=asked.is_set)
    except BaseException:
        running.stop()
        raise
    return 0


def _show_up(record: "FleetRecord") -> None:
    stdout_console().print(f"{record.name}: {record.base_url} serves {record.model}", markup=False, soft_wrap=True)
    if record.router.key_env == TWIN_KEY:
        print(f"export {TWIN_KEY}={record.endpoint().key}", file=sys.stderr)  # the console would hide it
    _say(f"{record.router.kind} {routers.router_traits()[record.router.kind].note}")


def ps(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List fleets with their members, and whether each answers.

    Args:
        json: Print JSON.
    """
    from moebox.cli.fleet_view import fleet_lines
    from moebox.flows import fleet_record, fleet_up

    found = [(record, fleet_up.fleet_status(record)) for record in fleet_record.list_fleets()]
    fleets = [
        {"name": record.name, "base_url": record.base_url, "model": record.model, "parts": rows}
        for record, rows in found
    ]
    print_result(json, {"fleets": fleets}, lambda: print_lines(fleet_lines(found)))
    return 0


def down(name: str = "", /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Stop a fleet: its router, then every member that moebox started.

    Args:
        name: The fleet's name or file; the only one when left out.
        json: Print JSON.
    """
    from moebox.flows import fleet_record, fleet_up

    record = fleet_record.find_fleet(name)
    stopped = fleet_up.stop_fleet(record)
    print_result(
        json,
        {"fleet": record.name, "stopped": stopped},
        lambda: stdout_console().print(f"{record.name}: {', '.join(stopped) or 'nothing'} stopped", markup=False),
    )
    return 0


def verify(
    name: str = "",
    /,
    *,
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    kill: str = "",
    streams: int | None = None,
    context: str = "",
    quick: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    deadline: str = "5m",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check the answers through the router, and look at what only a fleet can get wrong.

    The fleet file tells the checks what a router hides: the engine behind it and its context.

    Args:
        name: The fleet's name or file; the only one when left out.
        only: Only these checks (comma-separated or repeated).
        kill: End this member (or the `busiest`) with SIGKILL under load, name the streams that broke, start it again.
        streams: With --kill, streams in flight then; 64 when left out.
        context: Length of the long text in tokens, like 64k.
        quick: Fewer trials.
        seed: Repeat the questions of an earlier verification.
        deadline: Timeout of one request.
        json: Print JSON.
    """
    from moebox.cli.verify import refuse_unused_flags
    from moebox.cli.verify_view import VerifyView
    from moebox.flows import fleet_record, fleet_verify
    from moebox.store import Run
    from moebox.verify.options import TIME_S, TRIALS, VerifyEffort, VerifyOptions
    from moebox.verify.runner import results_document as ladder_document
    from moebox.verify.runner import select_checks

    names = flags.split_names(*(only or ()))
    refuse_unused_flags([rung.name for rung in select_checks(names, "")], context=context)
    refuse_out_of_range("--streams", streams, 1, 4096)
    if not kill:
        flags.refuse_without("--kill", streams=streams)
    tokens = flags.parse_token_count("--context", context or None)
    record = fleet_record.find_fleet(name)
    effort: VerifyEffort = "quick" if quick else "default"
    longest = max(1.0, flags.parse_duration("--deadline", deadline))
    options = VerifyOptions(context=tokens, trials=TRIALS[effort], time_s=TIME_S[effort], seed=seed, deadline_s=longest)
    run = Run.create(f"verify-{record.name}")
    with VerifyView(quiet=json) as view:
        tell = None if json else view.print_check
        verdict = fleet_verify.verify_fleet(
            record, options, only=names, kill=kill, streams=streams or STREAMS, run=run, notify=tell
        )
    print_result(
        json,
        {**ladder_document(verdict.checks), **fleet_verify.verdict_document(verdict), "run": str(run.path)},
        lambda: _show_verdict(verdict, view, run.path),
    )
    return exit_code(verdict.is_good)


def _show_verdict(verdict: "FleetVerdict", view: "VerifyView", folder: Path) -> None:
    """What only a fleet can get wrong, then the checks."""
    from moebox.cli.fleet_view import affinity_lines, member_loss_lines

    for line in (*affinity_lines(verdict.affinity), *member_loss_lines(verdict.loss)):
        stdout_console().print(line, markup=False)
    view.print_summary(verdict.checks, folder)
    if not verdict.is_good and verdict.checks.has_passed:
        stdout_console().print("every check passed, and the fleet did not: see above", style="red")


def bench(
    name: str = "",
    /,
    *,
    members: str = "",
    concurrency: int = 8,
    requests: int = 64,
    input_len: int = 256,
    output_len: int = 64,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Measure how throughput grows with members, and what the router costs.

    Args:
        name: The fleet's name or file; the only one when left out.
        members: Member counts to measure, such as 1,2,4; 1, 2, 4 … up to all of them without it.
        concurrency: Requests at once for each member.
        requests: Requests for each member.
        input_len: Prompt tokens.
        output_len: Reply tokens.
        json: Print JSON.
    """
    from moebox.flows import fleet_bench, fleet_record

    record = fleet_record.find_fleet(name)
    sizes = _sizes(members, len(record.members))
    least = min(concurrency, requests, input_len, output_len)
    refuse_if(least < 1, "--concurrency, --requests, --input-len and --output-len are 1 or more")
    load = fleet_bench.FleetLoad(
        concurrency=concurrency, requests=requests, input_tokens=input_len, output_tokens=output_len
    )
    steps = fleet_bench.bench_fleet(record, sizes, load, notify=_say)
    print_result(
        json,
        {"fleet": record.name, "router": record.router.kind, "simulation": record.twins, "steps": steps},
        lambda: _show_steps(record, steps),
    )
    return exit_code(not any(step.failed for step in steps))


def _show_steps(record: "FleetRecord", steps: "list[FleetBenchStep]") -> None:
    from moebox.cli.fleet_view import bench_page

    stdout_console().print(bench_page(record, steps))


def _sizes(text: str, most: int) -> tuple[int, ...]:
    if not text:
        return tuple(sorted({min(2**power, most) for power in range(most.bit_length() + 1)}))
    parts = [part.strip() for part in text.split(",")]
    wrong = not all(map(str.isdigit, parts))
    refuse_if(wrong, f"--members: {text!r} is not a list of counts", hint="write it like 1,2,4")
    return tuple(sorted(set(map(int, parts))))


def _say(line: str) -> None:
    stderr_console().print(line, style="dim", markup=False)


def render(
    file: Path = Path("fleet.toml"),
    *,
    form: Annotated[Literal["router", "compose", "k8s", "slurm"], Parameter(name="--as")] = "router",
    router: files.RouterKind | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the router's configuration, and with it the members' launch files, as files that need no moebox.

    Args:
        file: The fleet file.
        form: What to write: the router alone, Compose, Kubernetes (a kustomize base) or Slurm.
        router: Another router than the file's: sglang-router, vllm-router, litellm or llama-swap.
        output: A folder to write them to; otherwise they are printed.
        json: Print the files as one JSON document.
    """
    from moebox.flows.fleet_render import render_fleet

    texts = render_fleet(file, form, kind=router)
    if output:
        for name, text in texts.items():
            write_file(output / name, text, executable=name.endswith((".sh", ".sbatch")))
    print_result(json, {"form": form, "output": output, "files": texts}, lambda: _show_files(texts, output))
    return 0


def _show_files(texts: dict[str, str], output: Path | None) -> None:
    """Their names where they were written, their text otherwise."""
    if output:
        stdout_console().print(f"{output}: {', '.join(texts)}", markup=False, soft_wrap=True)
        return
    for name, text in texts.items():
        print(f"# ==> {name} <==\n{text}")
