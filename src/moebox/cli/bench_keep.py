"""Where the results and samples of `moebox bench` are kept."""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moebox import codec, files
from moebox.cli import kept_in
from moebox.cli.output import check_writable
from moebox.core.endpoint import Endpoint
from moebox.core.event import ServerMeasured
from moebox.core.result import Measurement, PrefillDecode, result_document
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.loose import Document, get_object, get_objects, get_text, is_true
from moebox.redact import hide_known_keys
from moebox.store import Run, plain, runs_dir
from moebox.store.run import ELSEWHERE, safe_name

if TYPE_CHECKING:
    from moebox.bench.measure import MeasuredLoad

LONGEST_LOAD = "c1000000"  # a load, as it stands in the names of files


class RunMeasurements:
    """Those of one run. None takes the place of another that asked for something else."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._named: set[str] = set()  # by us

    def write(self, name: str, values: Document, samples: bytes | None = None) -> str:
        """Keep one, strictly; the name that it got, which its samples have too."""
        with self._alone():
            name = self._free(name, values)
            self.run.strict = True
            if samples is not None:
                self.run.write_file(f"measurements/{name}.samples", samples)
                values = {**values, "samples": f"{name}.samples"}
            self.run.write_json(f"measurements/{name}.json", values)
        self._named.add(name)
        return name

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While a name is chosen and written: another command may measure for the same run."""
        with open(self.run.path / ".measuring", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _free(self, name: str, values: Document) -> str:
        """With a number where something else has the name; what was interrupted is replaced by its repetition."""
        return next(each for each in _numbered(name) if each not in self._named and self._may_be(each, values))

    def _may_be(self, name: str, values: Document) -> bool:
        path = self.run.path / "measurements" / f"{name}.json"
        samples = path.with_name(f"{name}.samples")
        if os.path.lexists(samples) and not plain.is_plain_file(samples):
            return False
        if not os.path.lexists(path):
            return True
        try:
            there = plain.load_json(path)
        except BadInput:  # damaged, or no file
            return False
        return _asked(there) == _asked(values) and (is_true(there, "partial") or there == values)


def _asked(values: object) -> object:
    """What a measurement asked of whom, its salt aside, another one each time; all of one that was imported."""
    if get_text(values, "source"):
        return values
    work = {key: value for key, value in get_object(values, "workload").items() if key != "salt"}
    tests = [get_text(row, "test") for row in get_objects(values, "rows")]
    return get_text(values, "kind"), get_text(values, "model_id"), work, tests


class ResultKeeper:
    """Where results and samples are kept: a file, a run that is there, or else a run of their own.

    What cannot be written is refused before anything is measured. Where that shows only later, the measurement goes on:
    its figures are shown, and `tell_lost` says what is missing.
    """

    def __init__(self, file: Path | None, run: str, label: str, *, endpoint: Endpoint) -> None:
        self.label = label
        self.own_run = ""  # the run that was made for the results, once there are any
        self.lost: MoeboxError | None = None  # the first write that failed
        self._file, self._endpoint, self._home = file, endpoint, runs_dir()
        self._named: set[Path] = set()  # samples beside the file
        self._measurements = RunMeasurements(kept_in.open_run(run, endpoint)) if run else None
        if file:
            refuse_if(not file.parent.is_dir(), f"{file.parent}: no such folder")
            check_writable(file)
            if self._samples_beside:
                check_writable(file.with_name(f"{file.stem}-{LONGEST_LOAD}.samples"), shown_as=file)
        if self._measurements:
            folder = self._measurements.run.path
            check_writable(folder / "measurements" / "new.json", shown_as=folder)
        elif not file:
            check_writable(self._home / "new", shown_as=self._home, hint=ELSEWHERE)

    def save_measurement(self, measured: "MeasuredLoad", title: str) -> Measurement:
        """One measurement's samples, and in a run its figures too; the result says where its samples are."""
        result, title = measured.result, title.replace("/", "-per-")
        samples = measured.samples.to_bytes()
        name = self._keep_in_run(
            f"{safe_name(self.label) or result.workload.kind}-{title}", result_document(result), samples
        )
        if name:
            result = replace(result, samples=f"{name}.samples")
        if self._file and self._samples_beside:
            path = self._beside(self._file, title)
            with self._noting(path):
                files.write_atomic(path, samples)
                result = replace(result, samples=path.name)
        return result

    def save_tests(self, tests: PrefillDecode) -> None:
        """The tests of --pp and --tg."""
        self.write_document(result_document(tests))
        self._keep_in_run(safe_name(self.label) or "pp-tg", result_document(tests))

    def write_document(self, whole: Document) -> None:
        """The whole document; a run has a file for each measurement."""
        if self._file:
            with self._noting(self._file):
                files.write_atomic(self._file, hide_known_keys(codec.to_json(whole)) + "\n")

    def output_flags(self, number: int) -> list[str]:
        """`-o` for the command that goes on: another file than the first, which what is measured already stays in."""
        if self._file is None:
            return []
        later = number > 1 and self._samples_beside
        return ["-o", str(self._file.with_stem(f"{self._file.stem}-{number}") if later else self._file)]

    def raise_if_lost(self) -> None:
        """Outside where not everything was kept."""
        if self.lost:
            raise self.lost

    def _keep_in_run(self, name: str, values: Document, samples: bytes | None = None) -> str:
        """The name that it got; "" where there is no run to keep it in, or it could not be written."""
        with self._noting(self._measurements.run.path if self._measurements else self._home):
            self._make_run(simulation=is_true(values, "simulation"))
            if self._measurements:
                return self._measurements.write(name, values, samples)
        return ""

    def _make_run(self, *, simulation: bool) -> None:
        """An hour's measurement must not live on the screen alone."""
        if self._file is None and self._measurements is None:
            self._measurements = RunMeasurements(Run.create(f"bench-{self._endpoint.model}", simulation=simulation))
            self._measurements.run.add_event(ServerMeasured(url=self._endpoint.base_url, model=self._endpoint.model))
            self.own_run = self._measurements.run.id

    @property
    def _samples_beside(self) -> bool:
        """Beside a pipe or a device there is no place for them."""
        return self._file is not None and not files.is_stream(self._file)

    def _beside(self, file: Path, title: str) -> Path:
        """The samples of a load, in a file of their own each time."""
        paths = (file.with_name(f"{file.stem}-{each}.samples") for each in _numbered(title))
        path = next(path for path in paths if path not in self._named)
        self._named.add(path)
        return path

    @contextlib.contextmanager
    def _noting(self, path: Path) -> Iterator[None]:
        """What cannot be written in the block ends no measurement."""
        try:
            with files.report_write_errors(path):
                yield
        except MoeboxError as problem:
            self.lost = self.lost or ExternalError(problem.message, hint=problem.hint)


def _numbered(name: str) -> Iterator[str]:
    """The name, then with a number, from 2 on."""
    return (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
