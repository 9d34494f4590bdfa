"""Recipes as files that stand alone: scripts, container commands, Compose, Kubernetes, Slurm and systemd.

Nothing that is rendered needs moebox at run time, and no secret is ever written into it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe, RuntimeKind
from moebox.engines import check_recipe
from moebox.errors import BadInput
from moebox.render import cluster, grafana, kustomize, machine, quoting
from moebox.render.context import Context
from moebox.render.pieces import refuse_unrenderable

LaunchFormat = Literal["script", "docker", "podman", "compose", "k8s", "slurm", "systemd"]
LAUNCH_FORMATS: tuple[LaunchFormat, ...] = get_args(LaunchFormat)
OtherFormat = Literal[
    "kustomize", "grafana", "prometheus"
]  # a folder, and what watches the engine instead of starting it
EXECUTABLE_FORMATS: tuple[LaunchFormat, ...] = ("script", "docker", "podman", "slurm")
CONTEXTS: dict[LaunchFormat, Callable[[Deployment], Context]] = {
    "script": machine.script_context,
    "docker": machine.script_context,
    "podman": machine.script_context,
    "compose": machine.compose_context,
    "k8s": cluster.k8s_context,
    "slurm": cluster.slurm_context,
    "systemd": machine.systemd_context,
}


def render(deployment: Deployment, file_format: LaunchFormat) -> str:
    """The text of the file."""
    check_recipe(deployment)
    refuse_unrenderable(deployment.recipe)
    deployment = deployment.with_recipe(_with_runtime(deployment.recipe, file_format))
    check_recipe(deployment)
    _refuse_workers(deployment)
    context = CONTEXTS[file_format](deployment)
    return str(_load_template(context.pop("template")).render(**context))


def _refuse_workers(deployment: Deployment) -> None:
    """Nodes that run another program than the first have no file that starts them all."""
    if deployment.recipe.parallel.nodes > 1 and deployment.engine.worker_programs:
        raise BadInput(
            f"{deployment.engine.title} over several nodes is not rendered: "
            f"they run {deployment.engine.worker_programs[0]}",
            hint="`moebox up RECIPE --hosts FILE` or `--slurm` starts it; `--hosts FILE --dry-run` prints the commands",
        )


def render_files(deployment: Deployment, file_format: LaunchFormat | OtherFormat) -> dict[str, str]:
    """Every file of a form; "" is the name of one that the person names."""
    if file_format == "grafana":
        return {"": grafana.dashboard_json(deployment)}
    if file_format == "prometheus":
        return {"": grafana.alert_rules_yaml(deployment)}
    if file_format == "kustomize":
        return kustomize.kustomize_files(deployment, render(deployment, "k8s"))
    return {"": render(deployment, file_format)}


def _with_runtime(recipe: Recipe, form: LaunchFormat) -> Recipe:
    """`--as docker` and the like decide what it runs in; a script and a unit keep what the recipe says."""
    kinds: dict[str, RuntimeKind] = {"docker": "docker", "podman": "podman", "compose": "docker", "k8s": "docker"}
    kind = kinds.get(form, recipe.runtime.kind)
    return dataclasses.replace(recipe, runtime=dataclasses.replace(recipe.runtime, kind=kind))


@functools.cache
def _load_template(name: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (shell and YAML, not HTML: each value is quoted by its own rule)
        loader=PackageLoader("moebox.render", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = quoting.quote_yaml
    environment.filters["slug"] = quoting.make_slug
    environment.filters["bash"] = quoting.quote_bash
    environment.filters["quoted"] = quoting.escape_bash
    environment.filters["assigned"] = lambda variable: quoting.bash_default(variable.name, variable.default)
    environment.filters["unit"] = quoting.escape_unit_value
    environment.filters["unit_text"] = quoting.escape_unit_text
    return environment.get_template(name)
