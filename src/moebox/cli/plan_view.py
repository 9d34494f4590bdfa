"""A plan in the terminal: the answer on one screen, the memory, the arithmetic, and the page with everything."""

import itertools
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moebox import engines
from moebox.assess.assessment import Assessment, AssessmentCell, Tone
from moebox.checkpoint import deploy
from moebox.cli.display import CELL_INDENT, TONE_MARKS, arrange_speeds, make_grid, make_table
from moebox.cli.output import Part, stdout_console
from moebox.core.catalogue import find_divergence, known_divergences
from moebox.core.model import Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Plan
from moebox.core.registry import engine_display_name
from moebox.engines.reasons import flag_reason
from moebox.errors import BadInput, ExternalError
from moebox.planner.rate import USUAL_CONTEXT, comparison_request
from moebox.units import format_count, format_gib, format_range, format_rate, format_seconds, format_tok_s, plural

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
SEVERITY_TONES: dict[str, Tone] = {"fatal": "bad", "warning": "warn", "note": "quiet"}
SHOWN_WARNINGS = 3  # the answer must fit a terminal of 24 lines
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


def answer(plan: Plan, model: Model, steps: NextSteps) -> Assessment:
    """Return what the user asked for, in at most 24 lines of 80 columns; notes have one line each, warnings two."""
    checkpoint = deploy(plan.recipe).checkpoint
    title = "".join(text if isinstance(text, str) else text[0] for text in plan_title(plan, model))
    cells = [AssessmentCell(name="chosen", text=title), fit_cell(plan), speed_cell(plan)]
    if known := find_divergence(checkpoint):
        cells.append(AssessmentCell(name="quality", text=f"{checkpoint.quant}: {known.summary(checkpoint)}"))
    trial = "" if plan.is_reported else "`moebox rehearse` tries the recipe without its weights"
    cells.append(AssessmentCell(name="starts", text=plan.starts, detail=trial))
    order = list(SEVERITY_TONES)
    warnings = sorted(plan.warnings, key=lambda warning: order.index(warning.severity))
    for name, warning in zip(("notes", *[""] * (SHOWN_WARNINGS - 1)), warnings, strict=False):
        room = max(stdout_console().width - CELL_INDENT, 20) * {"note": 1}.get(warning.severity, 2) - 4
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
    weights, other = fullest.weights_total + fullest.draft, fullest.activations + fullest.overhead
    parts = {"weights": weights, "cache": fullest.kv, "other": other, "free": max(0, fullest.free)}
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


def whole_page(plan: Plan, model: Model, steps: NextSteps) -> Iterator[Part]:
    """Yield `--all`: reasons, memory, forecast, alternatives, what was rejected, warnings, commands."""
    sections: dict[str, list[Part]] = {
        "why this one": [make_grid(("-", line) for line in plan.reasons)],
        "memory": memory_part(plan),
        "forecast": forecast_part(plan),
        "alternatives" if plan.alternatives else "throughput": alternatives_part(plan),
        "quality of formats": quality_part(plan),
    }
    if refused := list(plan.refused.items())[:4]:
        sections["rejected"] = [make_grid(("-", [(name, "bold"), f": {reason}"]) for name, reason in refused)]
    sections |= {"notes": [warnings_part(plan)]} if plan.warnings else {}
    sections["next"] = [next_part(plan, steps)]
    yield plan_title(plan, model)
    for name, parts in sections.items():
        yield from ("", (name, HEADING), *parts)


def warnings_part(plan: Plan) -> Part:
    rows = []
    for warning in plan.warnings:
        remedy = f"\n→ {warning.remedy}" if warning.remedy else ""
        source = f"\n  {warning.source}" if warning.source else ""
        text: Part = [warning.text, (remedy, "green"), (source, "dim")]
        rows.append((TONE_MARKS[SEVERITY_TONES[warning.severity]], text))
    return make_grid(rows)


def plan_title(plan: Plan, model: Model) -> list[str | tuple[str, str]]:
    """Return one line: model, engine, layout, box."""
    recipe, parallel = plan.recipe, plan.recipe.parallel
    words = [engine_display_name(recipe.engine)]
    words += ["patched community image"] if recipe.runtime.preset else []
    if recipe.hybrid is None:
        words += parallel.labels
    elif parallel.nodes > 1:
        words.append(f"{parallel.nodes} nodes by RPC")
    words += [f"{recipe.kv} cache", f"context {format_count(recipe.context)}"]
    words += [f"{recipe.speculate.method} draft"] if recipe.speculate else []
    name = f"{model.title} {deploy(recipe).checkpoint.label}"
    return [(name, "bold"), " on ", (plan.box, "bold"), f": {', '.join(words)}"]


def part_bytes(device: DeviceMemory) -> tuple[int, ...]:
    weights = [sum(device.weights.get(name, 0) for name in names) for _, _, _, names in PARTS if names]
    return (*weights, device.draft, device.kv, device.activations, device.overhead, max(0, device.free))


def memory_bar(device: DeviceMemory, width: int) -> list[str | tuple[str, str]]:
    """Return a stacked bar of `width` cells."""
    bar: list[str | tuple[str, str]] = []
    done = shown = 0
    for (_, letter, colour, _), size in zip(PARTS, part_bytes(device), strict=True):
        done += size
        cells = max(0, min(round(width * done / max(device.total, 1)), width) - shown)
        bar.append((letter * cells, f"black on {colour}"))
        shown += cells
    return bar


def memory_part(plan: Plan) -> list[Part]:
    """Return a bar for each group of devices with equal budgets, the figures, and what the cache holds."""
    present = [device for device in plan.memory.devices if device.total or device.device != "ram"]
    groups: dict[str, DeviceMemory] = {}  # "gpu0-7" -> the budget of each; RAM is never grouped with a GPU
    for _, members in itertools.groupby(
        present, key=lambda device: (device.device.startswith("gpu"), device.total, part_bytes(device), device.weights)
    ):
        first, *rest = members
        groups[f"{first.device}-{rest[-1].device.removeprefix('gpu')}" if rest else first.device] = first
    sizes = {name: format_gib(device.total) for name, device in groups.items()}
    longest = max(map(len, sizes.values()))
    width = stdout_console().width - max(map(len, sizes)) - longest - 2
    bars = make_grid((name, memory_bar(groups[name], width), f"{size:>{longest}}") for name, size in sizes.items())
    figures: list[list[Part]] = []
    columns = zip(*map(part_bytes, groups.values()), strict=True)
    for (part, letter, colour, _), shares in zip(PARTS, columns, strict=True):
        if any(shares):
            cells = [f"{size / 2**30:,.2f}" if size else "0" for size in shares]
            figures.append([(letter, f"black on {colour}"), part, *cells])
    table = make_table(("", "GiB", *groups), figures, left_columns=("", "GiB"))
    cache = f"{cache_text(plan)}; {plan.memory.kv_bytes_per_token:,} bytes a token"
    return [bars, "", table, "", cache, *[plan.tiers] * bool(plan.tiers)]


def cache_text(plan: Plan) -> str:
    """Return the tokens that the cache holds, and the requests that they are enough for."""
    memory, context = plan.memory, plan.recipe.context
    requests = memory.pool_tokens(context) / max(context + memory.sequence_tokens, 1)
    equals = " in the engine's log, room for" if memory.counts_steps else " ="
    text = f"cache {format_count(memory.kv_tokens)} tokens{equals} {requests:,.1f} requests of {format_count(context)}"
    if requests >= 1 and context > 8192 and plan.recipe.hybrid is None:
        text += f", or {format_count(memory.held_sequences(8192, context))} of 8,192"
    return text


def forecast_part(plan: Plan) -> list[Part]:
    """Return the decode speed by context and concurrency with its range, and the time to read a prompt."""
    rates = {(row.context, row.concurrency): _bare_rate(row.decode_tok_s) for row in plan.forecast}
    streams, rows = arrange_speeds(rates)
    prompts = {row.context: (format_seconds(row.ttft_s), format_count(row.prefill_tok_s)) for row in plan.forecast}
    lines = [(*row, *prompts[context]) for row, context in zip(rows, sorted(prompts), strict=True)]
    heads = [f"{number} stream" if number == 1 else str(number) for number in streams]
    table = make_table(("context", *heads, "prompt read in", "at tok/s"), lines)
    notes = [f"decode tok/s of all streams; {range_text(plan)}"]
    row = max(plan.forecast, key=lambda row: row.prefill_tok_s or 0.0)  # the most exact, as rates are rounded
    if row.prefill_tok_s:
        low, high = (edge / row.prefill_tok_s - 1 for edge in (row.prefill_low_tok_s, row.prefill_high_tok_s))
        notes.append(f"prompts: expect {low:+.0%} to {high:+.0%}" + f" ({plan.prompt_basis})" * bool(plan.prompt_basis))
    if len(rates) < len(streams) * len(rows):
        notes.append("-: more than the cache or max_seqs holds at once")
    return [table, *((note, "dim") for note in notes)]


def _bare_rate(tok_s: float) -> str:
    return format_tok_s(tok_s).removesuffix(" tok/s")


def range_text(plan: Plan) -> str:
    """Return the range of the forecast in percent, and what it rests on."""
    largest = max(plan.forecast, key=lambda row: row.decode_tok_s)  # rates are rounded: its ratios are the most exact
    rows = plan.forecast if plan.measured else (largest,)  # measured rows have their own ranges
    low = min(row.low_tok_s / row.decode_tok_s - 1 for row in rows)
    high = max(row.high_tok_s / row.decode_tok_s - 1 for row in rows)
    edges = f"{low:+.0%} to {high:+.0%}"
    return f"{plan.measured}; at worst {edges}" if plan.measured else f"expect {edges} ({plan.basis})"


def alternatives_part(plan: Plan) -> list[Part]:
    """Return this plan's throughput, and the alternatives with what they would change."""
    plans = [("(this plan)", plan.answer_tok_s, plan.memory.kv_tokens, "")]
    plans += [(other.title, other.answer_tok_s, other.kv_tokens, other.loses) for other in plan.alternatives]
    rows = [(title, _bare_rate(rate), format_count(tokens), why) for title, rate, tokens, why in plans]
    table = make_table(("instead", "answers", "cache", "why not"), rows, wrapped=("instead", "why not"))
    prompt, answer = map(format_count, comparison_request(plan.recipe.context))
    note = f"answers: output tok/s, {prompt} in / {answer} out, as many requests as the goal needs and the cache holds"
    return [table, (note, "dim")]


def quality_part(plan: Plan) -> list[Part]:
    """Return published distances of the model's formats from the original weights; the others are unknown."""
    checkpoint = deploy(plan.recipe).checkpoint
    parts: list[Part] = []
    if not find_divergence(checkpoint):
        known = "the format that the makers published" if checkpoint.native else "unknown; `moebox quality` measures it"
        parts.append(f"{checkpoint.quant}: {known}")
    lines, notes = [], []
    for row in known_divergences(checkpoint.model):
        kl, ratio = (f"{value:.4f}" if value is not None else "" for value in (row.kl, row.perplexity))
        lines.append((row.format, kl, ratio, row.against))
        notes.append((f"{row.repo}: {row.text}; {row.source} ({row.date})", "dim"))
    parts += [make_table(("format", "KL in nats", "perplexity x", "against"), lines)] if lines else []
    return [*parts, *dict.fromkeys(notes)]


def next_part(plan: Plan, steps: NextSteps) -> Part:
    """Return the commands to type next, and what they run."""
    deployment = deploy(plan.recipe.with_store_here())
    lines = [] if steps.saved else [steps.save]
    if not (plan.recipe.parallel.nodes > 1 and deployment.engine.worker_programs):
        lines.append(f"moebox render {shlex.quote(str(steps.saved or 'recipe.toml'))} --as script")
    lines.append(steps.up_command(plan))
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, home=str(Path.home()))
    refusal = start_refusal(plan, here=steps.here)
    text = f"which refuses: {refusal}" if refusal else f"which runs: {engines.shell_text(launch, argv)}"
    return make_grid([*(("$", line) for line in lines), ("", (text, "dim"))])


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


def arithmetic_page(plan: Plan, model: Model) -> Iterator[Part]:
    """Yield `--why`: every line with its formula, value and source; every flag with its reason; the warnings."""
    rows, last = [], ""
    for line in plan.why:
        text: list[str | tuple[str, str]] = [f"{line.formula} = " * bool(line.formula), (value_text(line), "bold")]
        text += [(f"\n{line.source}", "dim")] if line.source and line.source != last else []
        last = line.source
        rows.append((line.what, text))
    deployment = deploy(plan.recipe)
    words = engines.load_engine(plan.recipe.engine).arguments(deployment)
    flags = make_grid(((" ".join(word), (flag_reason(deployment, word), "dim")) for word in words), gap=2)
    yield from (plan_title(plan, model), "", ("arithmetic", HEADING), make_grid(rows, gap=2))
    yield from ("", ("flags", HEADING), flags)
    if plan.warnings:
        yield from ("", ("notes", HEADING), warnings_part(plan))


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
