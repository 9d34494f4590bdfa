"""`moebox render`: a recipe as a file that stands alone."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from moebox import render as rendering
from moebox.checkpoint import deploy
from moebox.cli.output import print_result, write_file
from moebox.core.plan import PlanWarning
from moebox.engines import find_refusals
from moebox.escape import printable_line
from moebox.flows import recipes


def render(
    recipe: str,
    *,
    form: Annotated[Literal[rendering.LaunchFormat, rendering.OtherFormat], Parameter(name="--as")] = "script",
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write RECIPE as a file that needs no moebox to run.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox (kimi-k26-vllm, kimi-k26-community, …).
        form: What to write; kustomize is a folder, grafana a dashboard, prometheus alerting rules.
        output: Where to write it; otherwise it is printed.
        json: Print the text with its warnings as one JSON document.
    """
    asked = deploy(recipes.load_recipe(recipe))
    files = rendering.render_files(asked, form)
    warnings = find_refusals(asked)
    if output:
        for name, text in files.items():
            write_file(output / name if name else output, text, executable=form in rendering.EXECUTABLE_FORMATS)
    shown = {"text": files[""]} if "" in files else {"files": files}
    written = {"form": form, **shown, "output": str(output) if output else None, "warnings": warnings}
    print_result(json, written, lambda: _show({} if output else files, warnings))
    return 0


def _show(files: Mapping[str, str], warnings: Iterable[PlanWarning]) -> None:
    """The files on stdout, and what to know of them beside it."""
    for name, text in files.items():
        sys.stdout.write(f"# ==> {name} <==\n{text}" if name else text)
    for warning in warnings:
        remedy = f" ({warning.remedy})" if warning.remedy else ""
        print(printable_line(f"{warning.severity}: {warning.text}{remedy}"), file=sys.stderr)
