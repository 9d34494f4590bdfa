"""Fleet plans for people, in 80 columns."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moebox.cli.tables import make_table
from moebox.core.measure import Slo
from moebox.core.verdict import CheckVerdict
from moebox.fleet.cost import Prices
from moebox.fleet.simulate import FleetOutcome
from moebox.flows.fleet_bench import FleetBenchStep
from moebox.flows.fleet_loss import MemberLoss
from moebox.flows.fleet_plan import FleetAnswer, FleetPlan
from moebox.flows.fleet_record import FleetRecord
from moebox.units import format_percent, format_seconds


def plan_page(found: FleetPlan, prices: Prices) -> RenderableType:
    """The whole plan."""
    parts: list[RenderableType] = [Text(_title(found), style="bold"), Text(""), _table(found)]
    parts += [Text(line) for answer in found.answers for line in _remarks(answer, found)]
    parts += [Text(line) for answer in found.answers for line in _money(answer, prices)]
    parts += [Text(f"{box}: {why}") for box, why in found.refused.items()]
    if found.listed is not None:
        good = format_percent(found.listed.good_share)
        parts.append(Text(f"as listed ({len(found.listed.boxes)} boxes): {good} of requests good"))
    parts.append(Text(_small_print(found), style="dim"))
    return Group(*parts)


def _title(found: FleetPlan) -> str:
    question = found.question
    about = f" ({question.work.about})" if question.work.about else ""
    return f"{question.users:,} users, {found.workload}{about}; {slo_text(question.slo)}"


def slo_text(slo: Slo) -> str:
    """An SLO in words."""
    names = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s, "ITL": slo.itl_s, "E2E": slo.e2e_s}
    limits = ", ".join(f"{name} ≤ {format_seconds(limit)}" for name, limit in names.items() if limit is not None)
    return f"{limits} for {format_percent(slo.share)} of requests"


def _table(found: FleetPlan) -> Table:
    heads = ("box", "boxes", "1 down", "good", "TTFT p90", "TPOT p90", "cached", "kW")
    return make_table(heads, map(_line, found.answers), left_columns=("box",), gap=1)


def _line(answer: FleetAnswer) -> tuple[str, ...]:
    sized, outcome = answer.sized, answer.sized.outcome
    return (
        answer.candidate.box.name,
        str(sized.enough or f">{len(outcome.boxes)}"),
        str(sized.spare or "–"),
        format_percent(outcome.good_share),
        format_seconds(outcome.tally.ttft.quantile(0.9)),
        format_seconds(outcome.tally.tpot.quantile(0.9)),
        format_percent(outcome.hit_share),
        f"{answer.cost.watts / 1000:.0f}",
    )


def _remarks(answer: FleetAnswer, found: FleetPlan) -> list[str]:
    sized, name = answer.sized, answer.candidate.box.name
    lines = [""]
    if sized.enough is None:
        lines.append(f"{name}: not even {len(sized.outcome.boxes)} boxes are enough{_why(sized.outcome, found)}")
        return lines
    if found.question.policy == "prefix":
        plain = sized.round_robin
        lines.append(
            f"{name}: with round-robin {format_percent(plain.good_share)} good, "
            f"{format_percent(plain.hit_share)} of prompt tokens cached"
        )
    if sized.with_failure is not None:
        failed = sized.with_failure
        lines.append(
            f"{name}: one of {len(failed.boxes)} dies: {failed.tally.lost} requests lost and sent again, "
            f"{format_percent(failed.good_after_failure)} good after it"
        )
    elif sized.spare:
        lines.append(f"{name}: a single box has nothing left when it dies; {sized.spare} survive that")
    return lines


def _why(outcome: FleetOutcome, found: FleetPlan) -> str:
    """What alone would already break the SLO."""
    slo = found.question.slo
    if slo.tpot_s and outcome.tally.tpot.quantile(1 - slo.share) > slo.tpot_s:
        return f": TPOT is {format_seconds(outcome.tally.tpot.quantile(0.5))} however many there are"
    if slo.ttft_s and outcome.tally.ttft.quantile(1 - slo.share) > slo.ttft_s:
        return f": TTFT is {format_seconds(outcome.tally.ttft.quantile(0.5))} however many there are"
    return ""


def _money(answer: FleetAnswer, prices: Prices) -> list[str]:
    paid, name, currency = answer.cost, answer.candidate.box.name, prices.currency
    if paid.per_million is None or paid.box_hour is None:
        return []
    lines = [f"{name}: {paid.box_hour:,.2f} {currency} an hour, {paid.per_million:,.2f} {currency} a million tokens"]
    if paid.api_per_million is None or paid.break_even is None or prices.api is None:
        return lines
    api = f"{name}: {prices.api.name} asks {paid.api_per_million:,.2f} {currency} a million for the same tokens"
    if paid.break_even <= 1:
        lines.append(f"{api}; it is cheaper below {format_percent(paid.break_even)} of this load")
    else:
        lines.append(f"{api}: cheaper up to {paid.break_even:.1f} times this load")
    return lines


def _small_print(found: FleetPlan) -> str:
    low = min(answer.candidate.speed_range[0] for answer in found.answers)
    high = max(answer.candidate.speed_range[1] for answer in found.answers)
    bases = "; ".join(sorted({answer.candidate.basis for answer in found.answers} - {""}))
    seconds = format_seconds(found.question.seconds)
    text = f"\nSimulated: {seconds} of virtual time a fleet, {found.question.policy} routing. "
    return f"{text}Speeds are forecasts: expect {low - 1:+.0%} to {high - 1:+.0%} ({bases or 'measured on these'})."


# What it held, by who counted it.
HELD = {
    "router": "with {inside} streams behind {router}",
    "member": "with {inside} requests in it",
    "": "behind {router}",
}


def member_loss_lines(loss: MemberLoss | None) -> list[str]:
    """A member's death, told."""
    if loss is None:
        return []
    held = HELD[loss.counted_by].format(inside=loss.inside, router=loss.router)
    lines = [f"{loss.member} killed {held}: {loss.finished} of {loss.streams} streams finished, {len(loss.lost)} lost"]
    lines += [f"  {count} × {why}" for why, count in loss.reasons.items()]
    lines += [f"  lost: {name}{_elsewhere(name, loss)}" for name in loss.lost]
    if loss.served_after_s is None:
        lines.append("  no request was answered after it")
        return lines
    lines.append(f"  a new request was answered after {format_seconds(loss.served_after_s)}")
    if not loss.is_good:
        lines.append(f"  more streams broke behind {loss.router} than the member held")
    return lines


def _elsewhere(name: str, loss: MemberLoss) -> str:
    return ", which the member did not serve" if name in loss.elsewhere else ""


def affinity_lines(found: CheckVerdict) -> list[str]:
    """Who served which conversation."""
    return [f"affinity: {found.reason}", *(f"  {probe.name}: {probe.reason}" for probe in found.probes)]


def bench_page(record: FleetRecord, steps: list[FleetBenchStep]) -> RenderableType:
    """Scaling and the router's price."""
    heads = ("members", "tok/s", "scaling", "TTFT direct", "routed", "added", "router CPU", "a request")
    notes = ["Scaling is against one member behind the same router; router CPU is of one core, under load."]
    if any(step.client_limited for step in steps):
        notes.append("The load generator was at its limit: this machine measures itself as well.")
    if record.twins:
        notes.append("Members are simulations.")
    return Group(make_table(heads, map(_measured, steps)), *(Text(note, style="dim") for note in notes))


def _measured(step: FleetBenchStep) -> tuple[str, ...]:
    return (
        str(step.members),
        f"{step.output_throughput:,.0f}",
        format_percent(step.scaling),
        f"{step.direct_ttft_ms:.1f} ms",
        f"{step.routed_ttft_ms:.1f} ms",
        f"{step.added_ttft_ms:+.1f} ms",
        format_percent(step.router_cpu_share),
        f"{step.router_cpu_ms_per_request:.2f} ms",
    )


def fleet_lines(found: Sequence[tuple[FleetRecord, list[dict[str, str]]]]) -> Iterator[str]:
    """A line for each fleet, and one for each of its parts."""
    if not found:
        yield "no fleet is running"
    for record, rows in found:
        yield f"{record.name}  {record.model}  {record.router.policy} routing"
        for row in rows:
            yield f"  {row['name']:<18} {row['kind']:<14} {row['status']:<22} {row['url']}"
