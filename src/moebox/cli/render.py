"""`moebox render`: write a recipe as a file that runs without moebox."""

import sys
from dataclasses import replace
from typing import Annotated, Literal

from cyclopts import Parameter

from moebox import api
from moebox import render as rendering
from moebox.checkpoint import deploy
from moebox.cli.flags import AsJson, OutputPath, Switch
from moebox.cli.output import print_lines, print_note, print_result, write_file
from moebox.cli.up import known_problems, note_missing_key
from moebox.engines.assemble import LOOPBACK
from moebox.flows import recipes
from moebox.render.cluster import ALL_ADDRESSES


def render(
    recipe: str,
    *,
    file_format: Annotated[Literal[rendering.LaunchFormat, rendering.OtherFormat], Parameter(name="--as")] = "script",
    output: OutputPath = None,
    force: Switch = False,
    json: AsJson = False,
) -> int:
    """Write RECIPE as a file that runs without moebox.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox (kimi-k26-vllm, kimi-k26-community, …).
        file_format: What to write; kustomize is a folder, grafana a dashboard, prometheus alert rules.
        output: The file or folder to write. Default: print it.
        force: Write it although it does not fit the box it was planned for.
    """
    deployment = deploy(recipes.load_recipe(recipe))
    if not force:
        recipes.refuse_misfit(deployment)
    files = api.render(deployment.recipe, file_format)
    warnings = known_problems(deployment)
    listen = deployment.recipe.listen
    if file_format == "slurm":  # it listens on all addresses, since its users are on other machines
        listen = replace(listen, host=ALL_ADDRESSES)
    if listen.host not in LOOPBACK:
        note_missing_key(listen)
    if output:
        for name, text in files.items():
            executable = file_format in rendering.EXECUTABLE_FORMATS
            write_file(output / name if name else output, text, executable=executable)
        print_note(f"wrote {output}")

    def show() -> None:
        for name, text in () if output else files.items():
            sys.stdout.write(f"# ==> {name} <==\n{text}" if name else text)
        print_lines((f"{warning.severity}: {warning.text_with_remedy}" for warning in warnings), stderr=True)

    texts = {"text": files[""]} if "" in files else {"files": files}
    about = {"form": file_format, **texts, "output": str(output) if output else None, "warnings": warnings}
    return print_result(json, about, show)
