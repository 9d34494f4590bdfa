"""Where the results and samples of `moebox bench` are kept."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebox import codec, files
from moebox.core.result import Measurement, PrefillDecode, document
from moebox.errors import BadInput

if TYPE_CHECKING:
    from moebox.bench.measure import Measured


class Keeper:
    """Where results and samples are kept: a file, a run that is there, or else a run of their own."""

    def __init__(self, file: Path | None, run: str, label: str, *, model: str) -> None:
        from moebox.store import Run

        self.label = label
        self._file, self._model = file, model
        self._run = Run.open(run) if run else None
        self.own_run = ""  # the run that was made for the results, once there are any
        if file and not file.parent.is_dir():
            raise BadInput(f"{file.parent}: no such folder")

    def keep(self, measured: "Measured", title: str) -> Measurement:
        """One measurement's samples, and in a run its figures too; the result says where its samples are."""
        result, title = measured.result, title.replace("/", "-per-")
        self._make_run()
        if self._file:
            path = self._file.with_name(f"{self._file.stem}-{title}.samples")
            files.write_atomic(path, measured.samples.pack())
            result = replace(result, samples=path.name)
        if self._run:
            name = f"{self.label or result.workload.kind}-{title}"
            result = replace(result, samples=f"{name}.samples")
            self._run.write(f"measurements/{name}.samples", measured.samples.pack())
            self._run.write_json(f"measurements/{name}.json", document(result))
        return result

    def keep_tests(self, tests: PrefillDecode) -> None:
        """The tests of --pp and --tg."""
        self.write(document(tests))
        self._make_run()
        if self._run:
            self._run.write_json(f"measurements/{self.label or 'pp-tg'}.json", document(tests))

    def write(self, whole: dict[str, Any]) -> None:
        """The whole document; a run has a file for each measurement."""
        if self._file:
            files.write_atomic(self._file, codec.to_json(whole) + "\n")

    def _make_run(self) -> None:
        """An hour's measurement must not live on the screen alone."""
        from moebox.store import Run

        if self._file is None and self._run is None:
            self._run = Run.create(f"bench-{self._model}")
            self.own_run = self._run.id
