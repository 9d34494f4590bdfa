"""`moebox fleet`: several boxes behind an existing router, planned, rendered, started, verified and measured as one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli.output import emit, people, talk
from moebox.cli.pinned import Pinned
from moebox.core.measure import Slo
from moebox.errors import BadInput, DoesNotFit
from moebox.fleet import file as files
from moebox.fleet.file import Fleet
from moebox.fleet.route import Policy
from moebox.fleet.simulate import FleetOutcome, Question
from moebox.fleet.users import workload as workload_called
from moebox.units import parse_seconds

if TYPE_CHECKING:
    from moebox.flows.fleet_plan import Candidate

NOTHING = Pinned()


def plan(
    target: str,
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
    pinned: Annotated[Pinned, Parameter(name="*")] = NOTHING,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find how many of which box serve so many users within an SLO, by simulation.

    Each fleet is simulated in virtual time with its router: conversations that grow, prefix caches, queues, and the
    death of one box. Prices in the fleet file add cost, and the same tokens from a hosted API.

    Args:
        target: A fleet file (.toml), or a model as `plan` takes it together with --box.
        users: People or agents who use it at the same time.
        slo: What a good request keeps to, like ttft=2s,tpot=50ms.
        workload: What users do: agents, chat, documents, tools, or one of the fleet file's own.
        box: Boxes to compare, such as 8x-h200,8x-b200; those of the fleet file's members without it.
        prices: A fleet file whose [prices] and [workload] hold, where the target is a model.
        policy: How the router sends requests: prefix, round-robin or least-load.
        slo_share: Share of requests that must be good.
        time: Virtual time of each simulated fleet; a quarter of it warms up.
        most: Boxes to try at most.
        seed: For lengths and pauses.
        pinned: Settings of the plan that must hold.
        json: Print JSON.
    """
    from moebox.flows import fleet_plan

    path = Path(target) if target.endswith(".toml") else None
    source = path or prices
    fleet = files.read(source) if source else Fleet()
    if not 1 <= most <= 512:
        raise BadInput(f"--most {most} cannot be meant", hint="from 1 to 512")
    seconds = _seconds("--time", time)
    question = Question(
        work=workload_called(workload, fleet.workload),
        users=users,
        seconds=seconds,
        warm_s=seconds / 4,
        slo=_slo(slo, slo_share),
        policy=policy or fleet.router.policy,
        seed=seed,
    )
    question.check()
    listed = fleet_plan.members(fleet, path) if path and fleet.member and not box else []
    candidates, refused = _candidates(target, box, question, pinned) if not listed else (_unique(listed), {})
    watch = None if json else _progress
    found = fleet_plan.plan(candidates, question, workload, fleet.prices, refused=refused, most=most, watch=watch)
    if listed:
        found = fleet_plan.with_listed(found, listed)
    if json:
        emit(fleet_plan.document(found))
    else:
        from moebox.cli.fleet_view import page

        people().print(page(found, fleet.prices))
    return 0 if any(answer.sized.enough for answer in found.answers) else 1


def _candidates(target: str, box: str, question: Question, pinned: Pinned) -> tuple["list[Candidate]", dict[str, str]]:
    from moebox.flows import fleet_plan

    names = [name.strip() for name in box.split(",") if name.strip()]
    if target.endswith(".toml"):
        raise BadInput(f"{target} has no members to plan for", hint="add [[member]], or name a model and --box")
    if not names:
        raise BadInput("which boxes are to be compared?", hint="--box 8x-h200,8x-rtx-pro-6000-server")
    found, refused = [], {}
    for name in dict.fromkeys(names):
        try:
            found.append(fleet_plan.by_model(target, name, question, pinned.pins()))
        except DoesNotFit as problem:
            refused[name] = problem.message
    if not found:
        raise DoesNotFit(f"{target} fits on none of {', '.join(names)}: {next(iter(refused.values()))}")
    return found, refused


def _unique(listed: "list[Candidate]") -> "list[Candidate]":
    """Each kind of box once."""
    return list({(one.box.name, one.recipe.name): one for one in listed}.values())


def _slo(text: str, share: float) -> Slo:
    from moebox.bench.search import parse_slo

    return parse_slo(text, share=share)


def _seconds(flag: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as problem:
        raise BadInput(f"{flag}: {problem}") from None


def _progress(outcome: FleetOutcome) -> None:
    boxes = len(outcome.boxes)
    what = "one dies" if outcome.question.fail_at else outcome.question.policy
    name = outcome.boxes[0].name
    talk().print(f"{boxes:>4} × {name}, {what}: {outcome.good_share:.1%} of requests good", style="dim", markup=False)
