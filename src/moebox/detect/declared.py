"""Boxes that are declared by name (COUNTxGPU) or in a TOML file.

    8x-rtx-pro-6000-server        eight GPUs in one machine
    4x-rtx-5090+1x-rtx-4090       mixed GPUs
    2x8x-h200                     two nodes of eight (also 2n-8x-h200)
    2x8x-h200@25GB/s              the same, with 25 GB/s (200 Gb/s) per GPU between them

A TOML file is either the output of `moebox box --save`, or short:

    name = "attic"
    gpus = ["2x-rtx-pro-6000-max-q"]
    ram = "768GiB"
    ram_bandwidth = "614GB/s"
    cpu = { model = "EPYC 9175F", sockets = 1, cores = 16 }

A GPU that the catalogue does not have is described by the nearest that it has:

    gpus = ["2x-rtx-6090"]
    gpu_types.rtx-6090 = { like = "rtx-5090", memory = "48GiB", bandwidth = "2.5TB/s" }
"""

import difflib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from moebox import codec
from moebox.core import catalogue
from moebox.core.box import CHANNEL_RATE, MAX_BANDWIDTH, Box, Cpu, Gpu, split_into_nodes
from moebox.data import FOLDER
from moebox.errors import BadInput, UnknownName, refuse_if, require_all, suggest_names
from moebox.loose import get_objects
from moebox.units import parse_rate, parse_size

_NODES = re.compile(r"(?:(\d+)(?:n-|x(?=\d+x)))?(.*)", re.DOTALL)
_PART = re.compile(r"(?:(\d+)x[-\s]*)?([a-z0-9].*)")
_RAM = re.compile(r"(\d+(?:\.\d+)?\s*[gt](?:i?b)?)(?:\s+(?:of|ddr\d(?:-\d+)?|ram|memory))*")
MAX_GPUS = 128  # in one box: a rack has 72. A plan for 512 takes a minute and a half
MAX_NODES = 256
MAX_NETWORK = 10**12  # bytes/s per GPU between nodes; NVLink's largest domains have 0.9e12
MIN_RAM = 2**30  # a machine that serves models has more, so a unit was left out
MIN_BANDWIDTH = 10**9  # one channel of DDR3 has ten times as much, so a unit was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGpu:
    like: str  # the nearest GPU that it has, with the same compute capability
    memory: str
    bandwidth: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortBox:
    """A box file written by hand."""

    name: str = ""
    gpus: tuple[str, ...] = ()
    gpu_types: dict[str, DescribedGpu] = field(default_factory=dict)
    ram: str = ""
    ram_bandwidth: str = ""
    cpu: Cpu = Cpu()
    nodes: int = 1
    network: str = ""


def parse_box(text: str, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Return the box called `text`, or in the file at that path; `ram` and `ram_bandwidth` take precedence."""
    if not is_box_file(text):
        return parse_box_name(text, ram=ram, ram_bandwidth=ram_bandwidth)
    path = Path(text)
    box = _box_from_toml(codec.load_toml(path), where=str(path), name=path.stem)
    return _complete_box(box, text, ram, ram_bandwidth)


def parse_box_name(text: str, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Return the box that `text` names; no file is read."""
    return _complete_box(box_from_name(text), text, ram, ram_bandwidth)


def is_box_file(text: str) -> bool:
    return text.endswith(".toml") or os.path.isfile(text)  # which is False for what cannot be a path


def _complete_box(box: Box, where: str, ram: str, ram_bandwidth: str) -> Box:
    """Set the memory that the user gave. Raise BadInput for a combination that no machine has."""
    vendors = Counter(gpu.vendor for gpu in box.gpus)
    kinds = Counter(gpu.name for gpu in box.gpus)
    numbers = " and ".join(f"{number} of {name}" for name, number in vendors.items())
    text = f"box {box.name!r} has GPUs of two vendors, {numbers}: an engine is built for one of them"
    hint = "plan for each by itself: " + " or ".join(f"--box {number}x-{name}" for name, number in kinds.items())
    refuse_if(len(vendors) > 1, text, hint=hint)
    box = with_ram(box, ram=ram, ram_bandwidth=ram_bandwidth)
    cpu, rate = box.cpu, box.ram_bandwidth
    most = cpu.channels * CHANNEL_RATE or MAX_BANDWIDTH
    channels = f"ram_bandwidth {rate / 1e9:,.0f} GB/s, channels = {cpu.channels}"
    enough_cores = not cpu.cores or cpu.cores >= cpu.sockets  # 0: unknown
    enough_threads = not cpu.threads or cpu.threads >= cpu.cores
    rules = {
        f"nodes = {box.nodes}: from 1 to {MAX_NODES}": 1 <= box.nodes <= MAX_NODES,
        f"{len(box.all_gpus):,} GPUs: at most {MAX_GPUS} in a box": len(box.all_gpus) <= MAX_GPUS,
        f"sockets = {cpu.sockets}: a machine has at least one": cpu.sockets >= 1,
        f"cores = {cpu.cores}, sockets = {cpu.sockets}: a socket has at least one core": enough_cores,
        f"cores = {cpu.cores}, threads = {cpu.threads}: a core runs at least one thread": enough_threads,
        f"{channels}: they give at most {most / 1e9:,.0f} GB/s (MRDIMM-8800)": 0 <= rate <= most,
    }
    require_all(where, rules)
    return box


def with_ram(box: Box, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Set the memory that was given on the command line."""
    try:
        size, rate = parse_size(ram or "0"), parse_rate(ram_bandwidth or "0")
    except ValueError as problem:
        raise BadInput(f"--ram or --ram-bandwidth: {problem}") from None
    if ram:
        hint = "a bare number is bytes; write it like 768GiB"
        refuse_if(size < MIN_RAM, f"--ram {ram} is less than 1 GiB", hint=hint)
        if gpu := next((gpu for gpu in box.gpus if gpu.unified), None):
            raise BadInput(f"--ram {ram}: {gpu.title} and its CPU use the same memory, which is counted as the GPU's")
        box = replace(box, ram=size, ram_free=None)
    if ram_bandwidth:
        refuse_if(
            rate < MIN_BANDWIDTH,
            f"--ram-bandwidth {ram_bandwidth} is less than 1 GB/s",
            hint="a bare number is bytes per second; write it like 614GB/s, or leave it out if it is not known",
        )
        refuse_if(
            rate > MAX_BANDWIDTH,
            f"--ram-bandwidth {ram_bandwidth}: no platform has more than {MAX_BANDWIDTH / 1e9:,.0f} GB/s "
            "(two sockets of 12 channels MRDIMM-8800)",
            hint="bytes, not bits, and of all sockets together: 614GB/s is twelve channels of DDR5-6400",
        )
        box = replace(box, ram_bandwidth=rate, ram_bandwidth_measured=None)
    return box


def box_from_name(text: str) -> Box:
    """Parse COUNTxGPU, several and RAM joined by +; several nodes as 2x8x-GPU, and the rate between them after @."""
    alike, at, rate = map(str.strip, text.partition("@"))
    rate, plus, more = rate.partition("+")  # RAM behind the rate
    alike += plus + more
    alike = re.sub(r"(?<=\d)\s+x\s+", "x ", alike.lower().replace("×", "x"))  # "8 x H200"
    parts = re.split(r"\s*[+,]\s*|\s+with\s+", alike)
    ram = [size[1] for part in parts if (size := _RAM.fullmatch(part))]
    no_gpu = "`--ram` adds it to this machine; a box file can have ram = and no GPUs"
    refuse_if(len(ram) == len(parts), f"box {text!r}: RAM and no GPU", hint=no_gpu)
    refuse_if(len(ram) > 1, f"box {text!r}: RAM is given {len(ram)} times", hint="write it like 1x-rtx-5090+512GB")
    alike = "+".join(part for part in parts if not _RAM.fullmatch(part))
    match = _NODES.fullmatch(alike)
    assert match is not None  # every part of the pattern is optional
    nodes = int(match[1] or 1)
    hint = "write it like 2x8x-h200"
    refuse_if(not 1 <= nodes <= MAX_NODES, f"box {text!r}: {nodes} nodes is out of range", hint=hint)
    gpus = parse_gpus(match[2])
    if re.search(r"\s", alike):
        kinds = "+".join(f"{number}x-{name}" for name, number in Counter(gpu.name for gpu in gpus).items())
        alike = f"{nodes}x{kinds}" if match[1] else kinds
    name = "+".join([alike, *(size.replace(" ", "") for size in ram)])
    box = with_ram(split_into_nodes(Box(name=f"{name}{at}{rate}", gpus=gpus, nodes=nodes)), ram="".join(ram))
    if not at:
        return box
    single = f"box {text!r}: @{rate} is the rate between nodes, and this box has one node"
    refuse_if(box.nodes == 1, single, hint="2x8x-h200@50GB/s")
    try:
        network = parse_rate(rate)
    except ValueError as problem:
        raise BadInput(f"box {text!r}: {problem}") from None
    hint = "bytes per GPU: 400 Gb/s is 50GB/s"
    refuse_if(not 10**7 <= network <= MAX_NETWORK, f"box {text!r}: {rate} between nodes is out of range", hint=hint)
    return replace(box, network=network)


def parse_gpus(text: str, described: Mapping[str, Gpu] = MappingProxyType({})) -> tuple[Gpu, ...]:
    """Parse GPUs such as "8x-h200" or "2x-rtx-5090+1x-rtx-4090"; those of a box file come before the catalogue's."""
    gpus: list[Gpu] = []
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if not match:
            raise BadInput(f"box {text!r}: cannot read {part!r}", hint="write it like 8x-rtx-pro-6000-server")
        number = int(match[1] or 1)
        too_many = f"box {text!r}: {len(gpus) + number:,} GPUs is out of range"
        hint = f"from 1 to {MAX_GPUS} in a box; `moebox fleet plan` is about several"
        refuse_if(number < 1 or len(gpus) + number > MAX_GPUS, too_many, hint=hint)
        gpus += [described.get(match[2]) or gpu_by_alias(match[2], number)] * number
    return tuple(gpus)


def gpu_by_alias(name: str, number: int = 1) -> Gpu:
    """Find a GPU of the catalogue by its name, an alias, or the name that its driver reports."""
    slug = re.sub(r"[\s_]+", "-", name)
    for gpu in catalogue.table_rows(Gpu, "gpus", "gpu", slug):
        if gpu.name == slug:
            return gpu
    table, known = catalogue.load_table("gpus"), catalogue.gpus()
    aliases: dict[str, str] = table.get("aliases", {})
    found = aliases.get(slug, slug)
    if re.match(r"(nvidia|amd|geforce)\s", name):
        rows = (row for row in table["driver"] if "min_memory" not in row)
        found = next((row["name"] for row in rows if re.search(row["pattern"], name, re.IGNORECASE)), found)
    if found not in known:
        if box := _spell_box(name, [*known, *aliases]):
            raise UnknownName("GPU", name, known, hint=f"did you mean {box}?")
        recipe = os.path.isfile(FOLDER / "recipes" / f"{slug}.toml")
        refuse_if(recipe, f"box {name!r}: is a recipe", hint=f"`moebox up {name}` takes it; a box is like 8x-h200")
        near = suggest_names(name, sorted([*known, *aliases]))
        like = next(iter(difflib.get_close_matches(slug, known, n=1)), "rtx-5090")
        slug = re.sub(r"[^\w-]+", "-", slug)
        file = f"a box file describes a new one: gpus = ['{number}x-{slug}'] and gpu_types.{slug} = "
        file += f"{{ like = '{like}', memory = '48GiB', bandwidth = '2.5TB/s' }}"
        raise UnknownName("GPU", name, known, hint=f"{near}; {file}")
    return known[found]


def _spell_box(name: str, known: Sequence[str]) -> str:
    """Return "h200x8", "8 h200" or "rtx6000pro" as moebox spells it, or "" if it means no known GPU."""
    swapped = re.fullmatch(r"(.+?)[\s-]*x[\s-]*(\d+)|(\d+)\s+(.+)", name)
    kind, count = (swapped[1] or swapped[4], f"{swapped[2] or swapped[3]}x-") if swapped else (name, "")
    plain = {each.replace("-", ""): each for each in known}.get(re.sub(r"[\s_-]", "", kind), "")
    return plain and f"{count}{plain}"


def _described_gpu(name: str, row: DescribedGpu, where: str) -> Gpu:
    """Return the GPU that a box file describes: its own memory, the rest as of the GPU that it is like."""
    like, at = gpu_by_alias(row.like.lower()), f"{where}: gpu_types.{name}"
    try:
        memory, bandwidth = parse_size(row.memory), parse_rate(row.bandwidth)
    except ValueError as problem:
        raise BadInput(f"{at}: {problem}") from None
    sizes = {
        f"memory = {row.memory!r} is not the size of a GPU's memory, such as 48GiB": 2**30 <= memory <= 2**40,
        f"bandwidth = {row.bandwidth!r} is not a GPU's, such as 2.5TB/s": 10**10 <= bandwidth <= 10**14,
    }
    require_all(at, sizes)
    return replace(
        like,
        name=name,
        title=name,
        memory=memory,
        bandwidth=bandwidth,
        unverified=("bandwidth", "bf16", "fp8", "fp4", "sms"),
        source=f"{where}; otherwise as {like.title}",
    )


def box_from_document(document: dict[str, object], *, where: str, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Return the box that the content of a box file describes."""
    return _complete_box(_box_from_toml(document, where=where, name=where), where, ram, ram_bandwidth)


def _box_from_toml(document: dict[str, object], *, where: str, name: str) -> Box:
    up = "`moebox up` takes recipes; a box is like 8x-h200"
    refuse_if("engine" in document, f"{where}: is a recipe, not a box", hint=up)
    rows = get_objects(document, "gpus") or get_objects(document, "gpu")
    short_keys = {*ShortBox.__dataclass_fields__, "gpu", "count"}
    if rows and not set(document).union(*rows) - short_keys:
        names = ", ".join(f'"{row.get("count", 1)}x-{row.get("name", "h200")}"' for row in rows)
        raise BadInput(f"{where}: GPUs are a list of names, not tables", hint=f"write gpus = [{names}]")
    if get_objects(document, "gpus") or "source" in document:
        return codec.decode(Box, document, where=where)
    if isinstance(document.get("gpus"), str):
        document = {**document, "gpus": [document["gpus"]]}
    refuse_if(not document, f"{where}: is empty", hint='a box file has at least gpus = ["8x-h200"] or ram = "64GiB"')
    short = codec.decode(ShortBox, document, where=where)
    described = {key.lower(): _described_gpu(key.lower(), row, where) for key, row in short.gpu_types.items()}
    gpus = tuple(gpu for part in short.gpus for gpu in parse_gpus(part.lower(), described))
    try:
        network = parse_rate(short.network or "0")
        box = Box(name=short.name or name, gpus=gpus, cpu=short.cpu, nodes=short.nodes, network=network)
        return with_ram(box, ram=short.ram, ram_bandwidth=short.ram_bandwidth)
    except ValueError as problem:
        raise BadInput(f"{where}: network: {problem}") from None
    except BadInput as problem:
        raise BadInput(f"{where}: {problem.message}") from None
