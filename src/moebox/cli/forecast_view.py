"""A forecast as tables for the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moebox.cli.subject import ForecastTarget
from moebox.cli.tables import make_table
from moebox.core.registry import engine_display_name
from moebox.planner.forecast import ForecastRow
from moebox.planner.speed.links import describe_network
from moebox.units import format_count, format_seconds, plural


def forecast_page(mode: str, subject: ForecastTarget, rows: list[ForecastRow]) -> RenderableType:
    """Title, table, band and warnings."""
    tables = {"decode": decode_table, "prefill": prefill_table, "serving": serving_table, "stream": stream_table}
    remark = table_remark(mode, rows)
    parts: list[RenderableType] = [forecast_title(subject), Text(), tables[mode](rows)]
    parts += [Text(remark)] if remark else []
    parts.append(range_note(mode, subject))
    if subject.recipe.parallel.nodes > 1:
        parts.append(Text(describe_network(subject.box), style="dim"))
    known = [caution for caution in subject.warnings if caution.severity != "note"]
    parts += [Text.assemble((f"{caution.severity}: ", "yellow"), caution.text) for caution in known]
    return Group(*parts)


def forecast_title(subject: ForecastTarget) -> Text:
    """Model, box, engine and layout in one line."""
    recipe, spread = subject.recipe, subject.recipe.parallel
    words = [engine_display_name(recipe.engine)] + (["community image"] if recipe.runtime.preset else [])
    words += spread.labels if recipe.hybrid is None else []
    words += [f"{recipe.kv} cache of {format_count(subject.memory.kv_tokens)} tokens"]
    words += [f"{recipe.speculate.method} ×{recipe.speculate.tokens}"] if recipe.speculate else []
    line = Text.assemble((f"{subject.model.title} {subject.deployment.checkpoint.label}", "bold"))
    return line.append(f" on {subject.box.name}: {', '.join(words)}")


def range_note(mode: str, subject: ForecastTarget) -> Text:
    """The band in words, and how far the constants come from."""
    low, high = subject.speed.prefill_range if mode == "prefill" else subject.speed.decode_range
    if subject.speed.measured:
        within = f"expect {low - 1:+.0%} to {high - 1:+.0%}"
        return Text(f"{subject.speed.measured.text}; {within}", style="dim")
    text = f"expect {low - 1:+.0%} to {high - 1:+.0%} ({subject.speed.basis_text(prompts=mode == 'prefill')})"
    return Text(f"forecast, not a measurement: {text}", style="dim")


def decode_table(rows: list[ForecastRow]) -> Table:
    """Contexts down, streams across; tok/s of all streams."""
    streams = sorted({row["concurrency"] for row in rows})
    lines: dict[int, dict[int, ForecastRow]] = {}
    for row in sorted(rows, key=lambda row: int(row["context"])):
        lines.setdefault(row["context"], {})[row["concurrency"]] = row
    cells = ((format_count(context), *(_rate(line[many]) for many in streams)) for context, line in lines.items())
    return make_table(("context", *(plural(many, "stream") for many in streams)), cells)


def prefill_table(rows: list[ForecastRow]) -> Table:
    """Prompts down."""
    figures = ([row[key] for key in ("prompt_tokens", "prefill_tok_s", "low_tok_s", "high_tok_s")] for row in rows)
    times = (format_seconds(row["ttft_s"]) for row in rows)
    lines = ((*map(format_count, line), time) for line, time in zip(figures, times, strict=True))
    return make_table(("prompt", "tok/s", "low", "high", "read in"), lines)


def stream_table(rows: list[ForecastRow]) -> Table:
    """One stream by context, and the prompt beside it."""
    return make_table(("context", "tg tok/s", "low", "high", "pp tok/s", "low", "high"), map(_stream, rows))


def _stream(row: ForecastRow) -> tuple[str, ...]:
    tg = (f"{row[key]:.1f}" for key in ("tg_tok_s", "tg_low_tok_s", "tg_high_tok_s"))
    pp = (format_count(row[key]) for key in ("pp_tok_s", "pp_low_tok_s", "pp_high_tok_s"))
    return format_count(row["context"]), *tg, *pp


def serving_table(rows: list[ForecastRow]) -> Table:
    """One simulated run a line."""
    return make_table(("streams", "req/s", "out tok/s", "TTFT", "p99", "TPOT", "ITL", "p99"), map(_serving, rows))


def _serving(row: ForecastRow) -> tuple[str, ...]:
    who = format_count(row["max_concurrency"]) if row["max_concurrency"] else f"{row['request_rate']:g}/s"
    keys = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms")
    times = (format_seconds(row[key] / 1e3) for key in keys)
    return who, f"{row['request_throughput']:.2f}", format_count(row["output_throughput"]), *times


def table_remark(mode: str, rows: list[ForecastRow]) -> str:
    """What to know under the table."""
    if mode == "decode":
        fits = all(row["fits"] for row in rows)
        over = "" if fits else "; * more than the engine runs at a time (cache or max_seqs)"
        return f"decode tok/s of all streams{over}"
    if mode == "stream":
        return f"tg: one stream at that context; pp: a prompt of {format_count(rows[0]['prompt_tokens'])} tokens"
    return _served(rows) if mode == "serving" else ""


def _served(rows: list[ForecastRow]) -> str:
    """What went wrong in the worst of the simulated runs."""
    troubles = {
        "failed": "up to {} requests are longer than the cache or the context and fail",
        "preemptions": "up to {} preemptions: the cache is too small for these streams",
    }
    worst = {key: max(row[key] for row in rows) for key in troubles}
    return "; ".join(troubles[key].format(format_count(number)) for key, number in worst.items() if number)


def _rate(row: ForecastRow) -> str:
    rate = row["decode_tok_s"]
    return (f"{rate:.1f}" if rate < 100 else format_count(rate)) + ("" if row["fits"] else "*")
