"""`moebox plan`: what fits, how, and how fast; shown with memory bars, forecast, alternatives and the next commands."""

import itertools
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox import api, codec, engines
from moebox.checkpoint import ResolvedModel, deploy, look_up_model
from moebox.cli.display import make_grid, make_table
from moebox.cli.flags import OutputPath, Switch
from moebox.cli.forecast_target import NO_PLAN_ARGS, PlanArgs
from moebox.cli.output import print_json, stderr_console, stdout_console, write_file
from moebox.core.model import Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Forecast, Goal, Plan
from moebox.core.registry import engine_display_name
from moebox.engines.reasons import flag_reason
from moebox.errors import BadInput, DoesNotFit, UnknownName
from moebox.loose import Document
from moebox.planner.rate import comparison_request
from moebox.units import format_count, format_gib, format_rate, format_seconds, format_tok_s

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

# Parts of a bar: name, letter (so that colour carries no meaning), colour, and the components of weights it sums.
PARTS: tuple[tuple[str, str, str, tuple[Component, ...]], ...] = (
    ("routed experts", "E", "dodger_blue2", ("routed_experts",)),
    ("shared experts and dense layers", "S", "deep_sky_blue1", ("shared_experts", "dense_ffn")),
    ("attention", "A", "cyan", ("attention",)),
    ("embedding and head", "H", "turquoise2", ("embed", "lm_head")),
    ("router, norms, vision", "R", "steel_blue1", ("router", "norms", "vision", "mtp")),
    ("draft", "D", "magenta", ()),
    ("KV cache", "K", "green3", ()),
    ("activations, graphs, workspace", "a", "yellow", ()),
    ("engine, left to the driver", "o", "grey70", ()),
    ("free", "·", "grey50", ()),
)
MARKS = {"fatal": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}


def plan(
    model: str,
    *,
    box: str | None = None,
    goal: Goal = "throughput",
    bold: Switch = False,
    ram: str = "",
    ram_bandwidth: str = "",
    args: Annotated[PlanArgs, Parameter(name="*")] = NO_PLAN_ARGS,
    why: Switch = False,
    offline: Switch = False,
    output: OutputPath = None,
    json: Switch = False,
) -> int:
    """Find the recipe for MODEL on this machine or a described one: memory of every device, forecast, reasons.

    The first recipe is careful: published weights, no draft, 65,536 tokens, text only, 0.90 of each GPU.
    Exit code 1 when nothing fits.

    Args:
        model: A name from the catalogue, ORG/REPO[@REVISION] of the Hub, a folder with config.json, or a .gguf file.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file. Default: this machine.
        goal: What to rank by.
        bold: Take the best forecast at once: drafts, fp8 cache and the patched image included.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        args: Settings that the plan must have.
        why: Print the arithmetic line by line, with the source of each constant.
        offline: Do not ask the Hub; repositories that were read before are still known.
        output: Write the recipe to this file.
        json: Print JSON.
    """
    known = look_up_anywhere(model, offline=offline)
    constraints = args.constraints(goal=goal, bold=bold)
    try:
        chosen = api.plan(known, box=box, ram=ram, ram_bandwidth=ram_bandwidth, constraints=constraints)
    except DoesNotFit as problem:
        if json:
            refusal = {"fits": False, "shortfall_bytes": problem.shortfall, "error": problem.message}
            print_json(refusal | {"remedies": problem.hint.split("; ") if problem.hint else []})
        raise
    if output:
        head = [f"# {chosen.recipe.name}: planned by moebox for {chosen.box}, goal {chosen.goal}."]
        head += [f"# - {line}" for line in chosen.reasons]
        write_file(output, "\n".join(head) + "\n\n" + codec.to_toml(chosen.recipe))
        stderr_console().print(f"wrote {output}", soft_wrap=True)
    if json:
        print_json(plan_document(chosen))
    else:
        page = arithmetic_page(chosen, known.model) if why else plan_page(chosen, known.model, saved=output)
        stdout_console().print(page)
    return 0


def look_up_anywhere(name: str, *, offline: bool) -> ResolvedModel:
    """Return a model by name, path or repository; a name that no table has is searched on the Hub."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it when it is imported
    try:
        return look_up_model(name)
    except UnknownName as problem:
        if offline or "/" in name:
            raise
        from moebox.checkpoint.remote import find_by_name

        found = find_by_name(name)
        if found is None:
            problem.hint = f"{problem.hint}; or name a repository of the Hub as ORG/REPO"
            raise
        return found


def plan_document(chosen: Plan) -> Document:
    """Return the plan under the keys that scripts rely on; the five parts of a device sum to its total."""
    memory = chosen.memory
    devices = [
        {
            "device": device.device,
            "total_bytes": device.total,
            "weights_bytes": device.weights_total + device.draft,
            "kv_bytes": device.kv,
            "overhead_bytes": device.activations + device.overhead,
            "free_bytes": device.free,
            "by_component": device.weights,
            "draft_bytes": device.draft,
            "activations_bytes": device.activations,
        }
        for device in memory.devices
    ]
    return {
        "box": chosen.box,
        "goal": chosen.goal,
        "recipe": chosen.recipe,
        "memory": {
            "per_device": devices,
            "kv_tokens": memory.kv_tokens,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "requests_of_context": memory.kv_tokens // max(chosen.recipe.context, 1),
            "fits": memory.fits,
        },
        "forecast": chosen.forecast,
        "answer_tok_s": chosen.answer_tok_s,
        "reasons": chosen.reasons,
        "warnings": chosen.warnings,
        "alternatives": chosen.alternatives,
        "refused": chosen.refused,
        "why": chosen.why,
        "measured": chosen.measured,
        "basis": chosen.basis,
    }


def plan_page(plan: Plan, model: Model, *, saved: Path | None = None) -> "RenderableType":
    """Return the whole plan for the terminal."""
    from rich.console import Group
    from rich.text import Text

    sections: dict[str, RenderableType] = {
        "why this one": make_grid(("-", Text(line)) for line in plan.reasons),
        "memory": memory_part(plan),
        "forecast": forecast_part(plan),
        "alternatives" if plan.alternatives else "throughput": alternatives_part(plan),
    }
    if plan.refused:
        refused = list(plan.refused.items())[:4]
        rows = (("-", Text.assemble((name, "bold"), f": {reason}")) for name, reason in refused)
        sections["rejected"] = make_grid(rows)
    if plan.warnings:
        warnings = []
        for warning in plan.warnings:
            mark, style = MARKS[warning.severity]
            text = Text(warning.text)
            if warning.remedy:
                text.append(f"\n→ {warning.remedy}", style="green")
            if warning.source:
                text.append(f"\n  {warning.source}", style="dim")
            warnings.append((Text(mark, style=style), text))
        sections["notes"] = make_grid(warnings)
    sections["next"] = next_part(plan, saved)
    parts: list[RenderableType] = [plan_title(plan, model)]
    for name, part in sections.items():
        parts += [Text(), section_title(name), part]
    return Group(*parts)


def plan_title(plan: Plan, model: Model) -> "Text":
    """Return one line: model, engine, layout, box."""
    from rich.text import Text

    recipe, parallel = plan.recipe, plan.recipe.parallel
    words = [engine_display_name(recipe.engine)]
    words += ["patched community image"] if recipe.runtime.preset else []
    if recipe.hybrid is None:
        words += parallel.labels
    elif parallel.nodes > 1:
        words.append(f"{parallel.nodes} nodes by RPC")
    words += [f"{recipe.kv} cache", f"context {format_count(recipe.context)}"]
    words += [f"{recipe.speculate.method} draft"] if recipe.speculate else []
    line = Text.assemble((f"{model.title} {deploy(recipe).checkpoint.label}", "bold"), " on ", (plan.box, "bold"))
    return line.append(": " + ", ".join(words))


def section_title(name: str) -> "Text":
    """Return a heading."""
    from rich.text import Text

    return Text(name, style="bold underline")


def part_bytes(device: DeviceMemory) -> tuple[int, ...]:
    """Return the bytes of each part of a bar, in the order of PARTS."""
    weights = [sum(device.weights.get(name, 0) for name in names) for _, _, _, names in PARTS if names]
    return (*weights, device.draft, device.kv, device.activations, device.overhead, max(0, device.free))


class MemoryBar:
    """A stacked bar as wide as there is room."""

    def __init__(self, device: DeviceMemory) -> None:
        self.device = device

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        width = options.max_width
        bar, done, shown = Text(no_wrap=True), 0, 0
        for (_, letter, colour, _), size in zip(PARTS, part_bytes(self.device), strict=True):
            done += size
            edge = round(width * done / max(self.device.total, 1))
            cells = max(0, min(edge, width) - shown)
            bar.append(letter * cells, style=f"black on {colour}")
            shown += cells
        yield bar


def memory_part(plan: Plan) -> "RenderableType":
    """Return a bar for each group of devices with equal budgets, the figures, and what the cache holds."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    present = [device for device in plan.memory.devices if device.total or device.device != "ram"]
    groups: dict[str, DeviceMemory] = {}  # "gpu0-7" -> the budget of each; RAM is never grouped with a GPU
    for _, members in itertools.groupby(
        present, key=lambda device: (device.device.startswith("gpu"), device.total, part_bytes(device), device.weights)
    ):
        first, *rest = members
        groups[f"{first.device}-{rest[-1].device.removeprefix('gpu')}" if rest else first.device] = first
    bars = Table.grid(padding=(0, 1), expand=True)
    bars.add_column(no_wrap=True)
    bars.add_column(ratio=1)
    bars.add_column(no_wrap=True, justify="right")
    for name, device in groups.items():
        bars.add_row(name, MemoryBar(device), format_gib(device.total))
    figures = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    figures.add_column("")
    figures.add_column("GiB")
    for name in groups:
        figures.add_column(name, justify="right")
    for index, (part, letter, colour, _) in enumerate(PARTS):
        sizes = [part_bytes(device)[index] for device in groups.values()]
        if any(sizes):
            cells = [f"{size / 2**30:,.2f}" if size else "-" for size in sizes]
            figures.add_row(Text(letter, style=f"black on {colour}"), part, *cells)
    tokens, context = plan.memory.kv_tokens, plan.recipe.context
    requests = tokens / max(context, 1)
    cache = Text("\ncache ").append(f"{format_count(tokens)} tokens", style="bold")
    cache.append(f" = {requests:,.1f} requests of {format_count(context)}")
    if requests >= 1 and context > 8192 and plan.recipe.hybrid is None:
        cache.append(f", or {format_count(tokens // 8192)} of 8,192")
    cache.append(f"; {plan.memory.kv_bytes_per_token:,} bytes a token")
    return Group(bars, Padding(figures, (1, 0, 0, 2)), cache)


def forecast_part(plan: Plan) -> "RenderableType":
    """Return the decode speed by context and concurrency with its range, and the time to read a prompt."""
    from rich.console import Group
    from rich.text import Text

    streams = sorted({row.concurrency for row in plan.forecast})
    by_context: dict[int, dict[int, Forecast]] = {}
    for row in sorted(plan.forecast, key=lambda row: row.context):
        by_context.setdefault(row.context, {})[row.concurrency] = row
    lines = []
    for context, cells in by_context.items():
        first = next(iter(cells.values()))
        rates = (_bare_rate(cells[number].decode_tok_s) if number in cells else "-" for number in streams)
        prompt = (format_seconds(first.ttft_s), format_count(first.prefill_tok_s))
        lines.append((format_count(context), *rates, *prompt))
    heads = [f"{number} stream" if number == 1 else str(number) for number in streams]
    table = make_table(("context", *heads, "prompt read in", "at tok/s"), lines)
    largest = max(plan.forecast, key=lambda row: row.decode_tok_s)  # rates are rounded: its ratios are the most exact
    low, high = (edge / largest.decode_tok_s - 1 for edge in (largest.low_tok_s, largest.high_tok_s))
    expect = f"expect {low:+.0%} to {high:+.0%}"
    basis = f"{plan.measured}; {expect}" if plan.measured else f"{expect} ({plan.basis})"
    return Group(table, Text(f"decode tok/s of all streams; {basis}", style="dim"))


def _bare_rate(rate: float) -> str:
    return format_tok_s(rate).removesuffix(" tok/s")


def alternatives_part(plan: Plan) -> "RenderableType":
    """Return this plan's throughput, and the alternatives with what they would change."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("instead", ratio=3)
    table.add_column("answers", justify="right", no_wrap=True)
    table.add_column("cache", justify="right", no_wrap=True)
    table.add_column("why not", ratio=4)
    rows = [("(this plan)", plan.answer_tok_s, plan.memory.kv_tokens, "")]
    rows += [(other.title, other.answer_tok_s, other.kv_tokens, other.loses) for other in plan.alternatives]
    for title, answers, cache, loses in rows:
        table.add_row(Text(title), _bare_rate(answers), format_count(cache), Text(loses))
    prompt, answer = map(format_count, comparison_request(plan.recipe.context))
    note = f"answers: output tok/s, {prompt} in / {answer} out, as many requests as the goal needs and the cache holds"
    return Group(table, Text(note, style="dim"))


def next_part(plan: Plan, saved: Path | None) -> "RenderableType":
    """Return the commands to type next, and what they run; `up` needs --hosts for several nodes."""
    from rich.text import Text

    deployment, file = deploy(plan.recipe), str(saved or "recipe.toml")
    lines = [] if saved else [f"save it: moebox plan … -o {file}"]
    several = plan.recipe.parallel.nodes > 1
    if not (several and deployment.engine.worker_programs):
        lines.append(f"moebox render {shlex.quote(file)} --as script")
    lines.append(f"moebox up {shlex.quote(file)}{' --hosts hosts.txt' if several else ''}")
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, home=str(Path.home()))
    table = make_grid(("$" if line.startswith("moebox") else "-", Text(line)) for line in lines)
    text = f"which runs: {engines.shell_text(launch, argv)}"
    try:
        engines.require_weights_file(deployment)
    except BadInput as problem:
        text = f"which refuses: {problem.message}; {problem.hint}"
    table.add_row("", Text(text, style="dim", overflow="fold"))
    return table


def arithmetic_page(plan: Plan, model: Model) -> "RenderableType":
    """Return `--why`: every line with its formula, value and source; then every flag with its reason."""
    from rich.console import Group
    from rich.text import Text

    rows, last = [], ""
    for line in plan.why:
        text = Text(f"{line.formula} = " if line.formula else "").append(value_text(line), style="bold")
        if line.source and line.source != last:
            text.append(f"\n{line.source}", style="dim")
        last = line.source
        rows.append((Text(line.what), text))
    deployment = deploy(plan.recipe)
    words = engines.load_engine(plan.recipe.engine).arguments(deployment)
    flags = [
        (Text(" ".join(word), overflow="fold"), Text(flag_reason(deployment, word), style="dim")) for word in words
    ]
    arithmetic = (section_title("arithmetic"), make_grid(rows, gap=2), Text())
    return Group(plan_title(plan, model), Text(), *arithmetic, section_title("flags"), make_grid(flags, gap=2))


def value_text(line: ArithmeticLine) -> str:
    """Return a value with its unit, exact enough for a calculator."""
    value, unit = line.value, line.unit
    if unit == "B":
        return f"{value:,.0f} B ({format_gib(value)})" if abs(value) >= 2**20 else f"{value:,.0f} B"
    if unit == "s":
        return f"{value * 1e3:.3f} ms"
    if unit == "B/s":
        return format_rate(value)
    whole = float(value).is_integer() and abs(value) >= 1
    return f"{value:,.0f} {unit}".strip() if whole else f"{value:,.4g} {unit}".strip()
