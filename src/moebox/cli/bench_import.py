"""`moebox bench import`: results of other tools beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.output import answer, people
from moebox.loose import Document


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
    if run:
        _keep(results, run)
    answer(json, {"kind": "sweep", "results": results}, lambda: _show(results))
    return 0


def _keep(results: Sequence[Document], run: str) -> None:
    """In the run's measurements, so that its report shows them."""
    from moebox.store import Run

    folder = Run.open(run)
    for place, result in enumerate(results):
        stem = Path(str(result["source"])).stem.replace(" ", "-")
        folder.write_json(f"measurements/{stem}-{place}.json", result)


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
