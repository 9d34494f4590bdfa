"""`moebox bench import`: results of other tools beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.bench_keep import Measurements
from moebox.cli.output import answer, people
from moebox.files import report_write_errors
from moebox.loose import Document
from moebox.store.run import Run, safe_name


def import_(
    files: list[Path],
    /,
    *,
    run: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Read results of vllm bench serve, sglang.bench_serving, guidellm, aiperf or llama-bench.

    Args:
        files: The files they wrote (JSON or JSON lines).
        run: Keep them in this run's measurements, so that its report shows them.
        json: Print JSON.
    """
    from moebox.bench.importers import load

    results = [result for path in files for result in load(path)]
    measurements = Measurements(Run.open_shared(run)) if run else None
    answer(json, {"kind": "sweep", "results": results}, lambda: _show(results))
    if measurements:
        _keep(results, measurements)
    return 0


def _keep(results: Sequence[Document], measurements: "Measurements") -> None:
    """In the run's measurements, so that its report shows them."""
    with report_write_errors(measurements.run.path):
        for place, result in enumerate(results):
            measurements.write(f"{safe_name(Path(str(result['source'])).stem) or 'imported'}-{place}", result)


def _show(results: Sequence[Document]) -> None:
    """Serving results in one table, prefill and decode alone in one each."""
    from moebox.cli.bench_view import show, show_rows

    console = people()
    serving = [result for result in results if result.get("kind") == "serving"]
    if serving:
        console.print(", ".join(dict.fromkeys(str(result["tool"]) for result in serving)), style="dim")
        show(console, serving)
    for result in results:
        if result.get("kind") == "pp-tg":
            console.print(f"{result['tool']} {result.get('model_id', '')}", style="dim")
            show_rows(console, result)
