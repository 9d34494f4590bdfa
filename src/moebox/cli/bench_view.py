"""What `moebox bench` shows: a line while it runs, a table after."""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moebox.bench.job import Progress
from moebox.units import count, seconds, tok_s

_COLUMNS = (
    "load",
    "done",
    "bad",
    "out tok/s",
    "total tok/s",
    "peak",
    "req/s",
    "TTFT",
    "P99",
    "TPOT",
    "ITL",
    "P99",
    "E2E",
)
_RATES = ("output_throughput", "total_token_throughput", "max_output_tokens_per_s")
_TIMES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2el_ms")


class LiveLine:
    """Progress, speed, TTFT, in flight and errors, refreshed twice a second on a terminal; nothing elsewhere."""

    def __init__(self, console: Console, title: str, *, total: int = 0, duration_s: float = 0.0) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._shown = console.is_terminal
        self._title, self._total, self._duration = title, total, duration_s
        self._tokens, self._at, self._rate, self._ttft = 0, 0.0, 0.0, 0.0

    def __enter__(self) -> "LiveLine":
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()

    def __call__(self, workers: list[Progress], elapsed_s: float) -> None:
        """Take the workers' latest words."""
        if not self._shown or not workers:
            return
        tokens = sum(one.tokens for one in workers)
        if elapsed_s - self._at >= 0.5:
            self._rate = (tokens - self._tokens) / (elapsed_s - self._at)
            self._tokens, self._at = tokens, elapsed_s
        known = [one.ttft_ms for one in workers if one.ttft_ms]
        self._ttft = sum(known) / len(known) if known else self._ttft
        ended, failed = sum(one.ended for one in workers), sum(one.failed for one in workers)
        share = ended / self._total if self._total else elapsed_s / self._duration if self._duration else 0.0
        filled = round(20 * min(1.0, share))
        line = Text.assemble(
            (self._title, "bold"),
            f"  {'━' * filled}",
            ("━" * (20 - filled), "dim"),
            f"  {count(ended)}{'/' + count(self._total) if self._total else ''}  {seconds(elapsed_s)}"
            f"  {tok_s(self._rate)}  TTFT {self._ttft:,.0f} ms  in flight {sum(one.in_flight for one in workers)}  ",
            (f"errors {failed}", "red" if failed else "dim"),
            (f"  client {max(one.cpu_share for one in workers):.0%}", "dim"),
        )
        self._live.update(line)


def show(console: Console, results: list[dict[str, Any]], *, best: int | None = None) -> None:
    """The table, what went wrong, and whether the client was the limit."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for place, result in enumerate(results):
        bad = sum(result.get(key) or 0 for key in ("failed", "truncated", "empty"))
        table.add_row(
            load_of(result) + (" ←" if place == best else ""),
            count(result.get("completed") or 0),
            Text(count(bad), style="red" if bad else "dim"),
            *(_number(result.get(key)) for key in _RATES),
            _number(result.get("request_throughput"), digits=2),
            *(_ms(result.get(key)) for key in _TIMES),
        )
    console.print(table)
    for result in results:
        _remarks(console, result)


def _remarks(console: Console, result: dict[str, Any]) -> None:
    if result.get("request_goodput") is not None:
        share = result["request_goodput"] / result["request_throughput"] if result["request_throughput"] else 0.0
        console.print(f"{load_of(result)}: goodput {result['request_goodput']:.2f} req/s, {share:.0%} of requests good")
    for reason, times in (result.get("errors") or {}).items():
        console.print(Text(f"{load_of(result)}: {times} × {reason}", style="red"))
    if result.get("partial"):
        console.print(f"{load_of(result)}: interrupted; this is what was measured until then", style="yellow")
    if result.get("client_limited"):
        for reason in result["client"]["reasons"]:
            console.print(Text(f"{load_of(result)}: THE CLIENT WAS THE LIMIT: {reason}", style="bold red"))
    if (result.get("stopped_early") or 0) > 0:
        console.print(f"{load_of(result)}: {result['stopped_early']} replies were shorter than asked", style="dim")


def show_rows(console: Console, result: dict[str, Any]) -> None:
    """Prefill and decode tests."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("test", "cache", "tok/s", "±", "TTFT", "tries"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        cache = ("cold" if row["cold"] else "warm") if row["test"].startswith("pp") else ""
        table.add_row(
            row["test"],
            cache,
            _number(row["mean_tok_s"], digits=2),
            _number(row.get("std_tok_s"), digits=2),
            _ms(row.get("mean_ttft_ms")),
            str(row.get("tries") or "–"),
        )
    console.print(table)


def load_of(result: dict[str, Any]) -> str:
    """What the row was driven by: "c32" or "4.0/s"."""
    rate = result.get("request_rate")
    if isinstance(rate, int | float):
        return f"{rate:g}/s"
    lanes = result.get("max_concurrency")
    return f"c{lanes:g}" if isinstance(lanes, int | float) else "–"


def _number(value: Any, *, digits: int = 0) -> str:
    return "–" if not isinstance(value, int | float) else f"{value:,.{digits if value < 1000 else 0}f}"


def _ms(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
