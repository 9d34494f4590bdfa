"""A recipe's `runtime.options`, which are those of `docker run`, in the words of Compose and Kubernetes.

What has no counterpart there is refused by name: a file that leaves an option out starts something else.
"""

from moebox.core import containers
from moebox.core.recipe import Recipe
from moebox.errors import BadInput
from moebox.render import quoting

# Option -> key of a Compose service, by how its value is written.
TEXTS = {
    "--shm-size": "shm_size",
    "--memory": "mem_limit",
    "-m": "mem_limit",
    "--memory-swap": "memswap_limit",
    "--memory-reservation": "mem_reservation",
    "--cpus": "cpus",
    "--cpuset-cpus": "cpuset",
    "--ipc": "ipc",
    "--runtime": "runtime",
    "--user": "user",
    "-u": "user",
    "--workdir": "working_dir",
    "-w": "working_dir",
    "--hostname": "hostname",
    "-h": "hostname",
    "--platform": "platform",
    "--restart": "restart",
}
NUMBERS = {"--pids-limit": "pids_limit", "--oom-score-adj": "oom_score_adj"}
FLAGS = {"--init": "init", "--read-only": "read_only", "--oom-kill-disable": "oom_kill_disable"}
LISTS = {
    "--cap-add": "cap_add",
    "--cap-drop": "cap_drop",
    "--security-opt": "security_opt",
    "--group-add": "group_add",
    "--label": "labels",
    "--tmpfs": "tmpfs",
    "--sysctl": "sysctls",
}
PULL = ("always", "missing", "never")
# What the pod of k8s.yaml.j2 has anyway: shared memory, the lock on it, the GPUs and the cluster's network.
POD_DEFAULTS = (
    ("--ipc", "host"),
    ("--cap-add", "IPC_LOCK"),
    ("--cap-add", "CAP_IPC_LOCK"),
    ("--gpus", "all"),
    ("--runtime", "nvidia"),
    ("--device", "nvidia.com/gpu=all"),
    ("--network", "bridge"),
    ("--net", "bridge"),
    ("--pull", "missing"),
)


def compose_keys(recipe: Recipe) -> dict[str, str]:
    """Key of the service -> its value as YAML."""
    keys: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    logging: dict[str, str] = {}
    for name, value in containers.parse_options(recipe.runtime.options):
        if name == "--log-opt":
            option, _, given = value.partition("=")
            logging[option] = given
        elif item := _item(name, value):
            lists.setdefault(item[0], []).append(item[1])
        else:
            keys |= _key(name, value)
    keys |= {key: _listed(key, items) for key, items in lists.items()}
    if logging:
        keys["logging"] = _logging(keys.get("logging", ""), logging)
    return keys


def _item(name: str, value: str) -> tuple[str, str] | None:
    """The list that an option adds to, and what it adds; None for one that is no list."""
    if name in LISTS:
        return LISTS[name], _text(value)
    if name == "--ulimit":
        return "ulimits", _ulimit(value)
    if name == "--device" and value.startswith("/dev/"):
        return "devices", _text(f"{value}:{value}")
    return None


def _key(name: str, value: str) -> dict[str, str]:
    """An option that is one key of the service."""
    if name in TEXTS:
        return {TEXTS[name]: _text(value)}
    if name in NUMBERS:
        return {NUMBERS[name]: str(int(value))}
    return {FLAGS[name]: "true"} if name in FLAGS else _single(name, value)


def _listed(key: str, items: list[str]) -> str:
    """A list as YAML; limits are a mapping."""
    text = ", ".join(items)
    return f"{{{text}}}" if key == "ulimits" else f"[{text}]"


def _logging(driver: str, options: dict[str, str]) -> str:
    """The driver with its options."""
    pairs = ", ".join(f"{option}: {_text(given)}" for option, given in options.items())
    inner = driver.removeprefix("{").removesuffix("}")
    return f"{{{inner}{', ' if inner else ''}options: {{{pairs}}}}}"


def _single(name: str, value: str) -> dict[str, str]:
    """Options whose values are not all Compose's; BadInput where it has no word for one."""
    if name == "--stop-timeout":
        return {"stop_grace_period": _text(f"{int(value)}s")}
    if name == "--log-driver":
        return {"logging": f"{{driver: {_text(value)}}}"}
    if name == "--pull" and value in PULL:
        return {"pull_policy": _text(value)}
    if name in ("--network", "--net") and value != "none":
        return {}  # the template says which
    if (name, value) in (("--gpus", "all"), ("--device", "nvidia.com/gpu=all")):
        return {}  # asked for in `deploy`
    raise _refused("compose", name, value)


def shared_memory_size(recipe: Recipe) -> str:
    """How much of a pod's memory may be shared, as Kubernetes writes sizes; BadInput for what a pod has no word for."""
    size = "32Gi"
    for name, value in containers.parse_options(recipe.runtime.options):
        if name == "--shm-size":
            size = _quantity(value)
        elif (name, value) not in POD_DEFAULTS:
            raise _refused("k8s", name, value)
    return size


def _ulimit(value: str) -> str:
    name, _, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    return f"{name}: {int(soft)}" if not hard else f"{name}: {{soft: {int(soft)}, hard: {int(hard)}}}"


def _quantity(size: str) -> str:
    """docker's 64g, in powers of two, as 64Gi."""
    digits = size.rstrip("bkmgtBKMGT")
    unit = size[len(digits) :].lower().removesuffix("b")
    return digits + (f"{unit.upper()}i" if unit else "")


def _text(value: str) -> str:
    return quoting.quote_yaml(quoting.escape_compose(value))


def _refused(form: str, name: str, value: str) -> BadInput:
    given = f"{name}={value}" if value else name
    return BadInput(
        f"runtime.options: {form} has no counterpart of {given}",
        hint="leave it out of the recipe, or render it as docker, podman, script or systemd",
    )
