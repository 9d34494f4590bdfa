"""A plan as a page for the terminal: bars of memory, forecast, runners-up, warnings, and what to type next."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Component, Model
from moebox.core.plan import DeviceMemory, Forecast, Line, Plan
from moebox.core.registry import titled
from moebox.engines.reasons import flag_reason
from moebox.units import count, gib, rate, seconds, tok_s

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


def page(plan: Plan, model: Model, box: Box, *, saved: Path | None = None) -> RenderableType:
    """The whole plan."""
    parts: list[RenderableType] = [title(plan, model), Text(), section("why this one"), bullets(plan.reasons), Text()]
    parts += [section("memory"), memory(plan), Text()]
    parts += [section("forecast"), forecast(plan.forecast, plan.measured), Text()]
    if plan.alternatives:
        parts += [section("runners-up"), runners(plan), Text()]
    if plan.refused:
        parts += [section("dropped"), dropped(plan.refused), Text()]
    if plan.warnings:
        parts += [section("to know"), cautions(plan), Text()]
    parts += [section("next"), commands(plan, model, saved)]
    return Group(*parts)


def title(plan: Plan, model: Model) -> Text:
    """One line: model, engine, layout, box."""
    recipe, parallel = plan.recipe, plan.recipe.parallel
    words = [titled(recipe.engine)]
    if recipe.runtime.preset:
        words.append("patched community image")
    if recipe.hybrid is None:
        words.append(parallel.text)
        words += [f"DCP{parallel.dcp}"] if parallel.dcp > 1 else []
        words += ["EP"] if parallel.ep else []
    elif parallel.nodes > 1:
        words.append(f"{parallel.nodes} nodes by RPC")
    words += [f"{recipe.kv} cache", f"context {count(recipe.context)}"]
    words += [f"{recipe.speculate.method} draft"] if recipe.speculate else []
    line = Text.assemble((f"{model.title} {deploy(recipe).checkpoint.label}", "bold"), " on ", (plan.box, "bold"))
    return line.append(": " + ", ".join(words))


def section(name: str) -> Text:
    """A heading."""
    return Text(name, style="bold underline")


def bullets(lines: Iterable[str]) -> RenderableType:
    """Sentences with hanging dashes."""
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row("-", Text(line))
    return table


def memory(plan: Plan) -> RenderableType:
    """A bar for every group of devices with the same budget, its figures, and what the cache holds."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    for name, one in groups(plan.memory.devices):
        table.add_row(name, Bar(one), gib(one.total))
    return Group(table, figures(plan), holds(plan))


def groups(devices: tuple[DeviceMemory, ...]) -> list[tuple[str, DeviceMemory]]:
    """Runs of devices with equal budgets as ("gpu0-7", budget); RAM that is not there is left out."""
    runs: list[tuple[str, str, DeviceMemory, tuple[object, ...]]] = []
    for one in devices:
        if one.device == "ram" and not one.total:
            continue
        key = (one.total, *amounts(one), tuple(one.weights.items()))
        if runs and runs[-1][3] == key and one.device.startswith("gpu"):
            runs[-1] = (runs[-1][0], one.device, one, key)
        else:
            runs.append((one.device, one.device, one, key))
    return [(a if a == b else f"{a}-{b.removeprefix('gpu')}", one) for a, b, one, _ in runs]


def amounts(one: DeviceMemory) -> tuple[int, ...]:
    """Bytes of each part of a bar, in the order of PARTS."""
    weights = [sum(one.weights.get(name, 0) for name in names) for _, _, _, names in PARTS if names]
    return (*weights, one.draft, one.kv, one.activations, one.overhead, max(0, one.free))


class Bar:
    """A stacked bar as wide as there is room."""

    def __init__(self, one: DeviceMemory) -> None:
        self.one = one

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        bar, done, shown = Text(no_wrap=True), 0, 0
        for (_, letter, colour, _), size in zip(PARTS, amounts(self.one), strict=True):
            done += size
            edge = round(width * done / max(self.one.total, 1))
            cells = max(0, min(edge, width) - shown)
            bar.append(letter * cells, style=f"black on {colour}")  # letters tell the parts apart without colour
            shown += cells
        yield bar


def figures(plan: Plan) -> RenderableType:
    """The bars in numbers, which is their legend too."""
    shown = groups(plan.memory.devices)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("GiB")
    for name, _ in shown:
        table.add_column(name, justify="right")
    for index, (part, letter, colour, _) in enumerate(PARTS):
        sizes = [amounts(one)[index] for _, one in shown]
        if any(sizes):
            cells = [f"{size / 2**30:,.2f}" if size else "-" for size in sizes]
            table.add_row(Text(letter, style=f"black on {colour}"), part, *cells)
    return Padding(table, (1, 0, 0, 2))


def holds(plan: Plan) -> Text:
    """The cache in tokens and in requests."""
    tokens, context = plan.memory.kv_tokens, plan.recipe.context
    line = Text("\ncache ").append(f"{count(tokens)} tokens", style="bold")
    requests = tokens / max(context, 1)
    line.append(f" = {requests:.1f} requests of {count(context)}")
    if requests >= 1 and context > 8192 and plan.recipe.hybrid is None:
        line.append(f", or {count(tokens // 8192)} of 8,192")
    return line.append(f"; {plan.memory.kv_bytes_per_token:,} bytes a token")


def forecast(rows: tuple[Forecast, ...], measured: str = "") -> RenderableType:
    """Decode by context and concurrency with the band, and the time to read a prompt of that length."""
    streams = sorted({row.concurrency for row in rows})
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("context", justify="right")
    for number in streams:
        table.add_column(f"{number} stream" if number == 1 else str(number), justify="right")
    table.add_column("prompt read in", justify="right")
    table.add_column("at tok/s", justify="right")
    for context in sorted({row.context for row in rows}):
        cells = {row.concurrency: row for row in rows if row.context == context}
        first = next(iter(cells.values()))
        table.add_row(
            count(context),
            *(tok_s(cells[n].decode_tok_s).removesuffix(" tok/s") if n in cells else "-" for n in streams),
            seconds(first.ttft_s),
            count(first.prefill_tok_s),
        )
    one = max(rows, key=lambda row: row.decode_tok_s)  # rates are rounded: the largest has the truest ratio
    low, high = one.low_tok_s / one.decode_tok_s - 1, one.high_tok_s / one.decode_tok_s - 1
    basis = f"expect {low:+.0%} to {high:+.0%} (80% of results on other hosts)"
    if measured:
        basis = f"{measured}; expect {low:+.0%} to {high:+.0%}"
    note = f"decode tok/s of all streams; {basis}"
    return Group(table, Text(note, style="dim"))


def runners(plan: Plan) -> RenderableType:
    """Runners-up and what taking them would change."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("instead", ratio=3)
    table.add_column("answers", justify="right", no_wrap=True)
    table.add_column("cache", justify="right", no_wrap=True)
    table.add_column("why not", ratio=4)
    for one in plan.alternatives:
        table.add_row(
            Text(one.title), tok_s(one.answer_tok_s).removesuffix(" tok/s"), count(one.kv_tokens), Text(one.loses)
        )
    note = "answers: tok/s while requests of 4,096 tokens are read and answered with 1,024, as many as the goal asks"
    return Group(table, Text(note, style="dim"))


def dropped(refused: dict[str, str]) -> RenderableType:
    """What does not start or fit."""
    table = Table.grid(padding=(0, 1))
    for name, reason in list(refused.items())[:4]:
        table.add_row("-", Text.assemble((name, "bold"), f": {reason}"))
    return table


def cautions(plan: Plan) -> RenderableType:
    """Warnings with their remedies."""
    table = Table.grid(padding=(0, 1))
    for one in plan.warnings:
        mark, style = MARKS[one.severity]
        text = Text(one.text)
        if one.remedy:
            text.append(f"\n→ {one.remedy}", style="green")
        if one.source:
            text.append(f"\n  {one.source}", style="dim")
        table.add_row(Text(mark, style=style), text)
    return table


def commands(plan: Plan, model: Model, saved: Path | None) -> RenderableType:
    """What to type next, and what it would run."""
    file = str(saved) if saved else "recipe.toml"
    lines = [] if saved else [f"save it: moebox plan … -o {file}"]
    deployment = deploy(plan.recipe)
    lines += _starting(shlex.quote(file), deployment)
    launch = engines.launch(deployment)
    argv = engines.command(deployment, launch)
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row("$" if line.startswith("moebox") else "-", Text(line))
    table.add_row("", Text(f"which runs: {engines.shown(launch, argv)}", style="dim"))
    return table


def _starting(file: str, deployment: Deployment) -> list[str]:
    """What renders and starts the recipe; over several nodes `up` is told which they are."""
    several = deployment.recipe.parallel.nodes > 1
    rendered = [] if several and deployment.engine.workers else [f"moebox render {file} --as script"]
    return [*rendered, f"moebox up {file} --hosts hosts.txt" if several else f"moebox up {file}"]


def arithmetic(plan: Plan, model: Model) -> RenderableType:
    """`--why`: every line with its formula, its value and its source."""
    table = Table.grid(padding=(0, 2))
    last = ""
    for line in plan.why:
        text = Text(f"{line.formula} = " if line.formula else "").append(value(line), style="bold")
        if line.source and line.source != last:
            text.append(f"\n{line.source}", style="dim")
        last = line.source
        table.add_row(Text(line.what), text)
    return Group(title(plan, model), Text(), section("arithmetic"), table, Text(), section("flags"), flags(plan))


def flags(plan: Plan) -> Table:
    """Every flag of the launch with its reason, as rendered files carry them."""
    deployment = deploy(plan.recipe)
    table = Table.grid(padding=(0, 2))
    for word in engines.rooms.argv(plan.recipe.engine).words(deployment):
        table.add_row(Text(" ".join(word), overflow="fold"), Text(flag_reason(deployment, word), style="dim"))
    return table


def value(line: Line) -> str:
    """A value with its unit, exact enough for a calculator."""
    if line.unit == "B":
        return f"{line.value:,.0f} B ({gib(line.value)})" if abs(line.value) >= 2**20 else f"{line.value:,.0f} B"
    if line.unit == "s":
        return f"{line.value * 1e3:.3f} ms"
    if line.unit == "B/s":
        return rate(line.value)
    number = f"{line.value:,.0f}" if float(line.value).is_integer() and abs(line.value) >= 1 else f"{line.value:,.4g}"
    return f"{number} {line.unit}".strip()
