"""`moebox fleet plan`: how many boxes of which kind serve a number of users, by simulation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moebox import codec
from moebox.checkpoint import resolve_model
from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import AsJson, Settings, Switch
from moebox.cli.forecast_target import find_target
from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.core.registry import engine_display_name
from moebox.core.setting import split_settings
from moebox.errors import BadInput, DoesNotFit, refuse_if, refuse_out_of_range
from moebox.planner.constraints import Constraints
from moebox.planner.simulate import scheduler_rules
from moebox.units import format_percent, format_seconds, plural
from moebox_fleet.cost import Prices
from moebox_fleet.file import Fleet, read_fleet, recipe_path
from moebox_fleet.route import Policy
from moebox_fleet.simulate import BoxModel, FleetOutcome, FleetQuestion, simulate_fleet
from moebox_fleet.users import UserWorkload, find_workload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from moebox_fleet.plan import FleetAnswer, FleetCandidate, FleetPlan


SHORTEST = 8192  # tokens of context of a plan, at least


@dataclass(frozen=True, kw_only=True)
class FleetSearch:
    """How fleets are tried."""

    time_s: float = 1200.0  # virtual time of each; a quarter of it is warm-up
    most: int = 64  # boxes
    seed: int = 1  # of lengths and pauses


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """What --set changes beside the recipe."""

    search: FleetSearch = FleetSearch()


def plan(
    target: str = "fleet.toml",
    *,
    users: int,
    slo: str,
    workload: str = "agents",
    box: str = "",
    prices: Path | None = None,
    policy: Policy | None = None,
    settings: Settings = (),
    force: Switch = False,
    json: AsJson = False,
) -> int:
    """Find how many boxes of which kind serve a number of users within an SLO, by simulation.

    Each fleet is simulated in virtual time with its router: growing conversations, prefix caches, queues, and the
    death of one box. Prices in the fleet file add cost, and the price of the same tokens from a hosted API.

    Args:
        target: A fleet file; or a recipe or a model as `plan` takes it, together with --box.
        users: Users or agents that use it at the same time.
        slo: Limits that a good request keeps, like ttft=2s,tpot=50ms,share=0.9 (the share of requests that must).
        workload: What users do: agents, chat, documents, tools, or one of the fleet file's own.
        box: Boxes to compare, such as 8x-h200,8x-b200. Default: those of the fleet file's members.
        prices: A fleet file whose [prices] and [workload] are used for a model.
        policy: How the router sends requests: prefix, round-robin or least-load.
        settings: Another value of the recipe (parallel.tp=8), or of the search: search.time_s=20m of virtual time
            for each fleet, search.most=64 boxes at most, search.seed=1; repeatable.
        force: Plan with members that do not fit their box.
    """
    from moebox.bench.search import parse_slo
    from moebox.flows import recipes
    from moebox_fleet import plan as fleet_plan

    chosen, others = split_settings(FleetSettings(), settings)
    search = chosen.search
    refuse_out_of_range("search.most", search.most, 1, 512)
    path = Path(target) if target.endswith(".toml") else None
    if path and path.is_file() and "engine" in codec.load_toml(path):  # a recipe, not a fleet
        path = None
    if path:
        flags.refuse_unused(f"{path} has its own prices and workload", prices=prices)
        refuse_if(others, "the members of a fleet file have recipes: it does not take --set of a recipe")
    hint = "name a fleet file, or a model with --box: moebox fleet plan kimi-k2.6 --box 8x-h200 …"
    refuse_if(path and not path.exists(), f"{path}: no such file", hint=hint)
    source = path or prices
    fleet = read_fleet(source) if source else Fleet()
    question = FleetQuestion(
        work=find_workload(workload, fleet.workload),
        users=users,
        seconds=search.time_s,
        warm_s=search.time_s / 4,
        slo=parse_slo(slo),
        policy=policy or fleet.router.policy,
        seed=search.seed,
    )
    question.validate()
    listed = []
    if path and not box:
        for member in fleet.member:
            text = f"{path}: {member.name} is a url, and a plan needs its recipe and box"
            refuse_if(not member.recipe, text, hint='recipe = "…", box = "…"')
            listed.append(find_candidate(recipe_path(path, member), member.box, question.work, force=force))
    refused: dict[str, str] = {}
    if listed:  # each kind of box once
        candidates = list({(each.box.name, each.recipe.name): each for each in listed}.values())
    elif path:
        refuse_if(box, "--box is for a model; the members of a fleet file name their own", hint="leave --box out")
        raise BadInput(f"{target} has no members to plan for", hint="add [[member]], or name a model and --box")
    else:
        names, candidates = flags.split_names(box), []
        unnamed = not names and not recipes.is_recipe(target)
        refuse_if(unnamed, "no boxes to compare", hint="--box 8x-h200,8x-rtx-pro-6000-server")
        for name in dict.fromkeys(names or [""]):
            try:
                candidates.append(find_candidate(target, name, question.work, others, force=force))
            except DoesNotFit as problem:
                refused[name] = problem.message
        if not candidates:
            raise DoesNotFit(f"{target} fits on none of {', '.join(names)}: {next(iter(refused.values()))}")
    found = fleet_plan.plan_fleet(
        candidates,
        question,
        workload,
        fleet.prices,
        refused=refused,
        most=search.most,
        on_outcome=None if json else _print_progress,
    )
    if listed:
        found = replace(found, listed=simulate_fleet([candidate.model for candidate in listed], found.question))
    print_result(json, fleet_plan.plan_document(found), lambda: stdout_console().print(plan_page(found, fleet.prices)))
    return exit_code(any(answer.sized.enough for answer in found.answers))


def find_candidate(
    name: str, box: str, work: UserWorkload, settings: Sequence[str] = (), *, force: bool = False
) -> "FleetCandidate":
    """The plan for a model, or a recipe on this box or its own; `force` takes one that does not fit.

    A plan has a context that holds the longest mean conversation, unless a setting names another.
    """
    from moebox.flows import recipes
    from moebox_fleet.plan import FleetCandidate

    context = None
    if not recipes.is_recipe(name):
        longest = 1 << (work.longest - 1).bit_length()  # a power of two
        context = min(max(SHORTEST, longest), resolve_model(name)[0].context)
    target = find_target(name, box or None, settings, constraints=Constraints(context=context))
    if target.misfit and not force:
        raise target.misfit.error()
    place, speed = target.deployment.required_box, target.speed
    no_room = f"{target.recipe.name} on {place.name} leaves no room for a cache"
    refuse_if(target.memory.kv_tokens < 1, no_room, hint="`moebox plan` shows the memory")
    rules = scheduler_rules(target.recipe, target.memory.kv_tokens, speed, target.memory)
    return FleetCandidate(box=place, recipe=target.recipe, model=BoxModel(name=place.name, speed=speed, rules=rules))


def _print_progress(outcome: FleetOutcome) -> None:
    what = f"{outcome.question.policy}: {outcome.good_share:.1%} of requests met the SLO"
    if outcome.question.fail_at:  # the share that decides
        what = f"one box fails: {outcome.good_after_failure:.1%} of requests met the SLO afterwards"
    stderr_console().print(f"{len(outcome.boxes):>4} × {outcome.boxes[0].name}, {what}", style="dim", markup=False)


def plan_page(found: "FleetPlan", prices: Prices) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    question, slo = found.question, found.question.slo
    about = f" ({question.work.about})" * bool(question.work.about)
    names = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s, "ITL": slo.itl_s, "E2E": slo.e2e_s}
    limits = ", ".join(f"{name} ≤ {format_seconds(limit)}" for name, limit in names.items() if limit is not None)
    title = f"{question.users:,} users, {found.workload}{about}; {limits} for {format_percent(slo.share)} of requests"
    rows = []
    for answer in found.answers:
        sized, outcome = answer.sized, answer.sized.outcome
        new_row = (
            answer.candidate.box.name,
            str(sized.enough or f">{len(outcome.boxes)}"),
            str(sized.spare or "–"),
            format_percent(outcome.good_share),
            format_seconds(outcome.tally.ttft.quantile(0.9)),
            format_seconds(outcome.tally.tpot.quantile(0.9)),
            format_percent(outcome.hit_share),
            f"{answer.cost.watts / 1000:.0f}",
        )
        rows.append(new_row)
    heads = ("box", "boxes", "if 1 fails", "met SLO", "TTFT p90", "TPOT p90", "cached", "kW")
    table = make_table(heads, rows, left_columns=("box",), gap=1)
    lines = [line for answer in found.answers for line in _size_lines(answer, found)]
    lines += [line for answer in found.answers for line in _cost_lines(answer, prices)]
    lines += [f"{box}: {reason}" for box, reason in found.refused.items()]
    if found.listed is not None:
        share = format_percent(found.listed.good_share)
        lines.append(f"as listed ({len(found.listed.boxes)} boxes): {share} of requests met the SLO")
    speeds = [answer.candidate.model.speed for answer in found.answers]
    rates = "; ".join(dict.fromkeys(speed.range_text("serving") for speed in speeds))
    prompts = "; ".join(dict.fromkeys(speed.range_text("prompt") for speed in speeds))
    note = f"\nSimulated: {format_seconds(question.seconds)} of virtual time a fleet, {question.policy} routing. "
    note += f"A context that was planned is the next power of two after {question.work.longest:,} tokens, at which "
    note += "conversations end on average. "
    note += f"Speeds are forecasts: expect {rates}; prompts and TTFT {prompts}."
    return Group(Text(title, style="bold"), Text(""), table, *map(Text, lines), Text(note, style="dim"))


def _size_lines(answer: "FleetAnswer", found: "FleetPlan") -> list[str]:
    """Return what a box runs; why no fleet is large enough, or the effect of routing, and of a box that fails."""
    sized, name, slo, recipe = answer.sized, answer.candidate.box.name, found.question.slo, answer.candidate.recipe
    place = "experts in RAM" if recipe.hybrid else " ".join(recipe.parallel.labels)
    words = (engine_display_name(recipe.engine), Path(recipe.checkpoint).name, place, f"context {recipe.context:,}")
    lines = ["", f"{name}: {', '.join(words)}"]
    if sized.enough is None:
        tally, reason = sized.outcome.tally, ""
        for figure, limit, title in ((tally.ttft, slo.ttft_s, "TTFT"), (tally.tpot, slo.tpot_s, "TPOT")):
            if limit and figure.quantile(1 - slo.share) > limit:
                reason = f": {title} is {format_seconds(figure.quantile(0.5))} with any number of boxes"
        return [*lines, f"{name}: even {len(sized.outcome.boxes)} boxes are not enough{reason}"]
    if found.question.policy == "prefix":
        other = sized.round_robin
        shares = f"{format_percent(other.good_share)} met the SLO, {format_percent(other.hit_share)}"
        lines.append(f"{name}: with round-robin {shares} of prompt tokens cached")
    failed = sized.with_failure
    if failed is not None:
        lost = f"{plural(failed.tally.lost, 'request')} lost and sent again"
        after = f"{format_percent(failed.good_after_failure)} met the SLO afterwards"
        lines.append(f"{name}: one of {len(failed.boxes)} fails: {lost}, {after}")
    elif sized.spare:
        lines.append(f"{name}: nothing is left if a single box fails; {sized.spare} boxes survive that")
    return lines


def _cost_lines(answer: "FleetAnswer", prices: Prices) -> list[str]:
    """Return the cost, and how it compares with a hosted API."""
    cost, name, currency = answer.cost, answer.candidate.box.name, prices.currency
    if cost.per_million is None or cost.box_hour is None:
        return []
    lines = [f"{name}: {cost.box_hour:,.2f} {currency} an hour, {cost.per_million:,.2f} {currency} a million tokens"]
    if cost.api_per_million is None or cost.break_even is None or prices.api is None:
        return lines
    api = f"{name}: {prices.api.name} costs {cost.api_per_million:,.2f} {currency} a million for the same tokens"
    if cost.break_even <= 1:
        lines.append(f"{api}; it is cheaper below {format_percent(cost.break_even)} of this load")
    else:
        lines.append(f"{api}: cheaper up to {cost.break_even:.1f} times this load")
    return lines
