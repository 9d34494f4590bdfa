"""What the command lines of both llama.cpp servers have in common."""

import re

from moebox.core.catalogue import models, published_checkpoints
from moebox.core.recipe import Hybrid
from moebox.engines.ggml.engine import ALWAYS_ON, FIELDS, HYBRID_FIELDS
from moebox.errors import BadInput
from tests.chain.parse_back.reading import Reading, ValueParser, note_absent, set_field, skip_value

ALL_FIELDS = FIELDS | HYBRID_FIELDS
# GPUs are CUDA0, CUDA1 …, ROCm0 in a HIP build (GGML_CUDA_NAME in ggml-cuda.h), Vulkan0 in a Vulkan one.
RULE = re.compile(r"blk\\\.\((?P<layers>[\d|]+)\)\\\.ffn_\.\*_exps=(?P<device>[A-Za-z]+)(?P<number>\d+)")


def finish(names: set[str], reading: Reading) -> None:
    """Set what follows from several flags together, and from those that are absent."""
    repository, file = reading.text("checkpoint"), reading.flags.get("hf-file")
    known = [each for model in models() for each in published_checkpoints(model)] if file else []
    found = next((each for each in known if (each.repo, each.file) == (repository, file)), None)
    if found:  # a repository and a file that the catalogue knows are REPOSITORY:NAME
        reading.put("checkpoint", f"{repository}:{found.name}")
        del reading.flags["hf-file"]
    note_absent(names, reading, *ALWAYS_ON)
    reading.put("context", reading.count("context", 0) // (reading.count("max_seqs", 1) or 1))
    rules = reading.settings.get("hybrid.ranges", [])
    placed = parse_placement([str(rule) for rule in rules] if isinstance(rules, list) else [])
    if placed is not None:
        del reading.settings["hybrid.ranges"]
        reading.put("hybrid.device", placed[0])
        reading.put("hybrid.experts", placed[1])


def parse_placement(rules: list[str]) -> tuple[str, list[list[int]]] | None:
    """Return the GPUs' name and expert layers by GPU from the rules moebox writes; None for any others."""
    *placed, last = rules or [""]
    found = [match for rule in placed if (match := RULE.fullmatch(rule))]
    devices = {match["device"] for match in found} or {Hybrid().device}
    if last != "exps=CPU" or len(found) < len(placed) or len(devices) > 1:
        return None
    by_gpu = {int(match["number"]): [int(layer) for layer in match["layers"].split("|")] for match in found}
    return devices.pop(), [by_gpu.get(gpu, []) for gpu in range(max(by_gpu, default=-1) + 1)]


def _parse_context(value: str, reading: Reading) -> bool:
    """Parse -c, of all slots together."""
    if not value.isdecimal():
        raise BadInput(f"-c: {value!r} is not a number")
    return reading.put("context", int(value))


def _parse_rule(value: str, reading: Reading) -> bool:
    """Parse -ot, which may occur several times."""
    before = reading.settings.get("hybrid.ranges", [])
    return reading.put("hybrid.ranges", [*map(str, before if isinstance(before, list) else ()), value])


def _parse_file(value: str, reading: Reading) -> bool:
    reading.flags["hf-file"] = value
    return True


PARSERS: dict[str, ValueParser] = {
    **dict.fromkeys(ALWAYS_ON, skip_value),
    "-ctk": set_field("kv"),
    "-c": _parse_context,
    "-ot": _parse_rule,
    "-hf": set_field("checkpoint"),
    "-hfr": set_field("checkpoint"),
    "-hff": _parse_file,
}
