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
from moebox.render.pieces import refuse_unfit

Form = Literal["script", "docker", "podman", "compose", "k8s", "slurm", "systemd"]
FORMS: tuple[Form, ...] = get_args(Form)
Other = Literal["kustomize", "grafana", "prometheus"]  # a folder, and what watches the engine instead of starting it
EXECUTABLE: tuple[Form, ...] = ("script", "docker", "podman", "slurm")
CONTEXTS: dict[Form, Callable[[Deployment], Context]] = {
    "script": machine.script,
    "docker": machine.script,
    "podman": machine.script,
    "compose": machine.compose,
    "k8s": cluster.k8s,
    "slurm": cluster.slurm,
    "systemd": machine.systemd,
}


def render(deployment: Deployment, form: Form) -> str:
    """The text of the file."""
    check_recipe(deployment)
    refuse_unfit(deployment.recipe)
    deployment = deployment.with_recipe(_as_kind(deployment.recipe, form))
    check_recipe(deployment)
    _refuse_workers(deployment)
    context = CONTEXTS[form](deployment)
    return str(_template(context.pop("template")).render(**context))


def _refuse_workers(deployment: Deployment) -> None:
    """Nodes that run another program than the first have no file that starts them all."""
    if deployment.recipe.parallel.nodes > 1 and deployment.engine.worker_programs:
        raise BadInput(
            f"{deployment.engine.title} over several nodes is not rendered: they run {deployment.engine.worker_programs[0]}",
            hint="`moebox up RECIPE --hosts FILE` or `--slurm` starts it; `--hosts FILE --dry-run` prints the commands",
        )


def render_files(deployment: Deployment, form: Form | Other) -> dict[str, str]:
    """Every file of a form; "" is the name of one that the person names."""
    if form == "grafana":
        return {"": grafana.grafana(deployment)}
    if form == "prometheus":
        return {"": grafana.prometheus(deployment)}
    if form == "kustomize":
        return kustomize.base(deployment, render(deployment, "k8s"))
    return {"": render(deployment, form)}


def _as_kind(recipe: Recipe, form: Form) -> Recipe:
    """`--as docker` and the like decide what it runs in; a script and a unit keep what the recipe says."""
    kinds: dict[str, RuntimeKind] = {"docker": "docker", "podman": "podman", "compose": "docker", "k8s": "docker"}
    kind = kinds.get(form, recipe.runtime.kind)
    return dataclasses.replace(recipe, runtime=dataclasses.replace(recipe.runtime, kind=kind))


@functools.cache
def _template(name: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (shell and YAML, not HTML: each value is quoted by its own rule)
        loader=PackageLoader("moebox.render", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = quoting.yaml
    environment.filters["slug"] = quoting.slug
    environment.filters["bash"] = quoting.bash
    environment.filters["quoted"] = quoting.inside_quotes
    environment.filters["assigned"] = lambda variable: quoting.assigned(variable.name, variable.default)
    environment.filters["unit"] = quoting.unit_value
    environment.filters["unit_text"] = quoting.unit_text
    return environment.get_template(name)
