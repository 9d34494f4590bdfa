"""Several models behind one address: their file (docs/living.md), which fit together, llama-swap's configuration."""

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from moebox import codec
from moebox import yaml_text as yaml
from moebox.core.deployment import Deployment
from moebox.core.traits import LAST_PORT
from moebox.engines import build_launch, memory_budget
from moebox.engines.assemble import LOOPBACK
from moebox.engines.budget import ram_overhead
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.loose import Document
from moebox.planner.kv_tiers import DISK_RATE, LINK_SHARE, RATE_RANGE
from moebox.planner.speed.links import pcie_rate

Sleep = Literal["auto", "no", "1", "2"]
# GPU memory of an engine that sleeps: CUDA context, NCCL and graphs stay. Not measured; vLLM's log states it.
ASLEEP_BYTES = 3 * 2**30
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")  # used in Kubernetes names and file names
NAME_HINT = "use lower-case letters, digits and dashes, 42 at most"
STARTUP_S = 7200  # a first start loads hundreds of gigabytes and compiles
START_S = 40.0  # of an engine besides reading its weights: imports, graphs, the first chat; from 10 s to minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """One user: the variable that holds the key, and a fair share."""

    key_env: str
    parallel: int = 4  # requests at a time
    tokens_per_minute: int = 0  # prompt and output; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    recipe: str  # file relative to this one, or name of a shipped recipe
    preload: bool = False  # started at once
    alone: bool = False  # it never serves beside another, even if both fit
    ttl_s: float = 0.0  # seconds without a request after which it is put away; 0: never
    sleep: Sleep = "auto"  # how it is put away: asleep with weights in RAM (1), without (2), or stopped (no)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFile:
    format: int = 1
    name: str = "models"
    host: str = "127.0.0.1"
    port: int = 8080
    wait_s: float = 600.0  # that a request waits for its model before it gets 503
    models: dict[str, ModelEntry] = field(default_factory=dict)
    users: dict[str, KeyLimits] = field(default_factory=dict)  # none: no key is asked for
    prices: dict[str, float] = field(default_factory=dict)  # kwh, and hour of the box; for what each user costs
    keep_traces: bool = False  # of each request: time, lengths and salted block numbers, never its text or user


def check_users(where: str, users: dict[str, KeyLimits]) -> None:
    """Raise BadInput for users without a key, with the same one, or with a limit of nothing."""
    for name, user in users.items():
        refuse_if(not NAME.fullmatch(name), f"{where}.{name}: {NAME_HINT}")
        refuse_if(not user.key_env, f"{where}.{name}: name the variable that holds the key in key_env")
        refuse_out_of_range(f"{where}.{name}.parallel", user.parallel, 1, 1024)
        refuse_if(user.tokens_per_minute < 0, f"{where}.{name}.tokens_per_minute is not negative")
    twice = next((name for name, times in Counter(user.key_env for user in users.values()).items() if times > 1), "")
    refuse_if(twice, f"{where}: two users have the key in {twice}", hint="each user has a key of its own")


def read_models(path: Path) -> ModelsFile:
    found = codec.read_toml(ModelsFile, path)
    refuse_if(found.format != 1, f"{path}: format {found.format} is not 1, the one that this moebox reads")
    refuse_if(not found.models, f"{path}: names no model", hint='[models.NAME] with recipe = "…"')
    refuse_out_of_range(f"{path}: port", found.port, 0, LAST_PORT)
    open_to_all = found.host not in LOOPBACK and not found.users
    refuse_if(open_to_all, f"{path}: at {found.host} others could use it", hint="[users.NAME] with a key for each")
    refuse_if(not 1 <= found.wait_s <= 86_400, f"{path}: wait_s is seconds from 1 to a day")
    for name, entry in found.models.items():
        refuse_if(not NAME.fullmatch(name), f"{path}: models.{name}: {NAME_HINT}")
        refuse_if(entry.ttl_s < 0, f"{path}: models.{name}.ttl_s is not negative")
    check_users(f"{path}: users", found.users)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """What one model takes on the box: bytes by device while it serves, and while it is put away."""

    awake: Mapping[str, int] | None  # None: unknown, so it runs alone
    asleep: Mapping[str, int] = field(default_factory=dict)
    weights: int = 0
    start_s: float = 0.0  # forecast of a cold start, 0 if unknown
    resume_s: float = 0.0
    sleep: Literal["no", "1", "2"] = "no"

    def swap_s(self, *, asleep: bool) -> tuple[float, float, float]:
        """Forecast seconds until it serves, and their range; from RAM no faster than the links to the GPUs."""
        seconds, (slow, fast) = self.resume_s if asleep else self.start_s, RATE_RANGE
        return seconds, seconds / (1 / LINK_SHARE if asleep and self.sleep == "1" else fast), seconds / slow


def model_needs(deployment: Deployment, entry: ModelEntry) -> ModelNeeds:
    """Return what a model takes; nothing is known of one without a box or with unknown weights."""
    recipe, box, engine = deployment.recipe, deployment.box, deployment.engine
    level: Literal["no", "1", "2"] = "1" if entry.sleep == "auto" else entry.sleep
    level = level if level in engine.sleep_levels else "no"
    if box is None or not deployment.is_known:
        return ModelNeeds(awake=None, sleep="no" if entry.sleep == "auto" else level)
    memory, share = memory_budget(deployment), recipe.memory_utilization
    awake, used = {}, {f"gpu{index}" for index in recipe.used_gpus(box)}
    for device in memory.devices:
        if device.device in used or device.weights_total or device.kv:
            own = device.weights_total + device.draft + device.kv + device.activations
            awake[device.device] = int(device.total * share) if share and device.device in used else own
    weights = sum(device.weights_total + device.draft for device in memory.devices)
    gpu = deployment.smallest_gpu
    link = pcie_rate(gpu) * max(recipe.parallel.gpu_count, 1) * LINK_SHARE if gpu else DISK_RATE
    asleep = {name: ASLEEP_BYTES for name in awake if name != "ram"}
    if level == "1":
        asleep["ram"] = weights
    return ModelNeeds(
        awake=None if entry.alone else awake,
        asleep=asleep if level != "no" else {},
        weights=weights,
        start_s=START_S + weights / DISK_RATE,
        resume_s=weights / (link if level == "1" else DISK_RATE),
        sleep=level,
    )


def fit_together(needs: Mapping[str, ModelNeeds], awake: Sequence[str], room: Mapping[str, int]) -> bool:
    """Whether these models serve at once while all others are put away; `room` is bytes by device."""
    if any(needs[name].awake is None for name in awake):
        return len(awake) < 2
    for device, bytes_there in room.items():
        held = sum((needs[name].awake or {}).get(device, 0) for name in awake)
        held += sum(each.asleep.get(device, 0) for name, each in needs.items() if name not in awake)
        if held > bytes_there:
            return False
    return True


def device_room(deployments: Sequence[Deployment]) -> dict[str, int]:
    """Bytes that engines may use on each device of the box; RAM only if it is known."""
    box = next((deployment.box for deployment in deployments if deployment.box), None)
    if box is None:
        return {}
    room = {f"gpu{index}": gpu.memory for index, gpu in enumerate(box.all_gpus)}
    return room | ({"ram": box.ram - ram_overhead(box)} if box.ram and not box.has_unified_memory else {})


def plan_sleep(needs: dict[str, ModelNeeds], entries: Mapping[str, ModelEntry], room: Mapping[str, int]) -> None:
    """Let models of `auto` sleep only if the RAM holds the weights of all that do; the largest are stopped first."""
    asked = [name for name, entry in entries.items() if entry.sleep == "auto" and needs[name].sleep != "no"]
    for name in sorted(asked, key=lambda each: -needs[each].weights):
        if all(fit_together(needs, [other], room) for other in needs):
            return
        needs[name] = replace(needs[name], sleep="no", asleep={})


def largest_sets(needs: Mapping[str, ModelNeeds], room: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the sets of models that fit together and that no other such set contains."""
    found: list[tuple[str, ...]] = []
    for size in range(min(len(needs), 8), 0, -1):
        for names in itertools.combinations(needs, size):
            if not any(set(names) <= set(larger) for larger in found) and fit_together(needs, names, room):
                found.append(names)
    return found


def llama_swap_config(file: ModelsFile, deployments: Mapping[str, Deployment], sets: Sequence[tuple[str, ...]]) -> str:
    """Return llama-swap's YAML for these models. It stops what it puts away: it knows no sleep."""
    models: Document = {}
    for place, (name, planned) in enumerate(deployments.items(), 1):
        recipe = planned.recipe.with_port(file.port + place)
        deployment, entry = planned.with_recipe(recipe), file.models[name]
        launch = build_launch(deployment)
        models[name] = {
            "cmd": shlex.join(launch.argv),
            "env": [f"{key}={value}" for key, value in launch.env.items()],
            "proxy": f"http://{recipe.listen.host}:{recipe.listen.port}",
            "checkEndpoint": deployment.engine.health_path,
            "useModelName": recipe.served_name,
            **({"ttl": int(entry.ttl_s)} if entry.ttl_s else {}),
        }
    short = {name: f"m{place}" for place, name in enumerate(deployments)}
    config: Document = {"healthCheckTimeout": STARTUP_S, "models": models}
    config["matrix"] = {
        "vars": {letter: name for name, letter in short.items()},
        "sets": {f"set{place}": " & ".join(short[name] for name in names) for place, names in enumerate(sets)},
    }
    config["hooks"] = {"on_startup": {"preload": [name for name, entry in file.models.items() if entry.preload]}}
    if file.users:
        config["apiKeys"] = [f"${{env.{user.key_env}}}" for user in file.users.values()]
    return yaml.dump_yaml(config)
