"""What `moebox bench` shows: a line while it runs, a table after."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moebox.bench.generator import LoadProgress
from moebox.doctor.logs import known_causes
from moebox.escape import printable_line
from moebox.units import format_count, format_seconds, format_tok_s

_RATES = ("output_throughput", "total_token_throughput", "max_output_tokens_per_s")
_TIMES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2el_ms")
_HEADS: tuple[str, ...] = ("load", "done", "bad", "out tok/s", "total tok/s", "peak tok/s", "req/s")
_HEADS += ("TTFT", "P99 TTFT", "TPOT", "ITL", "P99 ITL", "E2E")
_REMARKS = (  # what a result says of its replies, in words, with its style
    ("partial", "interrupted; this is what was measured until then", "yellow"),
    ("silent", "{} replies had tokens but no text (counted by usage)", "yellow"),
    ("stopped_early", "{} replies were shorter than asked", "dim"),
)
_GAP = 2  # between columns
_BAR = 12  # cells of the progress bar
_SPARKS = "▁▂▃▄▅▆▇█"


class LiveLine:
    """Progress, time left, speed, TTFT and errors, and below it the speed so far as a sparkline.

    Refreshed twice a second on a terminal; nothing elsewhere.
    """

    def __init__(self, console: Console, title: str, *, total: int = 0, duration_s: float = 0.0) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._console, self._shown = console, console.is_terminal
        self._title, self._total, self._duration = title, total, duration_s
        self._tokens, self._at, self._rate, self._ttft = 0, 0.0, 0.0, 0.0
        self._rates: list[float] = []  # tok/s since the first token, one for each half second or more

    def __enter__(self) -> "LiveLine":
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()

    def __call__(self, workers: list[LoadProgress], elapsed_s: float) -> None:
        """Take the workers' latest words."""
        if not self._shown or not workers:
            return
        width = self._console.width
        self._live.update(Group(self.line(workers, elapsed_s, width), self.sparkline(width)))

    def line(self, workers: list[LoadProgress], elapsed_s: float, width: int) -> Text:
        """One line of at most `width` cells: what matters least is left out first."""
        self._take(workers, elapsed_s)
        ended = sum(worker.ended for worker in workers)
        share = self._share(ended, elapsed_s)
        filled = round(_BAR * share)
        line = Text.assemble((self._title, "bold"), f" {'━' * filled}", ("━" * (_BAR - filled), "dim"))
        for text, style in self._parts(workers, ended, time_left(share, elapsed_s)):
            if line.cell_len + 2 + cell_len(text) > width:
                break
            line.append(f"  {text}", style)
        return line

    def _take(self, workers: list[LoadProgress], elapsed_s: float) -> None:
        """Speed over the last half second or more, and the mean TTFT of the workers that know one."""
        tokens = _sum(workers, "tokens")
        if elapsed_s - self._at >= 0.5:
            self._rate = (tokens - self._tokens) / (elapsed_s - self._at)
            self._tokens, self._at = tokens, elapsed_s
            self._rates += [self._rate] if tokens else []
        known = [worker.ttft_ms for worker in workers if worker.ttft_ms]
        self._ttft = sum(known) / len(known) if known else self._ttft

    def _parts(self, workers: list[LoadProgress], ended: int, left: str) -> Iterator[tuple[str, str]]:
        """What the line says after the bar, with its style; the most important first."""
        failed, tokens, in_flight = (_sum(workers, name) for name in ("failed", "tokens", "in_flight"))
        yield (
            (f"{format_count(ended)}/{format_count(self._total)}" if self._total else f"{format_count(ended)} done"),
            "",
        )
        if failed:
            yield f"{failed} failed", "red"
        yield left, ""
        yield (format_tok_s(self._rate) if tokens else "no token yet"), ""
        if self._ttft:
            yield f"TTFT {_ms(self._ttft)}", ""
        yield f"{in_flight} in flight", "dim"
        yield f"client {max(worker.cpu_share for worker in workers):.0%}", "dim"

    def sparkline(self, width: int) -> Text:
        """Speed over time, from zero to its highest; a long run is shown whole, each cell the mean of its moments."""
        if len(self._rates) < 2:
            return Text("")
        label, highest = "tok/s ", f" up to {format_tok_s(max(self._rates))}"
        cells = width - cell_len(label) - cell_len(highest)
        return Text.assemble((label, "dim"), sparkline(self._rates, cells), (highest, "dim")) if cells > 0 else Text("")

    def _share(self, ended: int, elapsed_s: float) -> float:
        """How much of the load is done, by requests or by the clock, whichever is further."""
        by_count = ended / self._total if self._total else 0.0
        by_clock = elapsed_s / self._duration if self._duration else 0.0
        return min(1.0, max(by_count, by_clock))


def _sum(workers: list[LoadProgress], name: str) -> int:
    return sum(getattr(worker, name) for worker in workers)


def sparkline(values: Sequence[float], cells: int) -> str:
    """A bar for each value, or for the mean of several next to each other where there are more values than cells."""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    highest = max(means)
    last = len(_SPARKS) - 1
    return "".join(_SPARKS[round(last * max(0.0, mean) / highest)] if highest > 0 else _SPARKS[0] for mean in means)


def time_left(share: float, elapsed_s: float) -> str:
    """Time left at the pace so far, or the time it took where nothing has ended yet."""
    if not share:
        return format_seconds(elapsed_s)
    return f"{format_seconds(max(0.0, elapsed_s * (1 - share) / share))} left"


def print_results(console: Console, results: Sequence[dict[str, Any]], *, best: int | None = None) -> None:
    """The table, what went wrong, and whether the client was the limit."""
    rows = [_row(result, chosen=place == best) for place, result in enumerate(results)]
    print_stacked(console, _HEADS, rows, parts=(_HEADS.index("TTFT"),))
    for result in results:
        _remarks(console, result)


def print_stacked(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[Text]], *, parts: Sequence[int] = ()
) -> None:
    """A table, cut between columns into as many below each other as the width needs: no figure is ever cut.

    Where it has to be cut, a new one begins with each of the columns `parts`.
    """
    widths = [max(cell_len(head), *(row[at].cell_len for row in rows)) for at, head in enumerate(heads)]
    for group in _groups(widths, console.width, parts):
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for at in group:
            table.add_column(heads[at], justify="left" if at == 0 else "right", no_wrap=True, min_width=widths[at])
        for row in rows:
            table.add_row(*(row[at] for at in group))
        console.print(table, crop=False)


def _groups(widths: Sequence[int], width: int, parts: Sequence[int]) -> list[list[int]]:
    """Columns that fit beside each other; the first stands in every group."""
    if sum(widths) + _GAP * (len(widths) - 1) <= width:
        return [list(range(len(widths)))]
    groups: list[list[int]] = [[0]]
    room = width - widths[0]
    for at, needed in enumerate(widths[1:], 1):
        full = needed + _GAP > room or at in parts
        if full and len(groups[-1]) > 1:
            groups.append([0])
            room = width - widths[0]
        groups[-1].append(at)
        room -= needed + _GAP
    return groups


def _row(result: dict[str, Any], *, chosen: bool) -> list[Text]:
    bad = sum(result.get(key) or 0 for key in ("failed", "truncated", "empty"))
    return [
        Text(load_label(result) + (" ←" if chosen else "")),
        Text(format_count(result.get("completed") or 0)),
        Text(format_count(bad), style="red" if bad else "dim"),
        *(Text(_number(_rate(result, key))) for key in _RATES),
        Text(_number(result.get("request_throughput"), digits=2)),
        *(Text(_ms(result.get(key))) for key in _TIMES),
    ]


def _rate(result: dict[str, Any], key: str) -> Any:
    """The figure, but no peak of a run too short to have one: it is counted in whole seconds."""
    rate, mean = result.get(key), result.get("output_throughput")
    short = key == "max_output_tokens_per_s" and rate is not None and mean is not None and rate < mean
    return None if short else rate


def _remarks(console: Console, result: dict[str, Any]) -> None:
    for text, style in _said(result):
        console.print(Text(f"{load_label(result)}: {printable_line(text)}", style=style))


def _said(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What must be known beside the figures, with its style."""
    errors = result.get("errors") or {}
    if result.get("request_goodput") is not None:
        yield _goodput(result["request_goodput"], result["request_throughput"]), ""
    yield from ((f"{times} × {reason}", "red") for reason, times in group_errors(errors).items())
    yield from ((why, "yellow") for why in known_causes(errors))
    yield from _doubts(result)
    for key, words, style in _REMARKS:
        if result.get(key):
            yield words.format(result[key]), style


def _goodput(good: float, every: float) -> str:
    share = good / every if good else 0.0
    return f"goodput {good:.2f} req/s, {share:.0%} of requests met the SLO"


def _doubts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Why the figures are not the server's."""
    for reason in result["client"]["reasons"] if result.get("client_limited") else ():
        yield f"THE CLIENT WAS THE LIMIT: {reason}", "bold red"
    for flag in result.get("flags") or ():
        yield f"DO NOT TRUST: {flag}", "bold red"


def group_errors(errors: dict[str, int], most: int = 5) -> dict[str, int]:
    """The most frequent errors; those that differ only in their numbers are one, and the rest is summed up."""
    import re

    same: dict[str, tuple[str, int]] = {}
    for reason, times in sorted(errors.items(), key=lambda item: -item[1]):
        key = re.sub(r"\d+", "0", reason)
        first, before = same.get(key, (reason, 0))
        same[key] = first, before + times
    ranked = sorted(same.values(), key=lambda item: -item[1])
    shown = dict(ranked[:most])
    rest = sum(times for _, times in ranked[most:])
    return {**shown, f"{len(ranked) - most} other errors": rest} if rest else shown


def print_test_rows(console: Console, result: dict[str, Any]) -> None:
    """Prefill and decode tests."""
    rows = [[Text(cell) for cell in _test(row)] for row in result["rows"]]
    print_stacked(console, ("test", "cache", "tok/s", "±", "TTFT", "tries"), rows)
    for flag in result.get("flags") or ():
        console.print(Text(f"DO NOT TRUST: {printable_line(flag)}", style="bold red"))


def _test(row: dict[str, Any]) -> tuple[str, ...]:
    """One test; only prompts are cold or warm."""
    cache = ("cold" if row["cold"] else "warm") if row["test"].startswith("pp") else ""
    figures = (_number(row["mean_tok_s"], digits=2), _number(row.get("std_tok_s"), digits=2))
    return row["test"], cache, *figures, _ms(row.get("mean_ttft_ms")), str(row.get("tries") or "–")


def load_label(result: dict[str, Any]) -> str:
    """What the row was driven by: "c32" or "4.0/s"."""
    rate = result.get("request_rate")
    if isinstance(rate, int | float):
        return f"{rate:g}/s"
    streams = result.get("max_concurrency")
    return f"c{streams:g}" if isinstance(streams, int | float) else "–"


def _number(value: Any, *, digits: int = 0) -> str:
    return "–" if not isinstance(value, int | float) else f"{value:,.{digits if value < 1000 else 0}f}"


def _ms(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
