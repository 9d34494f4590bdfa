"""Recipes as files that run without moebox: scripts, container commands, Compose, Kubernetes, Slurm and systemd.

No secret is ever written into a file.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from moebox.core.deployment import Deployment
from moebox.core.recipe import RuntimeKind
from moebox.engines import check_recipe, require_weights_file
from moebox.errors import BadInput
from moebox.render import cluster, grafana, machine, quoting
from moebox.render.pieces import Context, refuse_unrenderable, unit_argument
from moebox.yaml_text import dump_kustomization, scalar_yaml

LaunchFormat = Literal["script", "docker", "podman", "compose", "k8s", "slurm", "systemd"]
LAUNCH_FORMATS: tuple[LaunchFormat, ...] = get_args(LaunchFormat)
OtherFormat = Literal["kustomize", "grafana", "prometheus"]  # a folder, and files that monitor the engine
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
# The runtime that a format implies; a script, a job and a unit keep the recipe's.
RUNTIMES: dict[str, RuntimeKind] = {"docker": "docker", "podman": "podman", "compose": "docker", "k8s": "docker"}


def render(deployment: Deployment, file_format: LaunchFormat) -> str:
    check_recipe(deployment)
    refuse_unrenderable(deployment.recipe)
    runtime = deployment.recipe.runtime
    runtime = dataclasses.replace(runtime, kind=RUNTIMES.get(file_format, runtime.kind))
    deployment = deployment.with_recipe(dataclasses.replace(deployment.recipe, runtime=runtime))
    check_recipe(deployment)
    require_weights_file(deployment)
    programs = deployment.engine.worker_programs
    if deployment.recipe.parallel.nodes > 1 and programs:
        raise BadInput(
            f"{deployment.engine.title} over several nodes is not rendered: the other nodes run {programs[0]}",
            hint="`moebox up RECIPE --hosts FILE` or `--slurm` starts it; `--hosts FILE --dry-run` prints the commands",
        )
    return render_context(CONTEXTS[file_format](deployment))


def render_service_unit(deployment: Deployment, command: Sequence[str], *, system: bool) -> str:
    """Return a systemd unit of this user or the system that keeps an engine up by `command`."""
    check_recipe(deployment)
    weights = deployment.recipe.checkpoint
    return str(
        load_template("service.service.j2").render(
            recipe=deployment.recipe,
            command=[*map(quoting.quote_unit_word, command)],
            mounts=[quoting.quote_unit_word(weights)] if weights.startswith("/") else [],
            system=system,
        )
    )


def render_files(deployment: Deployment, file_format: LaunchFormat | OtherFormat) -> dict[str, str]:
    """Return every file of a format by name; a single file has the name ""."""
    if file_format == "grafana":
        return {"": render_context(grafana.dashboard_context(deployment))}
    if file_format == "prometheus":
        return {"": render_context(grafana.alerts_context(deployment))}
    if file_format == "kustomize":
        monitoring = render_context(grafana.alerts_context(deployment) | {"template": "monitoring.yaml.j2"})
        files = cluster.split_objects(render(deployment, "k8s")) | {"monitoring.yaml": monitoring}
        return {"kustomization.yaml": dump_kustomization(files, quoting.make_slug(deployment.recipe.name)), **files}
    return {"": render(deployment, file_format)}


def render_context(context: Context) -> str:
    """Fill the template that a context names."""
    return str(load_template(str(context["template"])).render(**context))


@functools.cache
def load_template(name: str) -> Any:
    """Load a template of a launch file; each value is quoted by the filter of its own rule."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (shell and YAML, not HTML: each value is quoted by its own rule)
        loader=PackageLoader("moebox.render", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = quoting.quote_yaml
    environment.filters["scalar"] = scalar_yaml
    environment.filters["slug"] = quoting.make_slug
    environment.filters["bash"] = quoting.quote_bash
    environment.filters["quoted"] = quoting.escape_bash
    environment.filters["assigned"] = lambda variable: quoting.bash_default(variable.name, variable.default)
    environment.filters["unit"] = quoting.escape_unit_value
    environment.filters["unit_word"] = lambda text: unit_argument((text,))
    environment.filters["unit_text"] = lambda text: str(text).replace("\\", "\\\\").replace("%", "%%")
    return environment.get_template(name)
