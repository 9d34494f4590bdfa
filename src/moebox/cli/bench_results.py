"""The results of `moebox bench`: where they are kept, the line while it runs, and the tables after it."""

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from moebox import codec, files
from moebox.bench.generator import LoadProgress
from moebox.bench.measure import MeasuredLoad
from moebox.cli.display import LiveDisplay, make_group, make_table
from moebox.cli.output import Part, check_writable, to_view
from moebox.cli.target import open_run
from moebox.core.endpoint import Endpoint
from moebox.core.event import ServerMeasured
from moebox.core.result import Measurement, PrefillDecode, result_document
from moebox.doctor.logs import known_causes
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.escape import printable_line
from moebox.loose import Document, drop_keys, get_object, get_objects, get_text, is_true
from moebox.redact import hide_known_keys
from moebox.store import Run, plain, runs_dir
from moebox.store.run import ELSEWHERE, safe_name
from moebox.units import format_count, format_seconds, format_tok_s

LONGEST_LOAD = "c1000000"  # the longest title of a load in file names
RATES = ("output_throughput", "total_token_throughput", "max_output_tokens_per_s")
TIMES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2el_ms")
HEADS: tuple[str, ...] = ("load", "done", "bad", "out tok/s", "total tok/s", "peak tok/s", "req/s")
HEADS += ("TTFT", "P99 TTFT", "TPOT", "ITL", "P99 ITL", "E2E")
REMARKS = (  # key of a result, sentence, style
    ("partial", "interrupted; these are the figures up to then", "yellow"),
    ("silent", "{} replies had tokens but no text (counted by usage)", "yellow"),
    ("stopped_early", "{} replies were shorter than requested", "dim"),
)
BAR = 12  # cells of the progress bar
MOST_ERRORS = 5  # kinds of errors of one load that are shown
SPARKS = "▁▂▃▄▅▆▇█"


def write_measurement(run: Run, name: str, values: Document, samples: bytes | None = None) -> str:
    """Write a result, and its samples under the same name; return that name. Raise if it cannot be written.

    The lock is held because another command may measure for the same run. A taken name gets a number: a result never
    replaces one of another workload or server, only an interrupted measurement is replaced by its repetition.
    """
    with open(run.path / ".measuring", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = next(each for each in _numbered_names(name) if _is_free(run, each, values))
        run.strict = True
        if samples is not None:
            run.write_file(f"measurements/{name}.samples", samples)
            values = {**values, "samples": f"{name}.samples"}
        run.write_json(f"measurements/{name}.json", values)
    return name


def _is_free(run: Run, name: str, values: Document) -> bool:
    """Return whether a result may have this name: it is unused, or its result is the same one, interrupted."""
    path, samples = (run.path / "measurements" / f"{name}.{kind}" for kind in ("json", "samples"))
    if os.path.lexists(samples) and not plain.is_plain_file(samples):
        return False
    if not os.path.lexists(path):
        return True
    try:
        existing = plain.load_json(path)
    except BadInput:  # damaged, or not a regular file
        return False
    return _identity(existing) == _identity(values) and (is_true(existing, "partial") or existing == values)


def _identity(values: object) -> object:
    """Return what a result measured: model and workload without its salt; an imported result is compared as a whole."""
    if get_text(values, "source"):
        return values
    work = drop_keys(get_object(values, "workload"), "salt")
    tests = [get_text(row, "test") for row in get_objects(values, "rows")]
    return get_text(values, "kind"), get_text(values, "model_id"), work, tests


def _numbered_names(name: str) -> Iterator[str]:
    """Yield the name, then the name with 2, 3, …"""
    return itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))


class ResultKeeper:
    """Keeps results and samples in a file, in an existing run, or in a new run.

    An unwritable place is refused before the measurement. If writing fails later, the measurement goes on, its figures
    are shown, and `raise_if_lost` raises the error at the end.
    """

    def __init__(self, file: Path | None, run: str, label: str, *, endpoint: Endpoint) -> None:
        self.label = label
        self.connection: tuple[str, ...] = ()  # flags that reach the server, besides its model and key
        self.own_run = ""  # the run made for the results, once there are any
        self.lost: MoeboxError | None = None  # the first write that failed
        self._file, self._endpoint, self._home = file, endpoint, runs_dir()
        self._own_paths: set[Path] = set()  # samples beside the file; a pipe or device has none
        self._has_samples_file = False
        self._run = open_run(run, endpoint) if run else None
        if file:
            refuse_if(not file.parent.is_dir(), f"{file.parent}: no such folder")
            check_writable(file)
            self._has_samples_file = not files.is_stream(file)
            if self._has_samples_file:
                check_writable(file.with_name(f"{file.stem}-{LONGEST_LOAD}.samples"), shown_as=file)
        if self._run:
            check_writable(self._run.path / "measurements" / "new.json", shown_as=self._run.path)
        elif not file:
            check_writable(self._home / "new", shown_as=self._home, hint=ELSEWHERE)

    def save_measurement(self, measured: MeasuredLoad, title: str) -> Measurement:
        """Save samples, and in a run the figures too; return the result with the name of its samples file."""
        result, title = measured.result, title.replace("/", "-per-")
        samples = measured.samples.to_bytes()
        label = safe_name(self.label) or result.workload.kind
        name = self._save_in_run(f"{label}-{title}", result_document(result), samples)
        if name:
            result = replace(result, samples=f"{name}.samples")
        if self._file and self._has_samples_file:
            paths = (self._file.with_name(f"{self._file.stem}-{each}.samples") for each in _numbered_names(title))
            path = next(path for path in paths if path not in self._own_paths)
            self._own_paths.add(path)
            with self._noting_errors(path):
                files.write_atomic(path, samples)
                result = replace(result, samples=path.name)
        return result

    def note_server(self, left: Sequence[Sequence[str]] = ()) -> None:
        """Note in the run, if there is one, what was measured, and bench's words for the loads that are left."""
        if self._run:
            url, model, key_env = self._endpoint.base_url, self._endpoint.model, self._endpoint.key_env
            words = tuple(map(tuple, left))
            event = ServerMeasured(url=url, model=model, key_env=key_env, connection=self.connection, left=words)
            self._run.add_event(event)

    def save_tests(self, tests: PrefillDecode) -> None:
        document = result_document(tests)
        self.write_document(document)
        self._save_in_run(safe_name(self.label) or "pp-tg", document)

    def write_document(self, whole: Document) -> None:
        if self._file:
            with self._noting_errors(self._file):
                files.write_atomic(self._file, hide_known_keys(codec.to_json(whole)) + "\n")

    def output_flags(self, number: int) -> list[str]:
        """Return `-o` for the command that resumes: a new file, so that the first keeps its results."""
        if self._file is None:
            return []
        later = number > 1 and self._has_samples_file
        return ["-o", str(self._file.with_stem(f"{self._file.stem}-{number}") if later else self._file)]

    def raise_if_lost(self) -> None:
        if self.lost:
            raise self.lost

    def _save_in_run(self, name: str, values: Document, samples: bytes | None = None) -> str:
        """Save a result in the run and return its name; "" if there is no run or it could not be written."""
        with self._noting_errors(self._run.path if self._run else self._home):
            if self._file is None and self._run is None:  # an hour's result must not exist on screen only
                self._run = Run.create(f"bench-{self._endpoint.model}", simulation=is_true(values, "simulation"))
                self.note_server()
                self.own_run = self._run.id
            if self._run:
                return write_measurement(self._run, name, values, samples)
        return ""

    @contextlib.contextmanager
    def _noting_errors(self, path: Path) -> Iterator[None]:
        """Remember a write error instead of ending the measurement."""
        try:
            with files.report_write_errors(path):
                yield
        except MoeboxError as problem:
            self.lost = self.lost or ExternalError(problem.message, hint=problem.hint)


class LiveLine(LiveDisplay):
    """Progress, time left, speed, TTFT and errors, with the speed so far as a sparkline below; on a terminal only."""

    per_second = 4  # to leave the CPU to the workers

    def __init__(self, console: Console, title: str, *, total: int = 0, duration_s: float = 0.0) -> None:
        self.console = console
        self._title, self._total, self._duration = title, total, duration_s
        self._tokens, self._at, self._rate, self._ttft = 0, 0.0, 0.0, 0.0
        self._rates: list[float] = []  # tok/s since the first token, one for each half second or more

    def __call__(self, workers: list[LoadProgress], elapsed_s: float) -> None:
        if self.live and workers:
            width = self.live.console.width
            self.live.update(make_group(self.progress_line(workers, elapsed_s, width), self.speed_line(width)))

    def progress_line(self, workers: list[LoadProgress], elapsed_s: float, width: int) -> Text:
        """Return a line of at most `width` cells; the least important parts are left out first."""
        ended, failed = sum(worker.ended for worker in workers), sum(worker.failed for worker in workers)
        tokens, in_flight = sum(worker.tokens for worker in workers), sum(worker.in_flight for worker in workers)
        if elapsed_s - self._at >= 0.5:
            self._rate = (tokens - self._tokens) / (elapsed_s - self._at)
            self._tokens, self._at = tokens, elapsed_s
            self._rates += [self._rate] if tokens else []
        known = [worker.ttft_ms for worker in workers if worker.ttft_ms]
        self._ttft = sum(known) / len(known) if known else self._ttft
        by_count = ended / self._total if self._total else 0.0
        by_clock = elapsed_s / self._duration if self._duration else 0.0
        share = min(1.0, max(by_count, by_clock))
        parts = [(f"{format_count(ended)}/{format_count(self._total)}" if self._total else f"{ended:,} done", "")]
        parts += [(f"{failed} failed", "red")] if failed else []
        parts += [(time_left(share, elapsed_s), ""), (format_tok_s(self._rate) if tokens else "no token yet", "")]
        parts += [(f"TTFT {_format_ms(self._ttft)}", "")] if self._ttft else []
        client = max(worker.cpu_share for worker in workers)
        parts += [(f"{in_flight} in flight", "dim"), (f"client {client:.0%}", "dim")]
        filled = round(BAR * share)
        line = Text.assemble((self._title, "bold"), f" {'━' * filled}", ("━" * (BAR - filled), "dim"))
        for text, style in parts:
            if line.cell_len + 2 + cell_len(text) > width:
                break
            line.append(f"  {text}", style)
        return line

    def speed_line(self, width: int) -> Text:
        """Return the speed over time, from zero to its highest; each cell is the mean of its moments."""
        if len(self._rates) < 2:
            return Text("")
        label, highest = "tok/s ", f" up to {format_tok_s(max(self._rates))}"
        cells = width - len(label) - len(highest)
        return Text.assemble((label, "dim"), sparkline(self._rates, cells), (highest, "dim")) if cells > 0 else Text("")


def sparkline(values: Sequence[float], cells: int) -> str:
    """Return a bar for each value, or for the mean of neighbours if there are more values than cells."""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    highest, last = max(means), len(SPARKS) - 1
    return "".join(SPARKS[round(last * max(0.0, mean) / highest)] if highest > 0 else SPARKS[0] for mean in means)


def time_left(share: float, elapsed_s: float) -> str:
    """Return the time left at the pace so far, or the elapsed time if nothing has ended yet."""
    if not share:
        return format_seconds(elapsed_s)
    return f"{format_seconds(max(0.0, elapsed_s * (1 - share) / share))} left"


def print_results(console: Console, results: Sequence[dict[str, Any]], *, best: int | None = None) -> None:
    """Print the table, what went wrong, and whether the client was the limit."""
    rows: list[list[Part]] = []
    for place, result in enumerate(results):
        bad = sum(result.get(key) or 0 for key in ("failed", "truncated", "empty"))
        mean, peak = result.get("output_throughput"), result.get("max_output_tokens_per_s")
        rates = [*map(result.get, RATES)]
        if peak is not None and mean is not None and peak < mean:  # too short for a peak, which is of whole seconds
            rates[RATES.index("max_output_tokens_per_s")] = None
        first = load_label(result) + (" ←" if place == best else "")
        counts = (format_count(result.get("completed") or 0), (format_count(bad), "red" if bad else "dim"))
        speeds = (*map(_format_number, rates), _format_number(result.get("request_throughput"), digits=2))
        rows.append([first, *counts, *speeds, *(_format_ms(result.get(key)) for key in TIMES)])
    console.print(make_table(HEADS, rows, left_columns=HEADS[:1], parts=("TTFT",), width=console.width))
    for result in results:
        errors, good = result.get("errors") or {}, result.get("request_goodput")
        lines: list[tuple[str, str]] = []
        if good is not None:
            sent = (result.get("num_prompts") or result["completed"]) - (result.get("cancelled") or 0)
            share = round(good * result["duration"]) / sent if sent else 0.0
            lines.append((f"goodput {good:.2f} req/s, {share:.0%} of requests met the SLO", ""))
        lines += [(f"{times} × {reason}", "red") for reason, times in group_errors(errors).items()]
        lines += [(cause, "yellow") for cause in known_causes(errors)]
        limits = result["client"]["reasons"] if result.get("client_limited") else ()
        lines += [(f"THE CLIENT WAS THE LIMIT: {reason}", "bold red") for reason in limits]
        lines += [(f"DO NOT TRUST: {flag}", "bold red") for flag in result.get("flags") or ()]
        lines += [(text.format(result[key]), style) for key, text, style in REMARKS if result.get(key)]
        for text, style in lines:
            console.print(to_view((f"{load_label(result)}: {printable_line(text)}", style)))


def group_errors(errors: dict[str, int]) -> dict[str, int]:
    """Return the most frequent errors; those that differ only in numbers are one, and the rest is summed up."""
    same: dict[str, tuple[str, int]] = {}
    for reason, times in sorted(errors.items(), key=lambda item: -item[1]):
        first, before = same.get(re.sub(r"\d+", "0", reason), (reason, 0))
        same[re.sub(r"\d+", "0", reason)] = first, before + times
    ranked = sorted(same.values(), key=lambda item: -item[1])
    rest = sum(times for _, times in ranked[MOST_ERRORS:])
    return {**dict(ranked[:MOST_ERRORS]), **({f"{len(ranked) - MOST_ERRORS} other errors": rest} if rest else {})}


def print_test_rows(console: Console, result: dict[str, Any]) -> None:
    """Print prefill and decode tests; only prompts are cold or warm."""
    rows = []
    for row in result["rows"]:
        cache = ("cold" if row["cold"] else "warm") if row["test"].startswith("pp") else ""
        figures = (_format_number(row["mean_tok_s"], digits=2), _format_number(row.get("std_tok_s"), digits=2))
        rows.append((row["test"], cache, *figures, _format_ms(row.get("mean_ttft_ms")), str(row.get("tries") or "–")))
    heads = ("test", "cache", "tok/s", "±", "TTFT", "tries")
    console.print(make_table(heads, rows, left_columns=heads[:1], width=console.width))
    for flag in result.get("flags") or ():
        console.print(to_view((f"DO NOT TRUST: {printable_line(flag)}", "bold red")))


def load_label(result: dict[str, Any]) -> str:
    """Return the load of a result: "c32" or "4.0/s"."""
    rate, streams = result.get("request_rate"), result.get("max_concurrency")
    if isinstance(rate, int | float):
        return f"{rate:g}/s"
    return f"c{streams:g}" if isinstance(streams, int | float) else "–"


def _format_number(value: Any, *, digits: int = 0) -> str:
    return "–" if not isinstance(value, int | float) else f"{value:,.{digits if value < 1000 else 0}f}"


def _format_ms(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
