"""Settings that `moebox tune` may change: every engine's folder has them with their values in tunables.toml."""

from dataclasses import dataclass
from typing import Literal

from moebox.core import registry
from moebox.core.catalogue import package_table
from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag
from moebox.engines.engine import load_engine

Need = Literal["gpu", "cpu", "several-gpus", "moe", "mla", "no-mla", "hybrid", "draft", "ep", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """One setting: its path in a recipe, the values to try, and what it changes."""

    path: str
    values: tuple[Flag, ...]
    why: str
    needs: tuple[Need, ...] = ()  # "reference": may change the answers, so only with a quality limit
    share_of: Literal["", "cores", "gpu-experts"] = ""  # the values are shares of what the box has or holds


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableTable:
    extends: str = ""  # package whose settings come first
    setting: tuple[Tunable, ...] = ()


def load_tunables(engine: str) -> tuple[Tunable, ...]:
    """The settings that an engine declares; none if an engine of another package has no table."""
    table = package_table(TunableTable, registry.find_engine(engine).package, "tunables")
    settings = table.setting
    while table.extends:
        table = package_table(TunableTable, table.extends, "tunables")
        settings = (*table.setting, *settings)
    return settings


def tunable_values(tunable: Tunable, deployment: Deployment, *, has_reference: bool) -> tuple[Flag, ...]:
    """The values of a setting that make sense for a model on its box; empty if it does not apply."""
    recipe, box, model = deployment.recipe, deployment.box, deployment.known_model
    parallel = recipe.parallel
    met: dict[Need, bool] = {
        "gpu": bool(box and box.gpus),
        "cpu": recipe.hybrid is not None or not (box and box.gpus),
        "several-gpus": parallel.tp > 1,
        "moe": model is None or model.moe is not None,
        "mla": model is not None and model.mla is not None,
        "no-mla": model is not None and model.mla is None,
        "hybrid": recipe.hybrid is not None,
        "draft": recipe.speculate is not None,
        "ep": parallel.ep,
        "reference": has_reference,
    }
    if not all(met[need] for need in tunable.needs):
        return ()
    if not tunable.share_of:
        return tunable.values
    whole = box.cpu.cores if box and tunable.share_of == "cores" else 0
    if tunable.share_of == "gpu-experts" and box and deployment.is_known:
        whole = load_engine(recipe.engine).max_gpu_experts(deployment)
    counts = (round(float(str(share)) * whole) for share in tunable.values)
    return tuple(dict.fromkeys(count for count in counts if count > 0))
