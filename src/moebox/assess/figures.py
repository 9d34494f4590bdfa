"""Measured figures against their forecasts, and reasons to doubt a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moebox.assess.devices import planned_parts, reported_parts
from moebox.assess.format import format_number
from moebox.runs.record import ForecastRow, LoadResult, RunRecord
from moebox.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigure:
    run: int
    what: str
    planned: float
    measured: float
    expected_range: tuple[float, float] | None = None
    unit: str = "tok/s"
    load: str = ""  # the load it was measured under; "" for memory
    is_reliable: bool = True  # False if there are reasons to doubt the load's figures

    @property
    def relative_error(self) -> float:
        """Measured against planned: 0.1 is 10% more."""
        return self.measured / self.planned - 1

    @property
    def in_range(self) -> bool | None:
        """True if the measurement lies in the forecast's range; None without a range."""
        if self.expected_range is None:
            return None
        return self.expected_range[0] <= self.measured <= self.expected_range[1]

    @property
    def range_text(self) -> str:
        """The forecast with its range, and whether the measurement lies in it."""
        forecast = f"forecast {format_number(self.planned)}"
        if self.expected_range is None:
            return forecast
        low, high = self.expected_range
        return f"{forecast} ({format_number(low)} to {format_number(high)}): {self.distance_text or 'in range'}"

    @property
    def distance_text(self) -> str:
        """ "22% below its range"; "" if it is in range or has none."""
        if self.expected_range is None or self.in_range:
            return ""
        low, high = self.expected_range
        edge, side = (low, "below") if self.measured < low else (high, "above")
        distance = abs(self.measured / edge - 1) if edge else 1.0
        return f"{f'{distance:.0%}' if distance >= 0.01 else 'less than 1%'} {side} its range"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCount:
    """How many loads and figures lie in the ranges of their forecasts; a load does if all its figures do."""

    loads_in_range: int = 0
    loads: int = 0
    figures_in_range: int = 0
    figures: int = 0
    not_forecast: int = 0  # loads without a range

    @property
    def text(self) -> str:
        """ "in range at 5 of 7 loads (13 of 21 figures)"; "no forecast" without a range."""
        if not self.loads:
            return "no forecast"
        missing = f", {plural(self.not_forecast, 'load')} without a forecast" if self.not_forecast else ""
        return (
            f"in range at {self.loads_in_range} of {plural(self.loads, 'load')} "
            f"({self.figures_in_range} of {plural(self.figures, 'figure')}){missing}"
        )


def reliable_loads(record: RunRecord) -> list[LoadResult]:
    """Loads whose figures give no reason for doubt."""
    return [load for load in record.loads if not load.doubts]


def planned_figures(records: Sequence[RunRecord]) -> list[PlannedFigure]:
    """Every figure that was both planned and measured: weights, KV cache, and each load."""
    figures: list[PlannedFigure] = []
    for index, record in enumerate(records):
        memory = record.planned_memory
        planned = [*map(planned_parts, memory.devices)]
        weights = [
            max((device.weight_bytes for device in devices if not device.on_host), default=0.0)
            for devices in (planned, map(reported_parts, record.reported_devices))
        ]
        pairs = (
            ("Weights per GPU", weights[0], weights[1], "B"),
            ("KV cache", memory.kv_tokens, record.kv_tokens, "tokens"),
        )
        figures += [
            PlannedFigure(run=index, what=what, planned=expected, measured=actual, unit=unit)
            for what, expected, actual, unit in pairs
            if expected and actual
        ]
        for load in record.loads:
            figures += compare_load(index, load, find_forecast(load, record.forecast))
    return figures


def count_ranges(record: RunRecord) -> RangeCount:
    judged = [
        [figure.in_range for figure in compare_load(0, load, find_forecast(load, record.forecast))]
        for load in record.loads
    ]
    ranged = [marks for row in judged if (marks := [mark for mark in row if mark is not None])]
    return RangeCount(
        loads_in_range=sum(map(all, ranged)),
        loads=len(ranged),
        figures_in_range=sum(map(sum, ranged)),
        figures=sum(map(len, ranged)),
        not_forecast=len(judged) - len(ranged),
    )


def find_forecast(load: LoadResult, rows: Sequence[ForecastRow]) -> ForecastRow | None:
    """The forecast for this load; a row that only decodes counts for single streams alone."""
    concurrency = load.concurrency or (1.0 if load.is_single_stream else None)
    same = (row for row in rows if row.concurrency == concurrency and row.workload in ("", load.workload))
    return next((row for row in same if load.tg_tok_s or not row.decode_only), None)


def compare_load(index: int, load: LoadResult, row: ForecastRow | None) -> list[PlannedFigure]:
    """Figures that both the load and its forecast have, each with its range.

    The forecast has one relative range, of the rate; for a time it is inverted.
    """
    if row is None:
        return []
    generation = row.tg_tok_s if row.tg_tok_s is not None else row.output_tok_s if row.decode_only else None
    pairs = (
        ("Output tok/s", None if row.decode_only else row.output_tok_s, load.output_tok_s, "tok/s"),
        ("Token generation", generation, load.tg_tok_s, "tok/s"),
        ("Prompt processing", row.pp_tok_s, load.pp_tok_s, "tok/s"),
        ("Mean TTFT", None if row.decode_only else row.ttft_ms, load.ttft.mean_or_median, "ms"),
        ("Mean TPOT", row.tpot_ms, load.tpot.mean_or_median, "ms"),
    )
    name = f"concurrency {load.concurrency:,.0f}" if load.concurrency else load.name
    name += f", {row.lengths}" if row.lengths else ""
    rate = row.tg_tok_s or row.output_tok_s
    figures: list[PlannedFigure] = []
    for what, planned, measured, unit in pairs:
        if not planned or not measured:
            continue
        expected_range = None
        if rate and row.low_tok_s and row.high_tok_s:
            low, high = row.low_tok_s / rate, row.high_tok_s / rate
            expected_range = (planned / high, planned / low) if unit == "ms" else (planned * low, planned * high)
        figure = PlannedFigure(run=index, what=what, planned=planned, measured=measured, unit=unit, load=name)
        figures.append(replace(figure, expected_range=expected_range, is_reliable=not load.doubts))
    return figures
