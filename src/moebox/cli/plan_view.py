"""A plan as a page for the terminal: bars of memory, forecast, runners-up, warnings, and what to type next."""

import itertools
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moebox import engines
from moebox.checkpoint import deploy
from moebox.cli.tables import make_grid, make_table
from moebox.core.deployment import Deployment
from moebox.core.model import Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Forecast, Plan, PlanWarning
from moebox.core.registry import engine_display_name
from moebox.engines.reasons import flag_reason
from moebox.planner.rate import comparison_request
from moebox.units import format_count, format_gib, format_rate, format_seconds, format_tok_s

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
    ("engine, driver, not claimed", "o", "grey70", ()),
    ("free", "·", "grey50", ()),
)
MARKS = {"fatal": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}


def plan_page(plan: Plan, model: Model, *, saved: Path | None = None) -> RenderableType:
    """The whole plan."""
    parts: list[RenderableType] = [
        plan_title(plan, model),
        Text(),
        section_title("why this one"),
        bullet_list(plan.reasons),
        Text(),
    ]
    parts += [section_title("memory"), memory_bars(plan), Text()]
    parts += [section_title("forecast"), forecast_table(plan.forecast, plan.measured, plan.basis), Text()]
    parts += [section_title("runners-up" if plan.alternatives else "answers"), alternatives_table(plan), Text()]
    if plan.refused:
        parts += [section_title("dropped"), rejected_list(plan.refused), Text()]
    if plan.warnings:
        parts += [section_title("to know"), warning_list(plan), Text()]
    parts += [section_title("next"), next_commands(plan, saved)]
    return Group(*parts)


def plan_title(plan: Plan, model: Model) -> Text:
    """One line: model, engine, layout, box."""
    recipe, parallel = plan.recipe, plan.recipe.parallel
    words = [engine_display_name(recipe.engine)]
    if recipe.runtime.preset:
        words.append("patched community image")
    if recipe.hybrid is None:
        words += parallel.labels
    elif parallel.nodes > 1:
        words.append(f"{parallel.nodes} nodes by RPC")
    words += [f"{recipe.kv} cache", f"context {format_count(recipe.context)}"]
    words += [f"{recipe.speculate.method} draft"] if recipe.speculate else []
    line = Text.assemble((f"{model.title} {deploy(recipe).checkpoint.label}", "bold"), " on ", (plan.box, "bold"))
    return line.append(": " + ", ".join(words))


def section_title(name: str) -> Text:
    """A heading."""
    return Text(name, style="bold underline")


def bullet_list(lines: Iterable[str]) -> RenderableType:
    """Sentences with hanging dashes."""
    return make_grid(("-", Text(line)) for line in lines)


def memory_bars(plan: Plan) -> RenderableType:
    """A bar for every group of devices with the same budget, its figures, and what the cache holds."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    for name, device in group_devices(plan.memory.devices):
        table.add_row(name, MemoryBar(device), format_gib(device.total))
    return Group(table, memory_table(plan), cache_line(plan))


def group_devices(devices: tuple[DeviceMemory, ...]) -> list[tuple[str, DeviceMemory]]:
    """Devices next to each other with equal budgets as ("gpu0-7", budget); RAM that is not there is left out."""
    there = [device for device in devices if device.total or device.device != "ram"]
    alike = [list(members) for _, members in itertools.groupby(there, key=_budget)]
    return [(_named(members[0].device, members[-1].device), members[0]) for members in alike]


def _budget(device: DeviceMemory) -> tuple[object, ...]:
    """What devices of one group share; RAM never stands with a GPU."""
    return device.device.startswith("gpu"), device.total, part_bytes(device), tuple(device.weights.items())


def _named(first: str, last: str) -> str:
    """ "gpu0-7", or the one name."""
    return first if first == last else f"{first}-{last.removeprefix('gpu')}"


def part_bytes(device: DeviceMemory) -> tuple[int, ...]:
    """Bytes of each part of a bar, in the order of PARTS."""
    weights = [sum(device.weights.get(name, 0) for name in names) for _, _, _, names in PARTS if names]
    return (*weights, device.draft, device.kv, device.activations, device.overhead, max(0, device.free))


class MemoryBar:
    """A stacked bar as wide as there is room."""

    def __init__(self, device: DeviceMemory) -> None:
        self.device = device

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        bar, done, shown = Text(no_wrap=True), 0, 0
        for (_, letter, colour, _), size in zip(PARTS, part_bytes(self.device), strict=True):
            done += size
            edge = round(width * done / max(self.device.total, 1))
            cells = max(0, min(edge, width) - shown)
            bar.append(letter * cells, style=f"black on {colour}")  # letters tell the parts apart without colour
            shown += cells
        yield bar


def memory_table(plan: Plan) -> RenderableType:
    """The bars in numbers, which is their legend too."""
    shown = group_devices(plan.memory.devices)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("GiB")
    for name, _ in shown:
        table.add_column(name, justify="right")
    for index, (part, letter, colour, _) in enumerate(PARTS):
        sizes = [part_bytes(device)[index] for _, device in shown]
        if any(sizes):
            cells = [f"{size / 2**30:,.2f}" if size else "-" for size in sizes]
            table.add_row(Text(letter, style=f"black on {colour}"), part, *cells)
    return Padding(table, (1, 0, 0, 2))


def cache_line(plan: Plan) -> Text:
    """The cache in tokens and in requests."""
    tokens, context = plan.memory.kv_tokens, plan.recipe.context
    line = Text("\ncache ").append(f"{format_count(tokens)} tokens", style="bold")
    requests = tokens / max(context, 1)
    line.append(f" = {requests:,.1f} requests of {format_count(context)}")
    if requests >= 1 and context > 8192 and plan.recipe.hybrid is None:
        line.append(f", or {format_count(tokens // 8192)} of 8,192")
    return line.append(f"; {plan.memory.kv_bytes_per_token:,} bytes a token")


def forecast_table(rows: tuple[Forecast, ...], measured: str = "", basis: str = "") -> RenderableType:
    """Decode by context and concurrency with the band, and the time to read a prompt of that length."""
    streams = sorted({row.concurrency for row in rows})
    heads = [f"{number} stream" if number == 1 else str(number) for number in streams]
    by_context: dict[int, dict[int, Forecast]] = {}
    for row in sorted(rows, key=lambda row: row.context):
        by_context.setdefault(row.context, {})[row.concurrency] = row
    lines = (_forecast_line(cells, streams) for cells in by_context.values())
    table = make_table(("context", *heads, "prompt read in", "at tok/s"), lines)
    return Group(table, Text(f"decode tok/s of all streams; {_basis(rows, measured, basis)}", style="dim"))


def _forecast_line(cells: dict[int, Forecast], streams: list[int]) -> tuple[str, ...]:
    """One context: a rate for each number of streams, and how long a prompt of that length takes."""
    first = next(iter(cells.values()))
    rates = (_decode(cells.get(number)) for number in streams)
    return format_count(first.context), *rates, format_seconds(first.ttft_s), format_count(first.prefill_tok_s)


def _decode(row: Forecast | None) -> str:
    return format_tok_s(row.decode_tok_s).removesuffix(" tok/s") if row else "-"


def _basis(rows: tuple[Forecast, ...], measured: str, basis: str) -> str:
    """How far off it may be, and what it rests on."""
    largest = max(rows, key=lambda row: row.decode_tok_s)  # rates are rounded: the largest has the truest ratio
    low, high = (edge / largest.decode_tok_s - 1 for edge in (largest.low_tok_s, largest.high_tok_s))
    band = f"expect {low:+.0%} to {high:+.0%}"
    return f"{measured}; {band}" if measured else f"{band} ({basis})"


def alternatives_table(plan: Plan) -> RenderableType:
    """This plan by the goal's yardstick, then runners-up and what taking them would change."""
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
    note = f"answers: tok/s while requests of {prompt} tokens are read and answered with {answer}, as many as the goal "
    return Group(table, Text(note + "asks for and the cache holds", style="dim"))


def rejected_list(refused: dict[str, str]) -> RenderableType:
    """What does not start or fit."""
    shown = list(refused.items())[:4]
    return make_grid(("-", Text.assemble((name, "bold"), f": {reason}")) for name, reason in shown)


def warning_list(plan: Plan) -> RenderableType:
    """Warnings with their remedies."""
    return make_grid(map(_warning_row, plan.warnings))


def _warning_row(warning: PlanWarning) -> tuple[Text, Text]:
    mark, style = MARKS[warning.severity]
    text = Text(warning.text)
    if warning.remedy:
        text.append(f"\n→ {warning.remedy}", style="green")
    if warning.source:
        text.append(f"\n  {warning.source}", style="dim")
    return Text(mark, style=style), text


def next_commands(plan: Plan, saved: Path | None) -> RenderableType:
    """What to type next, and what it would run."""
    file = str(saved) if saved else "recipe.toml"
    lines = [] if saved else [f"save it: moebox plan … -o {file}"]
    deployment = deploy(plan.recipe)
    lines += _starting(shlex.quote(file), deployment)
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, home=str(Path.home()))
    table = make_grid(("$" if line.startswith("moebox") else "-", Text(line)) for line in lines)
    table.add_row("", Text(f"which runs: {engines.shell_text(launch, argv)}", style="dim", overflow="fold"))
    return table


def _starting(file: str, deployment: Deployment) -> list[str]:
    """What renders and starts the recipe; over several nodes `up` is told which they are."""
    several = deployment.recipe.parallel.nodes > 1
    rendered = [] if several and deployment.engine.worker_programs else [f"moebox render {file} --as script"]
    return [*rendered, f"moebox up {file} --hosts hosts.txt" if several else f"moebox up {file}"]


def arithmetic_page(plan: Plan, model: Model) -> RenderableType:
    """`--why`: every line with its formula, its value and its source."""
    table = Table.grid(padding=(0, 2))
    last = ""
    for line in plan.why:
        text = Text(f"{line.formula} = " if line.formula else "").append(value_text(line), style="bold")
        if line.source and line.source != last:
            text.append(f"\n{line.source}", style="dim")
        last = line.source
        table.add_row(Text(line.what), text)
    return Group(
        plan_title(plan, model),
        Text(),
        section_title("arithmetic"),
        table,
        Text(),
        section_title("flags"),
        flag_list(plan),
    )


def flag_list(plan: Plan) -> Table:
    """Every flag of the launch with its reason, as rendered files carry them."""
    deployment = deploy(plan.recipe)
    words = engines.load_engine(plan.recipe.engine).arguments(deployment)
    flags = ((Text(" ".join(word), overflow="fold"), flag_reason(deployment, word)) for word in words)
    return make_grid(((flag, Text(reason, style="dim")) for flag, reason in flags), gap=2)


def value_text(line: ArithmeticLine) -> str:
    """A value with its unit, exact enough for a calculator."""
    return VALUES.get(line.unit, _number)(line)


def _bytes(line: ArithmeticLine) -> str:
    exact = f"{line.value:,.0f} B"
    return f"{exact} ({format_gib(line.value)})" if abs(line.value) >= 2**20 else exact


def _number(line: ArithmeticLine) -> str:
    whole = float(line.value).is_integer() and abs(line.value) >= 1
    return f"{line.value:,.0f} {line.unit}".strip() if whole else f"{line.value:,.4g} {line.unit}".strip()


VALUES: dict[str, Callable[[ArithmeticLine], str]] = {  # by unit
    "B": _bytes,
    "s": lambda line: f"{line.value * 1e3:.3f} ms",
    "B/s": lambda line: format_rate(line.value),
}
