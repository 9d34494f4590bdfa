"""Translate a recipe's `runtime.options`, which are those of `docker run`, for Compose and Kubernetes.

An option without a counterpart is refused by name: a file that left it out would start something else.
"""

from collections.abc import Callable

from moebox.core import validation
from moebox.core.catalogue import load_table
from moebox.core.recipe import Recipe
from moebox.errors import BadInput
from moebox.render import quoting

# Option -> key of a Compose service.
_TABLE = load_table("compose_options")
TEXTS, NUMBERS, FLAGS, LISTS = (dict[str, str](_TABLE[kind]) for kind in ("texts", "numbers", "flags", "lists"))
PULL = ("always", "missing", "never")
IN_TEMPLATE = (("--gpus", "all"), ("--device", "nvidia.com/gpu=all"))  # as is the network
POD_DEFAULTS = tuple(map(tuple, _TABLE["pod_defaults"]))  # what the pod of k8s.yaml.j2 has without an option


def _yaml_text(value: str) -> str:
    return quoting.quote_yaml(quoting.escape_compose(value))


# Option that may be given once -> key of a Compose service, and how its value is written.
SINGLE: dict[str, tuple[str, Callable[[str], str]]] = {
    **{option: (key, _yaml_text) for option, key in TEXTS.items()},
    **{option: (key, lambda value: str(int(value))) for option, key in NUMBERS.items()},
    **{option: (key, lambda value: "true") for option, key in FLAGS.items()},
    "--stop-timeout": ("stop_grace_period", lambda value: _yaml_text(f"{int(value)}s")),
    "--log-driver": ("logging", lambda value: f"{{driver: {_yaml_text(value)}}}"),
}


def compose_keys(recipe: Recipe) -> dict[str, str]:
    """Return the keys of the Compose service that the options set, with their values as YAML.

    Raise BadInput for an option without a counterpart.
    """
    keys: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    log_options: dict[str, str] = {}
    for name, value in validation.parse_options(recipe.runtime.options):
        if name in LISTS:
            lists.setdefault(LISTS[name], []).append(_yaml_text(value))
        elif name == "--ulimit":
            kind, _, limits = value.partition("=")
            soft, _, hard = limits.partition(":")
            limit = f"{{soft: {int(soft)}, hard: {int(hard)}}}" if hard else f"{int(soft)}"
            lists.setdefault("ulimits", []).append(f"{kind}: {limit}")
        elif name == "--device" and value.startswith("/dev/"):
            lists.setdefault("devices", []).append(_yaml_text(f"{value}:{value}"))
        elif name == "--log-opt":
            option, _, given = value.partition("=")
            log_options[option] = _yaml_text(given)
        elif name in SINGLE:
            key, write = SINGLE[name]
            keys[key] = write(value)
        elif name == "--pull" and value in PULL:
            keys["pull_policy"] = _yaml_text(value)
        elif (name, value) not in IN_TEMPLATE and (name not in ("--network", "--net") or value == "none"):
            raise _no_counterpart("compose", name, value)
    for key, items in lists.items():
        text = ", ".join(items)
        keys[key] = f"{{{text}}}" if key == "ulimits" else f"[{text}]"
    if log_options:
        driver = keys.get("logging", "").removeprefix("{").removesuffix("}")
        pairs = ", ".join(f"{option}: {text}" for option, text in log_options.items())
        keys["logging"] = f"{{{driver}{', ' if driver else ''}options: {{{pairs}}}}}"
    return keys


def shared_memory_size(recipe: Recipe) -> str:
    """Return the size of a pod's shared memory as Kubernetes writes it; BadInput for an option without counterpart."""
    size = "32Gi"
    for name, value in validation.parse_options(recipe.runtime.options):
        if name == "--shm-size":  # docker's 64g is in powers of two: 64Gi
            digits = value.rstrip("bkmgtBKMGT")
            unit = value[len(digits) :].lower().removesuffix("b")
            size = digits + (f"{unit.upper()}i" if unit else "")
        elif (name, value) not in POD_DEFAULTS:
            raise _no_counterpart("k8s", name, value)
    return size


def _no_counterpart(file_format: str, name: str, value: str) -> BadInput:
    given = f"{name}={value}" if value else name
    return BadInput(
        f"runtime.options: {file_format} has no counterpart of {given}",
        hint="remove it from the recipe, or render it as docker, podman, script or systemd",
    )
