"""Prefix caches in tiers (GPUs, RAM, disk): what each holds, how fast it comes back, what a workload finds there."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.core.recipe import KvTiers
from moebox.engines import find_refusals
from moebox.planner.speed import Speed
from moebox.planner.speed.host import SLOWEST_RAM
from moebox.planner.speed.links import pcie_rate
from moebox.sizing.kv import tier_token_bytes
from moebox.units import format_count

if TYPE_CHECKING:
    from moebox.planner.schedule import Scheduler, SimulatedRequest

GIB = 2**30
# Share of a GPU's link that copies from RAM reach. Blocks of 0.5 to 2 MB (vLLM since 0.12) come close to all of it; the
# earlier blocks of 8 to 72 kB reached a quarter or a fifth (blog.vllm.ai, 2026-01-08, KV offloading connector).
LINK_SHARE = 0.7
# One NVMe drive over PCIe 4.0 x4 reads up to 7 GB/s in a row; files of single blocks reach less. Not measured here.
DISK_RATE = 3e9
RATE_RANGE = (0.4, 2.0)  # of both rates: from the slow layouts and busy drives to the best of either
ROOM_SHARE = 0.8  # of free RAM and disk: locked memory beyond it stops machines (symptom offload-lmcache-ram)


class CacheTier(NamedTuple):
    name: str
    tokens: float = 0.0  # that it holds
    token_s: float = 0.0  # seconds to bring one token back


class FoundPrefix(NamedTuple):
    tokens: int
    seconds: float  # to bring them back
    tier: str  # where they are; "" if nowhere


class PrefixCache:
    """Conversations whose tokens are kept after their replies, least recently used first, on the GPUs and in tiers.

    Tiers are written through, so each holds the most recent conversations up to its size, those of the GPUs included.
    """

    def __init__(self, scheduler: "Scheduler", shared: int = 0, tiers: Sequence[CacheTier] = ()) -> None:
        self.scheduler, self.shared, self.tiers = scheduler, shared, tuple(tiers)
        scheduler.shared_tokens = self.once = shared if scheduler.rules.shares_blocks else 0
        self.held: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(1 + len(self.tiers))]
        self.totals = [0] * len(self.held)
        self.warm = False  # the shared prefix has been read once
        self.link_free = 0.0  # when the link from the tiers is free

    def take_prefix(self, user: int, prompt: int, *, begins: bool) -> FoundPrefix:
        """Take the cached tokens of `prompt` for a request.

        A conversation that `begins` shares only the common prefix with the user's last one.
        """
        self._evict()
        shared = min(self.shared if self.warm else 0, prompt - 1)
        self.warm = True
        found = self.find_prefix(-1 if begins else user, prompt - 1, shared)
        for level, held in enumerate(self.held):
            if level and user in held and not begins:
                held.move_to_end(user)
            else:  # on the GPUs it is in use from now on; a tier keeps its copy
                self.totals[level] -= held.pop(user, 0)
        return found if found.tokens > shared else FoundPrefix(shared, 0.0, "GPUs" if shared else "")

    def find_prefix(self, user: int, most: int, shared: int = 0) -> FoundPrefix:
        """Return the cached tokens of a conversation, up to `most`; `shared` ones are on the GPUs in any case."""
        found = FoundPrefix(0, 0.0, "")
        for held, tier in zip(self.held, (CacheTier("GPUs"), *self.tiers), strict=True):
            own = min(held[user] + self.once, most) if user in held else 0
            if own > found.tokens:
                found = FoundPrefix(own, (own - shared) * tier.token_s, tier.name)
        return found

    def start_load(self, request: "SimulatedRequest", load_s: float, now: float) -> float:
        """Return when a load from a tier is done that begins now; loads follow each other over one link."""
        self.link_free = max(now, self.link_free) + load_s
        request.is_loaded = True
        return self.link_free

    def keep_tokens(self, user: int, prompt: int, reply: int) -> None:
        """Keep a finished request until the space is needed; tiers get prompts only (vLLM: offload_prompt_only)."""
        for level, held in enumerate(self.held):
            tokens = (prompt if level else prompt + reply) - self.once
            self.totals[level] += tokens - held.pop(user, 0)
            held[user] = tokens
        self._evict()

    def _evict(self) -> None:
        """Drop the oldest conversations of each level beyond its room."""
        idle = not self.scheduler.busy  # then no sequence holds the shared prefix
        rooms = [self.scheduler.room_tokens - self.once * idle, *(tier.tokens - self.once for tier in self.tiers)]
        for level, (held, room) in enumerate(zip(self.held, rooms, strict=True)):
            while held and self.totals[level] + len(held) * self.scheduler.rules.sequence_tokens > room:
                self.totals[level] -= held.popitem(last=False)[1]


def cache_tiers(deployment: Deployment, tiers: KvTiers) -> tuple[CacheTier, ...]:
    """Return the tiers below the GPUs. A disk that only gets slots on request (llama.cpp) is not one."""
    token, parallel = tier_token_bytes(deployment.model, deployment.recipe), deployment.recipe.parallel
    gpu, bandwidth = deployment.smallest_gpu, deployment.required_box.ram_bandwidth
    # Without a GPU a copy within RAM is left, which reads and writes every byte.
    link = pcie_rate(gpu) * parallel.tp * parallel.pp * LINK_SHARE if gpu else (bandwidth or SLOWEST_RAM) / 2
    disk = tiers.disk_gib if deployment.engine.kv_tiers == "blocks" else 0.0
    levels = (("RAM", tiers.ram_gib, link), ("disk", disk, min(DISK_RATE, link)))
    return tuple(CacheTier(name, size * GIB / token, token / rate) for name, size, rate in levels if size)


def possible_tiers(deployment: Deployment, memory: Memory, wanted_tokens: float = math.inf) -> KvTiers:
    """Return the tiers that the box has room for, as far as `wanted_tokens` need them; none if the engine has none."""
    box, engine = deployment.box, deployment.engine
    if box is None or box.has_unified_memory or not engine.kv_tiers:
        return KvTiers()
    wanted = wanted_tokens * tier_token_bytes(deployment.model, deployment.recipe)
    free = next((device.free for device in memory.devices if device.device == "ram"), box.ram_free or box.ram)
    for limit in (wanted, math.inf):  # if an engine refuses as little as is wanted, as much as there is
        ram = max(0.0, min(free * ROOM_SHARE, limit)) // GIB
        disk = box.host.disk_free * ROOM_SHARE if box.host and ram and engine.kv_tiers == "blocks" else 0.0
        tiers = KvTiers(ram_gib=ram, disk_gib=min(disk, wanted) // GIB if wanted > ram * GIB else 0.0)
        refusals = find_refusals(deployment.with_recipe(replace(deployment.recipe, kv_tiers=tiers)))
        if not any("kv_tiers" in warning.remedy for warning in refusals if warning.severity == "fatal"):
            return tiers
    return KvTiers()


def tier_steps(deployment: Deployment, memory: Memory, wanted_tokens: float) -> list[KvTiers]:
    """Return no tiers, then RAM, then RAM and disk: the sizes of the recipe, or those that the box has room for."""
    tiers = deployment.recipe.kv_tiers or possible_tiers(deployment, memory, wanted_tokens)
    return [KvTiers(), replace(tiers, disk_gib=0.0), tiers][: 1 + len(cache_tiers(deployment, tiers))]


def describe_tiers(deployment: Deployment, memory: Memory) -> str:
    """Return a line about the tiers of a recipe, or those that its box has room for; "" without any."""
    tiers = deployment.recipe.kv_tiers or possible_tiers(deployment, memory)
    parts = [f"{tier.name} {format_count(tier.tokens)} tokens" for tier in cache_tiers(deployment, tiers)]
    if not parts:
        return ""
    how = f" (possible: {tier_setting(tiers)}, forecast with --workload agents)" * (not deployment.recipe.kv_tiers)
    return f"KV tiers below the GPUs: {', '.join(parts)}{how}"


def tier_setting(tiers: KvTiers) -> str:
    """Return the settings of a recipe that make these tiers."""
    disk = f" --set kv_tiers.disk_gib={tiers.disk_gib:g}" if tiers.disk_gib else ""
    return f"--set kv_tiers.ram_gib={tiers.ram_gib:g}{disk}" if tiers.ram_gib else ""


def tier_range(speed: Speed) -> tuple[float, float]:
    """Factors on a time to first token that may include a load from a tier."""
    low, high = speed.range_factors("prompt")
    return min(1 / high, 1 / RATE_RANGE[1]), max(1 / low, 1 / RATE_RANGE[0])
