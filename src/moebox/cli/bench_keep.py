"""Where the results and samples of `moebox bench` are kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebox.errors import BadInput

if TYPE_CHECKING:
    from moebox.bench.measure import Measurement


class Keeper:
    """Where results and samples are kept, if anywhere."""

    def __init__(self, file: Path | None, run: str, label: str) -> None:
        from moebox.store import Run

        self.label = label
        self._file = file
        self._run = Run.open(run) if run else None
        if file and not file.parent.is_dir():
            raise BadInput(f"{file.parent}: no such folder")

    def keep(self, made: "Measurement", title: str) -> None:
        """One measurement's samples, and in a run its figures too."""
        title = title.replace("/", "-per-")
        made.result["samples"] = None
        if self._file:
            path = self._file.with_name(f"{self._file.stem}-{title}.samples")
            path.write_bytes(made.samples.pack())
            made.result["samples"] = path.name
        if self._run:
            name = f"{self.label or made.result['workload']['kind']}-{title}"
            made.result["samples"] = f"{name}.samples"
            self._run.write(f"measurements/{name}.samples", made.samples.pack())
            self._run.write_json(f"measurements/{name}.json", made.result)

    def write(self, document: dict[str, Any]) -> None:
        """The whole document; in a run, only what has no file of its own."""
        from moebox import codec

        if self._file:
            self._file.write_text(codec.to_json(document) + "\n", encoding="utf-8")
        if self._run and document["kind"] == "pp-tg":
            self._run.write_json(f"measurements/{self.label or 'pp-tg'}.json", document)
