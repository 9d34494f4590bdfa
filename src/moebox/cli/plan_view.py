"""A plan in the terminal: the answer on one screen, the memory, the arithmetic, and the page with everything."""

import itertools
import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moebox import engines
from moebox.assess.assessment import Assessment, AssessmentCell, Tone
from moebox.checkpoint import deploy
from moebox.cli.display import CELL_INDENT, make_grid, make_table
from moebox.cli.plan_quality import quality_part
from moebox.core.catalogue import find_divergence
from moebox.core.model import Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Forecast, Plan
from moebox.core.registry import engine_display_name
from moebox.engines.kv_store import expand_store_folder
from moebox.engines.reasons import flag_reason
from moebox.errors import BadInput, ExternalError
from moebox.planner.rate import comparison_request
from moebox.units import format_count, format_gib, format_range, format_rate, format_seconds, format_tok_s, plural

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

# Parts of a bar: name, letter (so that colour carries no meaning), colour, and the components of weights it sums.
PARTS: tuple[tuple[str, str, str, tuple[Component, ...]], ...] = (
    ("routed experts", "E", "dodger_blue2", ("routed_experts",)),
    ("shared experts and dense layers", "S", "deep_sky_blue1", ("shared_experts", "dense_ffn")),
    ("attention", "A", "cyan", ("attention",)),
    ("embedding and head", "H", "turquoise2", ("embed", "ngram", "lm_head")),
    ("router, norms, vision", "R", "steel_blue1", ("router", "norms", "vision", "mtp")),
    ("draft", "D", "magenta", ()),
    ("KV cache", "K", "green3", ()),
    ("activations, graphs, workspace", "a", "yellow", ()),
    ("engine, left to the driver", "o", "grey70", ()),
    ("free", "·", "grey50", ()),
)
HEADING = "bold underline"
MARKS = {"fatal": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}
SEVERITY_TONES: dict[str, Tone] = {"fatal": "bad", "warning": "warn", "note": "quiet"}
SHOWN_WARNINGS = 3  # the answer must fit a terminal of 24 lines
USUAL_CONTEXT = 8192  # tokens; the answer gives the speed near it
LITTLE_RAM = 0.02  # of all RAM: a plan that leaves less beside system and server is marked


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """What the user can do after a plan."""

    save: str  # the command that makes the same plan and saves it as recipe.toml
    saved: Path | None = None  # where the recipe was saved
    here: bool = False  # the plan is for this machine

    def up_command(self, plan: Plan) -> str:
        """Return the command that starts the engine; several nodes need --hosts."""
        hosts = " --hosts hosts.txt" if plan.recipe.parallel.nodes > 1 else ""
        return f"moebox up {shlex.quote(str(self.saved or 'recipe.toml'))}{hosts}"


def answer(plan: Plan, model: Model, steps: NextSteps, *, width: int) -> Assessment:
    """Return what the user asked for, in at most 24 lines of 80 columns; notes have one line each, warnings two."""
    cells = [AssessmentCell(name="chosen", text=plan_title(plan, model).plain), fit_cell(plan), speed_cell(plan)]
    checkpoint = deploy(plan.recipe).checkpoint
    if known := find_divergence(checkpoint):
        cells.append(AssessmentCell(name="quality", text=f"{checkpoint.quant}: {known.summary(checkpoint)}"))
    trial = "" if plan.is_reported else "`moebox rehearse` tries the recipe without its weights"
    cells.append(AssessmentCell(name="starts", text=plan.starts, detail=trial))
    order = list(SEVERITY_TONES)
    warnings = sorted(plan.warnings, key=lambda warning: order.index(warning.severity))
    for name, warning in zip(("notes", *[""] * (SHOWN_WARNINGS - 1)), warnings, strict=False):
        room = max(width - CELL_INDENT, 20) * {"note": 1}.get(warning.severity, 2) - 4
        text = f"{warning.text} → {warning.remedy}".removesuffix(" → ")
        text = textwrap.shorten(text if len(text) <= room else warning.text, room, placeholder=" …")
        cells.append(AssessmentCell(name=name, text=text, tone=SEVERITY_TONES[warning.severity]))
    if warnings:
        cells.append(AssessmentCell(name="", text=f"{plural(len(warnings), 'note')} in full: --why"))
    up, refusal = steps.up_command(plan), start_refusal(plan, here=steps.here)
    fetch = re.search("`(moebox fetch .+?)`", refusal)
    first = () if steps.saved else (steps.save,)
    text, detail = up if steps.saved else steps.save, f"up refuses it: {refusal}"
    if fetch or (steps.here and not refusal):
        text, detail = " && ".join((*first, *(fetch.groups() if fetch else ()), up)), refusal.partition("; ")[0]
    elif not refusal:
        detail = "on the box of the plan" if steps.saved else f"then, on that box: {up}"
    tone: Tone = "warn" if refusal else ""
    cells.append(AssessmentCell(name="next", text=text, command=True, tone=tone, detail=detail))
    rest = "--memory: every device; --why: arithmetic; --all: everything"
    return Assessment(cells=(*cells, AssessmentCell(name="more", text=rest)))


def fit_cell(plan: Plan) -> AssessmentCell:
    """Return one line of memory, of the fullest GPU or of the RAM; then what the cache holds."""
    present = [device for device in plan.memory.devices if device.device.startswith("gpu")]
    gpus = [device for device in present if device.weights_total] or present
    cache, in_ram = cache_text(plan), ""
    tone: Tone = "good"
    for ram in (device for device in plan.memory.devices if device.device == "ram" and device.weights_total):
        used, kept = (ram.total - ram.free - ram.overhead) / 2**30, ram.overhead / 2**30
        in_ram = f"{used:,.0f} of {ram.total / 2**30:,.0f} GiB of RAM, {kept:,.0f} for system and server"
        if not ram.free:  # as much as is needed: the amount is unknown
            in_ram = f"needs {ram.total / 2**30:,.0f} GiB of RAM"
        elif ram.free < LITTLE_RAM * ram.total:
            in_ram, tone = f"{in_ram}: only {ram.free / 2**30:,.1f} left", "warn"
    if not gpus:
        return AssessmentCell(name="fits", text=in_ram, tone=tone, detail=cache)
    fullest = max(gpus, key=lambda device: (device.total - device.free, device.weights_total))
    parts = {
        "weights": fullest.weights_total + fullest.draft,
        "cache": fullest.kv,
        "other": fullest.activations + fullest.overhead,
        "free": max(0, fullest.free),
    }
    sizes = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items())
    equal = len({(device.total, part_bytes(device)) for device in gpus}) == 1
    where = f"{'each' if equal else 'fullest'} of {len(gpus)} GPUs" if len(gpus) > 1 else "the GPU"
    if idle := len(present) - len(gpus):
        where += f"; {idle} of {len(present)} GPUs stay free"
    detail = "; ".join(filter(None, (in_ram, cache)))
    return AssessmentCell(name="fits", text=f"{sizes} GiB: {where}", tone=tone, detail=detail)


def speed_cell(plan: Plan) -> AssessmentCell:
    """Return the decode speed near the usual context with its ranges, at no more than three loads."""
    context = min((row.context for row in plan.forecast), key=lambda length: abs(length - USUAL_CONTEXT))
    rows = sorted((row for row in plan.forecast if row.context == context), key=lambda row: row.concurrency)
    loads = []
    for row in rows if len(rows) < 4 else (rows[0], *rows[-2:]):
        rate = f"{format_tok_s(row.decode_tok_s)} ({format_range(row.low_tok_s, row.high_tok_s)})"
        loads.append(f"{rate} with {plural(row.concurrency, 'stream')}")
    edges = [context / max(rate, 1e-9) for rate in (rows[0].prefill_high_tok_s, rows[0].prefill_low_tok_s)]
    reading = f"{format_seconds(rows[0].ttft_s)} ({' to '.join(map(format_seconds, edges))})"
    prompt = f"at {format_count(context)} tokens of context, which are read in about {reading}"
    return AssessmentCell(name="speed", text=", ".join(loads), detail=f"{prompt}; {plan.measured or range_text(plan)}")


def whole_page(plan: Plan, model: Model, steps: NextSteps) -> "RenderableType":
    """Return `--all`: reasons, memory, forecast, alternatives, what was rejected, warnings, commands."""
    from rich.console import Group
    from rich.text import Text

    sections: dict[str, RenderableType] = {
        "why this one": make_grid(("-", Text(line)) for line in plan.reasons),
        "memory": memory_part(plan),
        "forecast": forecast_part(plan),
        "alternatives" if plan.alternatives else "throughput": alternatives_part(plan),
        "quality of formats": quality_part(plan),
    }
    if refused := list(plan.refused.items())[:4]:
        rows = (("-", Text.assemble((name, "bold"), f": {reason}")) for name, reason in refused)
        sections["rejected"] = make_grid(rows)
    if plan.warnings:
        sections["notes"] = warnings_part(plan)
    sections["next"] = next_part(plan, steps)
    parts: list[RenderableType] = [plan_title(plan, model)]
    for name, part in sections.items():
        parts += [Text(), Text(name, style=HEADING), part]
    return Group(*parts)


def warnings_part(plan: Plan) -> "Table":
    from rich.text import Text

    rows = []
    for warning in plan.warnings:
        mark, style = MARKS[warning.severity]
        text = Text(warning.text)
        if warning.remedy:
            text.append(f"\n→ {warning.remedy}", style="green")
        if warning.source:
            text.append(f"\n  {warning.source}", style="dim")
        rows.append((Text(mark, style=style), text))
    return make_grid(rows)


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


def part_bytes(device: DeviceMemory) -> tuple[int, ...]:
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
    figures = Table("", "GiB", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in groups:
        figures.add_column(name, justify="right")
    for index, (part, letter, colour, _) in enumerate(PARTS):
        sizes = [part_bytes(device)[index] for device in groups.values()]
        if any(sizes):
            cells = [f"{size / 2**30:,.2f}" if size else "0" for size in sizes]
            figures.add_row(Text(letter, style=f"black on {colour}"), part, *cells)
    cache = Text(f"\n{cache_text(plan)}; {plan.memory.kv_bytes_per_token:,} bytes a token")
    cache.append(f"\n{plan.tiers}" if plan.tiers else "")
    return Group(bars, Padding(figures, (1, 0, 0, 2)), cache)


def cache_text(plan: Plan) -> str:
    """Return the tokens that the cache holds, and the requests that they are enough for."""
    memory, context = plan.memory, plan.recipe.context
    requests = memory.pool_tokens(context) / max(context + memory.sequence_tokens, 1)
    equals = " in the engine's log, room for" if memory.counts_steps else " ="
    text = f"cache {format_count(memory.kv_tokens)} tokens{equals} {requests:,.1f} requests of {format_count(context)}"
    if requests >= 1 and context > 8192 and plan.recipe.hybrid is None:
        text += f", or {format_count(memory.held_sequences(8192, context))} of 8,192"
    return text


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
        rates = (
            format_tok_s(cells[number].decode_tok_s).removesuffix(" tok/s") if number in cells else "-"
            for number in streams
        )
        prompt = (format_seconds(first.ttft_s), format_count(first.prefill_tok_s))
        lines.append((format_count(context), *rates, *prompt))
    heads = [f"{number} stream" if number == 1 else str(number) for number in streams]
    table = make_table(("context", *heads, "prompt read in", "at tok/s"), lines)
    notes = [f"decode tok/s of all streams; {range_text(plan)}"]
    row = plan.forecast[0]
    if row.prefill_tok_s:
        low, high = (edge / row.prefill_tok_s - 1 for edge in (row.prefill_low_tok_s, row.prefill_high_tok_s))
        notes.append(f"prompts: expect {low:+.0%} to {high:+.0%}" + f" ({plan.prompt_basis})" * bool(plan.prompt_basis))
    if any(len(cells) < len(streams) for cells in by_context.values()):
        notes.append("-: more than the cache or max_seqs holds at once")
    return Group(table, *(Text(note, style="dim") for note in notes))


def range_text(plan: Plan) -> str:
    """Return the range of the forecast in percent, and what it rests on."""
    if plan.measured:  # rows have their own ranges
        low = min(row.low_tok_s / row.decode_tok_s - 1 for row in plan.forecast)
        high = max(row.high_tok_s / row.decode_tok_s - 1 for row in plan.forecast)
        return f"{plan.measured}; at worst {low:+.0%} to {high:+.0%}"
    largest = max(plan.forecast, key=lambda row: row.decode_tok_s)  # rates are rounded: its ratios are the most exact
    low, high = (edge / largest.decode_tok_s - 1 for edge in (largest.low_tok_s, largest.high_tok_s))
    return f"expect {low:+.0%} to {high:+.0%} ({plan.basis})"


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
        table.add_row(Text(title), format_tok_s(answers).removesuffix(" tok/s"), format_count(cache), Text(loses))
    prompt, answer = map(format_count, comparison_request(plan.recipe.context))
    note = f"answers: output tok/s, {prompt} in / {answer} out, as many requests as the goal needs and the cache holds"
    return Group(table, Text(note, style="dim"))


def next_part(plan: Plan, steps: NextSteps) -> "RenderableType":
    """Return the commands to type next, and what they run."""
    from rich.text import Text

    deployment = deploy(expand_store_folder(plan.recipe))
    lines = [] if steps.saved else [steps.save]
    if not (plan.recipe.parallel.nodes > 1 and deployment.engine.worker_programs):
        lines.append(f"moebox render {shlex.quote(str(steps.saved or 'recipe.toml'))} --as script")
    lines.append(steps.up_command(plan))
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, home=str(Path.home()))
    table = make_grid(("$", Text(line)) for line in lines)
    refusal = start_refusal(plan, here=steps.here)
    text = f"which refuses: {refusal}" if refusal else f"which runs: {engines.shell_text(launch, argv)}"
    table.add_row("", Text(text, style="dim", overflow="fold"))
    return table


def start_refusal(plan: Plan, *, here: bool) -> str:
    """Return why `up` would refuse the recipe: no weights, or no engine on this machine. "" if it would not."""
    deployment = deploy(plan.recipe)
    checkpoint, program = deployment.known_checkpoint, deployment.engine.program
    if plan.recipe.runtime.kind == "embedded":
        is_startable = checkpoint is None or bool(checkpoint.path)
    else:
        is_startable = bool(program and shutil.which(program[0]))
    try:
        engines.require_weights_file(deployment)
        if here and not is_startable:
            from moebox.serve.order import require_engine

            require_engine(deployment)
    except (BadInput, ExternalError) as problem:
        return f"{problem.message}; {problem.hint}"
    return ""


def arithmetic_page(plan: Plan, model: Model) -> "RenderableType":
    """Return `--why`: every line with its formula, value and source; every flag with its reason; the warnings."""
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
    arithmetic = (Text("arithmetic", style=HEADING), make_grid(rows, gap=2), Text())
    parts: list[RenderableType] = [plan_title(plan, model), Text()]
    parts += [*arithmetic, Text("flags", style=HEADING), make_grid(flags, gap=2)]
    parts += [Text(), Text("notes", style=HEADING), warnings_part(plan)] if plan.warnings else []
    return Group(*parts)


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
