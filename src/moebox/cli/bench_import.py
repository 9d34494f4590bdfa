"""`moebox bench import`: results of other tools beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.bench_keep import RunMeasurements
from moebox.cli.output import print_result, stdout_console
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
    from moebox.bench.importers import load_results

    results = [result for path in files for result in load_results(path)]
    measurements = RunMeasurements(Run.open_shared(run)) if run else None
    print_result(json, {"kind": "sweep", "results": results}, lambda: _show(results))
    if measurements:
        _keep(results, measurements)
    return 0


def _keep(results: Sequence[Document], measurements: "RunMeasurements") -> None:
    """In the run's measurements, so that its report shows them."""
    with report_write_errors(measurements.run.path):
        for place, result in enumerate(results):
            measurements.write(f"{safe_name(Path(str(result['source'])).stem) or 'imported'}-{place}", result)


def _show(results: Sequence[Document]) -> None:
    """Serving results in one table, prefill and decode alone in one each."""
    from moebox.cli.bench_view import print_results, print_test_rows

    console = stdout_console()
    serving = [result for result in results if result.get("kind") == "serving"]
    if serving:
        console.print(", ".join(dict.fromkeys(str(result["tool"]) for result in serving)), style="dim")
        print_results(console, serving)
    for result in results:
        if result.get("kind") == "pp-tg":
            console.print(f"{result['tool']} {result.get('model_id', '')}", style="dim")
            print_test_rows(console, result)
