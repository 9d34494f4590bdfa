"""The tables of `moebox forecast`, one for each kind."""

from collections.abc import Sequence

from moebox.planner.forecast import ForecastRow
from moebox.units import format_count, format_percent, format_seconds, plural

MIN_GAIN = 0.005  # of the hits, below which a tier is not proposed
ForecastTable = tuple[Sequence[str], list[tuple[str, ...]], str]  # headings, rows, the remark below


def _decode_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return contexts down and streams across, in tok/s of all streams."""
    streams = sorted({row["concurrency"] for row in rows})
    by_context: dict[int, dict[int, ForecastRow]] = {}
    for row in sorted(rows, key=lambda row: int(row["context"])):
        by_context.setdefault(row["context"], {})[row["concurrency"]] = row

    def cell(row: ForecastRow) -> str:
        rate = row["decode_tok_s"]
        return (f"{rate:.1f}" if rate < 100 else format_count(rate)) + ("" if row["fits"] else "*")

    lines = [(format_count(context), *(cell(line[many]) for many in streams)) for context, line in by_context.items()]
    fits = all(row["fits"] for row in rows)
    over = "" if fits else "; * more than the engine runs at a time (cache or max_seqs)"
    return ("context", *(plural(many, "stream") for many in streams)), lines, f"decode tok/s of all streams{over}"


def _prefill_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return a row for each prompt."""
    keys = ("prompt_tokens", "prefill_tok_s", "low_tok_s", "high_tok_s")
    lines = [(*(format_count(row[key]) for key in keys), format_seconds(row["ttft_s"])) for row in rows]
    return ("prompt", "tok/s", "low", "high", "read in"), lines, ""


def _stream_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return one stream by context, and the prompt beside it."""
    lines = []
    for row in rows:
        tg = (f"{row[key]:.1f}" for key in ("tg_tok_s", "tg_low_tok_s", "tg_high_tok_s"))
        pp = (format_count(row[key]) for key in ("pp_tok_s", "pp_low_tok_s", "pp_high_tok_s"))
        lines.append((format_count(row["context"]), *tg, *pp))
    remark = f"tg: one stream at that context; pp: a prompt of {format_count(rows[0]['prompt_tokens'])} tokens"
    return ("context", "tg tok/s", "low", "high", "pp tok/s", "low", "high"), lines, remark


def _serving_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return a row for each simulated run, and the problems of the worst."""
    lines = []
    for row in rows:
        load = format_count(row["max_concurrency"]) if row["max_concurrency"] else f"{row['request_rate']:g}/s"
        keys = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms")
        times = (format_seconds(row[key] / 1e3) for key in keys)
        lines.append((load, f"{row['request_throughput']:.2f}", format_count(row["output_throughput"]), *times))
    problems = {
        "failed": "up to {} requests are longer than the cache or the context and fail",
        "preemptions": "up to {} preemptions: the cache is too small for these streams",
    }
    worst = {key: max(row[key] for row in rows) for key in problems}
    remarks = [problems[key].format(format_count(number)) for key, number in worst.items() if number]
    if any(row["p99_itl_ms"] < row["mean_itl_ms"] for row in rows):
        remarks.append("ITL p99 is below the mean because fewer than 1 gap in 100 is long: one that waits for prompts")
    return ("streams", "req/s", "out tok/s", "TTFT", "p99", "TPOT", "ITL", "p99"), lines, "; ".join(remarks)


def tier_table(rows: Sequence[ForecastRow]) -> ForecastTable:
    """Return what each tier of the KV cache brings for the conversations of a workload."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        name = f"+ {row['tier']}, {row['gib']:g} GiB" if row["gib"] else row["tier"]
        ttft, low, high = (format_seconds(row[key] / 1e3) for key in ("returning_ttft_ms", "low_ms", "high_ms"))
        lines.append((name, format_count(row["tokens"]), format_percent(row["hit_share"]), ttft, low, high))
    many, length = rows[0]["conversations"], format_count(rows[0]["conversation_tokens"])
    remark = f"{many} conversations of up to {length} tokens; hits: prompt tokens not computed again"
    gain = rows[-1]["hit_share"] - rows[0]["hit_share"]
    if len(rows) == 1:
        remark += "; the engine or the box has no room for a tier"
    else:
        remark += f"\n{rows[-1]['setting']}" if gain > MIN_GAIN else "\nthe GPUs hold them: a tier brings nothing here"
    return ("KV cache", "tokens", "hits", "TTFT of later turns", "low", "high"), lines, remark


FORECAST_TABLES = {
    "decode": _decode_table,
    "prefill": _prefill_table,
    "stream": _stream_table,
    "serving": _serving_table,
}
