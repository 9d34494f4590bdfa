"""Boxes one does not have: by name (COUNTxGPU) or from a TOML file.

    8x-rtx-pro-6000-server        eight GPUs in one machine
    4x-rtx-5090+1x-rtx-4090       mixed GPUs
    2x8x-h200                     two nodes of eight (also 2n-8x-h200)
    2x8x-h200@25GB/s              the same, with 25 GB/s (200 Gb/s) a GPU between them

A TOML file is either what `moebox box --save` wrote, or the short form:

    name = "attic"
    gpus = ["2x-rtx-pro-6000-max-q"]
    ram = "768GiB"
    ram_bandwidth = "614GB/s"
    cpu = { model = "EPYC 9175F", sockets = 1, cores = 16 }
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from moebox import codec
from moebox.core import catalogue
from moebox.core.box import Box, Cpu, Gpu, split_into_nodes
from moebox.errors import BadInput, UnknownName, refuse_if, require_all
from moebox.loose import get_objects
from moebox.units import parse_rate, parse_size

_NODES = re.compile(r"(?:(\d+)(?:n-|x(?=\d+x)))?(.*)", re.DOTALL)
_PART = re.compile(r"(?:(\d+)x-?)?([a-z0-9].*)")
MAX_GPUS = 1024  # in one machine; more is a typing error
MAX_NODES = 256
MAX_NETWORK = 10**12  # bytes/s a GPU between nodes; NVLink's largest domains have 0.9
MIN_RAM = 2**30  # no machine that serves a model has less: a unit was left out
CHANNEL_RATE = 8 * 8800 * 10**6  # bytes/s of one memory channel, MRDIMM-8800
MAX_BANDWIDTH = 2 * 12 * CHANNEL_RATE  # bytes/s of RAM
MIN_BANDWIDTH = 10**9  # a single channel of DDR3 has ten times as much: a unit was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortBox:
    """The hand-written form of a box file."""

    name: str = ""
    gpus: tuple[str, ...] = ()
    ram: str = ""
    ram_bandwidth: str = ""
    cpu: Cpu = Cpu()
    nodes: int = 1
    network: str = ""


def parse_box(text: str, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that `text` names, or the file it points to; `ram` and `ram_bandwidth` win over either."""
    return _whole(box_from_file(Path(text)) if is_box_file(text) else box_from_name(text), text, ram, ram_bandwidth)


def parse_box_name(text: str, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that `text` names; no file is read."""
    return _whole(box_from_name(text), text, ram, ram_bandwidth)


def is_box_file(text: str) -> bool:
    """Whether a box is meant by a file and not by its GPUs."""
    return Path(text).suffix == ".toml" or Path(text).is_file()


def _whole(box: Box, text: str, ram: str, ram_bandwidth: str) -> Box:
    """The box with the memory that a person gave; BadInput for what no machine has together."""
    _refuse_two_vendors(box)
    box = with_ram(box, ram=ram, ram_bandwidth=ram_bandwidth)
    _refuse_contradictions(box, text)
    return box


def _refuse_contradictions(box: Box, where: str) -> None:
    """What no machine has together."""
    cpu, rate = box.cpu, box.ram_bandwidth
    most = cpu.channels * CHANNEL_RATE or MAX_BANDWIDTH
    channels = f"ram_bandwidth {rate / 1e9:,.0f} GB/s, channels = {cpu.channels}"
    enough_cores = not cpu.cores or cpu.cores >= cpu.sockets  # 0: not known
    enough_threads = not cpu.threads or cpu.threads >= cpu.cores
    rules = {
        f"nodes = {box.nodes}: from 1 to {MAX_NODES}": 1 <= box.nodes <= MAX_NODES,
        f"sockets = {cpu.sockets}: a machine has at least one": cpu.sockets >= 1,
        f"cores = {cpu.cores}, sockets = {cpu.sockets}: a socket has one core at least": enough_cores,
        f"cores = {cpu.cores}, threads = {cpu.threads}: a core runs one thread at least": enough_threads,
        f"{channels}: so many give at most {most / 1e9:,.0f} GB/s (MRDIMM-8800)": 0 <= rate <= most,
    }
    require_all(where, rules)


def _refuse_two_vendors(box: Box) -> None:
    """No engine is built for both, so no group of GPUs has both in it: each vendor's are a box of their own."""
    counts = Counter(gpu.vendor for gpu in box.gpus)
    kinds = Counter(gpu.name for gpu in box.gpus)
    refuse_if(
        len(counts) > 1,
        f"box {box.name!r} has GPUs of two vendors, {' and '.join(f'{n} of {name}' for name, n in counts.items())}: "
        "an engine is built for one of them",
        hint="plan for each by itself: " + " or ".join(f"--box {number}x-{name}" for name, number in kinds.items()),
    )


def with_ram(box: Box, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """`box` with the memory a person gave on the command line."""
    try:
        size, rate = parse_size(ram or "0"), parse_rate(ram_bandwidth or "0")
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    if ram:
        _refuse_ram(box, ram, size)
        box = replace(box, ram=size, ram_free=None)
    if ram_bandwidth:
        _refuse_bandwidth(ram_bandwidth, rate)
        box = replace(box, ram_bandwidth=rate, ram_bandwidth_measured=None)
    return box


def _refuse_ram(box: Box, ram: str, size: int) -> None:
    """So little, or memory that is the GPU's."""
    refuse_if(size < MIN_RAM, f"--ram {ram} is less than 1 GiB", hint="a bare number is bytes; write it like 768GiB")
    if box.smallest_gpu and box.smallest_gpu.unified:
        raise BadInput(
            f"--ram {ram}: {box.smallest_gpu.title} and its CPU use the same memory, which is counted as the GPU's"
        )


def _refuse_bandwidth(text: str, rate: int) -> None:
    """A rate that no memory has."""
    refuse_if(
        rate < MIN_BANDWIDTH,
        f"--ram-bandwidth {text} is less than 1 GB/s",
        hint="a bare number is bytes a second; write it like 614GB/s, or leave it out where it is not known",
    )
    refuse_if(
        rate > MAX_BANDWIDTH,
        f"--ram-bandwidth {text}: no platform has more than {MAX_BANDWIDTH / 1e9:,.0f} GB/s "
        "(two sockets of 12 channels MRDIMM-8800)",
        hint="bytes, not bits, and of all sockets together: 614GB/s is twelve channels of DDR5-6400",
    )


def box_from_name(text: str) -> Box:
    """The box called COUNTxGPU, several joined by +; several nodes as 2x8x-GPU, after an @ the rate between them."""
    alike, at, rate = text.strip().partition("@")
    alike = alike.lower()
    match = _NODES.fullmatch(alike)
    assert match is not None  # all of it is optional
    nodes = int(match[1] or 1)
    refuse_if(
        not 1 <= nodes <= MAX_NODES, f"box {text!r}: {nodes} nodes is out of range", hint="write it like 2x8x-h200"
    )
    box = split_into_nodes(Box(name=f"{alike}{at}{rate}", gpus=parse_gpus(match[2]), nodes=nodes))
    if not at:
        return box
    one = f"box {text!r}: @{rate} is the rate between nodes, and this is one"
    refuse_if(box.nodes == 1, one, hint="2x8x-h200@50GB/s")
    return replace(box, network=_network(text, rate))


def _network(text: str, rate: str) -> int:
    """Bytes a second between nodes, for each GPU."""
    try:
        network = parse_rate(rate)
    except ValueError as problem:
        raise BadInput(f"box {text!r}: {problem}") from None
    if not 10**7 <= network <= MAX_NETWORK:
        raise BadInput(f"box {text!r}: {rate} between nodes is out of range", hint="bytes, a GPU: 400 Gb/s is 50GB/s")
    return network


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs that "8x-h200" or "2x-rtx-5090+1x-rtx-4090" mean."""
    return tuple(chain.from_iterable(_alike(part, text) for part in text.split("+")))


def _alike(part: str, text: str) -> list[Gpu]:
    """The GPUs of one part of such a text."""
    match = _PART.fullmatch(part.strip())
    if not match:
        raise BadInput(f"box {text!r}: cannot read {part!r}", hint="write it like 8x-rtx-pro-6000-server")
    number = int(match[1] or 1)
    refuse_if(not 1 <= number <= MAX_GPUS, f"box {text!r}: {number} GPUs is out of range")
    return [gpu_by_alias(match[2])] * number


def gpu_by_alias(name: str) -> Gpu:
    """The catalogue's GPU called `name`, or an alias of it."""
    aliases: dict[str, str] = catalogue.load_table("gpus").get("aliases", {})
    known = catalogue.gpus()
    found = known.get(aliases.get(name, name))
    if found is None:
        raise UnknownName("GPU", name, [*known, *aliases])
    return found


def box_from_file(path: Path) -> Box:
    """The box that a TOML file describes, in either form."""
    return _from_document(codec.load_toml(path), where=str(path), name=path.stem)


def box_from_document(document: dict[str, object], *, where: str, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that a box file's text describes, in either form."""
    return _whole(_from_document(document, where=where, name=where), where, ram, ram_bandwidth)


def _from_document(document: dict[str, object], *, where: str, name: str) -> Box:
    if get_objects(document, "gpus") or "source" in document:
        return codec.decode(Box, document, where=where)
    if isinstance(document.get("gpus"), str):
        document = {**document, "gpus": [document["gpus"]]}
    return _from_short(codec.decode(ShortBox, document, where=where), where=where, name=name)


def _from_short(short: ShortBox, *, where: str, name: str) -> Box:
    gpus = tuple(chain.from_iterable(parse_gpus(part.lower()) for part in short.gpus))
    try:
        network = parse_rate(short.network or "0")
        box = Box(name=short.name or name, gpus=gpus, cpu=short.cpu, nodes=short.nodes, network=network)
        return with_ram(box, ram=short.ram, ram_bandwidth=short.ram_bandwidth)
    except ValueError as problem:
        raise BadInput(f"{where}: network: {problem}") from None
    except BadInput as problem:
        raise BadInput(f"{where}: {problem.message}") from None
