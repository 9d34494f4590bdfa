"""This machine, and machines with GPUs through a stand-in for the driver.

The stand-in offers only what the real `pynvml` offers (a test checks that), with answers as an eight-GPU RTX PRO 6000
Server gives them: PIX pairs, two NUMA nodes, one GPU in a x4 riser.
"""

import os
import pwd
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from rich.console import Console

from moebox import codec
from moebox.checkpoint import deploy, resolve_model
from moebox.cli.box import box_panel, box_warnings
from moebox.cli.ps import gpu_lines
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.plan import Memory
from moebox.core.recipe import Recipe
from moebox.detect import bundle, host, machine, nvml
from moebox.detect.health import measure_bandwidth
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.warnings import budget_warnings
from moebox.sizing.constants import bytes_held_by_others, visible_bytes


class NoAnswer(Exception):
    """Raised by the driver for an unsupported query."""


class Driver:
    """Eight GPUs; GPU 5 sits in a x4 riser, GPUs 6 and 7 cannot reach each other."""

    NVMLError = NoAnswer
    NVML_P2P_CAPS_INDEX_READ = pynvml.NVML_P2P_CAPS_INDEX_READ
    NVML_P2P_STATUS_OK = pynvml.NVML_P2P_STATUS_OK
    NVML_NVLINK_MAX_LINKS = pynvml.NVML_NVLINK_MAX_LINKS
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    title = "NVIDIA RTX PRO 6000 Blackwell Server Edition"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.48.01"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.title

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 12, 0

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=102_641_958_912, free=101_000_000_000, used=1_641_958_912)

    def nvmlDeviceGetMigMode(self, handle: int) -> Any:
        raise NoAnswer

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 4 if handle == 5 else 16

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        if a // 2 == b // 2:
            return int(pynvml.NVML_TOPOLOGY_SINGLE)
        return int(pynvml.NVML_TOPOLOGY_NODE if a // 4 == b // 4 else pynvml.NVML_TOPOLOGY_SYSTEM)

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        return int(pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED if {a, b} == {6, 7} else pynvml.NVML_P2P_STATUS_OK)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        raise NoAnswer


class Unknown(Driver):
    """A GPU that the catalogue does not have."""

    title = "NVIDIA Quux 9000"

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return 256

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return 10_000 if clock == pynvml.NVML_CLOCK_MEM else 2_000

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        return 8_192


def box_with(driver: Driver, tmp_path: Path) -> Box:
    for index in range(8):
        device = tmp_path / "bus/pci/devices" / f"0000:{index:02x}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{index // 4}\n")
    found = nvml.read_driver(driver, sysfs=tmp_path)
    return Box(name=machine.machine_name(found), gpus=found.gpus, links=found.links, source="detected")


def test_the_stand_in_asks_nothing_that_nvml_does_not_have():
    """An honest fake: every name it answers to is the real module's."""
    offered = [name for name in dir(Unknown) if name.startswith(("nvml", "NVML"))]
    assert [name for name in offered if not hasattr(pynvml, name)] == []


def test_gpus_are_recognised_and_placed(tmp_path: Path):
    """Catalogue figures, the driver's memory, NUMA node and links."""
    box = box_with(Driver(), tmp_path)
    assert box.name == "8x-rtx-pro-6000-server"
    assert box.gpus[0].bandwidth == 1_597_000_000_000
    assert box.gpus[0].memory_free == 101_000_000_000
    assert [gpu.numa for gpu in box.gpus] == [0] * 4 + [1] * 4
    assert {(link.a, link.b) for link in box.links if link.kind == "pix"} == {(0, 1), (2, 3), (4, 5), (6, 7)}


def test_a_gpu_at_x4_and_a_missing_peer_path_stand_out(tmp_path: Path):
    """They are named in words, not by colour alone."""
    box = box_with(Driver(), tmp_path)
    lines = " ".join(box_warnings(box))
    assert "gpu5 runs at x4 and could run at x16" in lines
    assert "cannot reach each other" in lines
    console = Console(width=100, record=True, no_color=True, file=StringIO())
    console.print(box_panel(box))
    assert "x4 (of x16!)" in console.export_text()


def test_an_unknown_gpu_is_described_and_marked(tmp_path: Path):
    """256 bits at 10 GHz on both edges are 640 GB/s; estimates are marked unverified."""
    gpu = box_with(Unknown(), tmp_path).gpus[0]
    assert gpu.bandwidth == 640_000_000_000
    assert "bf16" in gpu.unverified
    assert gpu.smem == 101_376


@pytest.mark.parametrize(
    ("title", "memory_mib", "name"),
    [
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 49_140, "rtx-4090-48gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", 48_935, "rtx-pro-5000"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", 73_415, "rtx-pro-5000-72gb"),
        ("NVIDIA RTX PRO 4500 Blackwell", 32_623, "rtx-pro-4500"),
        ("NVIDIA RTX A6000", 49_140, "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49_140, "rtx-6000-ada"),
        ("NVIDIA H20", 97_871, "h20"),
        ("NVIDIA H20-3e", 143_771, "h20-141gb"),
        ("NVIDIA H100 NVL", 95_830, "h100-nvl"),
        ("NVIDIA H100 PCIe", 81_559, "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", 81_559, "h100"),
        ("NVIDIA H200 NVL", 143_771, "h200-nvl"),
        ("NVIDIA H200", 143_771, "h200"),
        ("NVIDIA B300 SXM6 AC", 275_040, "b300"),
    ],
)
def test_driver_names_lead_to_the_right_row(title: str, memory_mib: int, name: str, tmp_path: Path):
    """Boards that share the driver's name differ in memory."""

    class Named(Driver):
        def nvmlDeviceGetName(self, handle: int) -> str:
            return title

        def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
            size = memory_mib * 1024**2
            return SimpleNamespace(total=size, free=size, used=0)

    assert box_with(Named(), tmp_path).gpus[0].name == name


def test_a_machine_without_a_driver_is_a_valid_box():
    """No GPUs, no noise."""
    box = machine.detect_machine()
    assert box.source == "detected"
    assert box.ram > 0
    assert box.host is not None
    assert box.host.disk_free > 0


def test_memory_bandwidth_is_a_real_measurement():
    """Something between a slow laptop and the fastest server."""
    speed, threads = measure_bandwidth(seconds=0.05)
    assert 10**8 < speed < 10**13
    assert threads >= 1


def test_the_bundle_describes_the_machine_but_not_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Host and user names, homes, serials, UUIDs and addresses are left out."""
    monkeypatch.setattr("socket.gethostname", lambda: "kirstens-tower")
    monkeypatch.setenv("HOME", "/home/kirsten")
    monkeypatch.setenv("LOGNAME", "kirsten")
    files = bundle.save_bundle(machine.detect_machine(), tmp_path / "configs")
    names = {file.name for file in files}
    assert {"box.toml", "cpu-info.txt", "memory-info.txt", "python-packages.txt", "gpu-info.txt"} <= names
    assert all("kirsten" not in file.read_text() for file in files)
    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    dirty = f"Serial Number : 1650\n GPU UUID : {uuid}\nat kirstens-tower {uuid} /home/kirsten/x\n"
    clean = bundle.anonymize(dirty)
    assert "1650" not in clean
    assert "12345678" not in clean
    assert "kirsten" not in clean


def test_a_bundle_can_be_planned_with(tmp_path: Path):
    """box.toml goes back into --box."""
    from moebox.detect import load_box

    bundle.save_bundle(machine.detect_machine(), tmp_path)
    assert codec.to_toml(load_box(str(tmp_path / "box.toml")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ps_names_the_user_who_holds_a_gpu() -> None:
    """A process of another user is shown with its owner; a stored box does not keep the name."""
    with subprocess.Popen(["sleep", "60"], user=65534, group=65534, cwd="/") as process:

        class SharedDriver(Driver):
            def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
                return [SimpleNamespace(pid=process.pid, usedGpuMemory=5 * 2**30)] if handle == 2 else []

        held, box = nvml.list_holders(SharedDriver()), nvml.read_driver(SharedDriver())
        process.kill()

    user = pwd.getpwuid(65534).pw_name
    assert gpu_lines(held) == [f"GPU 2  5.00 GiB  sleep of {user} (pid {process.pid})"]
    assert [holder.user for gpu in box.gpus for holder in gpu.holders] == [""]


def test_processes_with_gpu_memory_are_named_and_those_of_moebox_count_as_free(tmp_path: Path) -> None:
    """By /proc: a name for everybody's process, and the mark that every engine of moebox's carries."""
    for pid, name, environment in ((41, "python", b"A=1\0MOEBOX_INSTANCE=kimi-7\0"), (42, "blender", b"A=1\0")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "environ").write_bytes(environment)
    ours, other, gone = (nvml.identify_process(pid, 10 * 2**30, proc=tmp_path) for pid in (41, 42, 43))

    assert (ours.name, ours.instance) == ("python", "kimi-7")
    assert ours.user == pwd.getpwuid(os.geteuid()).pw_name
    (named,) = gpu_lines({3: [replace(ours, user="anna")]})
    assert named == "GPU 3  10.00 GiB  python of anna (pid 41), engine kimi-7"
    (hidden,) = gpu_lines({0: [gone]})
    assert hidden == "GPU 0  10.00 GiB  a process of an unknown user (pid 43)"
    assert (other.name, other.instance) == ("blender", "")
    assert (gone.name, gone.instance) == ("", "")
    gpu = catalogue.find_gpu("h200")
    busy = replace(gpu, memory_free=visible_bytes(gpu) - 20 * 2**30, holders=(ours, other))
    assert bytes_held_by_others(busy) == 10 * 2**30
    box = Box(name="here", gpus=(busy,))
    recipe = Recipe(name="t", engine="vllm", model="gpt-oss-120b", checkpoint="mxfp4", served_name="t")
    memory = Memory(devices=(), kv_tokens=10**6, kv_bytes_per_token=1, fits=True)
    warnings = [warning.text for warning in budget_warnings(deploy(recipe, box), memory, 1)]
    assert warnings[0].startswith("kimi-7, started by moebox, holds 10.7 GB: counted as free")
    assert "pid 42 (blender)" in warnings[1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Vendor ID:   ARM\nModel name:   Neoverse-V2\nSocket(s):   2\n", ("Neoverse-V2", 2)),  # two Grace
        ("Model name:   Cortex-X925\nSocket(s):   1\nModel name:   Cortex-A725\n", ("Cortex-X925 + Cortex-A725", 1)),
        ("Model name:   Neoverse-N1\nSocket(s):   -\n", ("Neoverse-N1", 1)),  # a virtual machine
        ("", ("", 1)),
    ],
)
def test_cpus_that_the_kernel_knows_by_number_have_names(text: str, found: tuple[str, int]):
    """On Arm /proc/cpuinfo has implementer and part; lscpu knows what they are called."""
    assert host.parse_lscpu(text) == found
    assert host.detect_cpu().model not in ("", "aarch64", "x86_64")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2,3", (2, 3)), ("5", (5,)), ("3,1", (3, 1)), ("", ()), ("-1", ()), ("1,9,2", (1,)), ("GPU-000000000006", (6,))],
)
def test_gpus_that_cuda_hides_are_not_counted(text: str, numbers: tuple[int, ...]):
    """By number or UUID, up to the first that is not there, as CUDA reads the variable."""
    assert nvml.visible_gpu_numbers(text, [f"GPU-{number:012d}-x" for number in range(8)]) == numbers


def test_a_plan_is_made_for_the_gpus_that_are_visible(tmp_path: Path):
    """The same shell starts it, or another one: the recipe names them as the driver counts them."""
    found = nvml.read_driver(Driver(), sysfs=tmp_path, only="4,5,6,7")
    box = Box(
        name=machine.machine_name(found), gpus=found.gpus, gpu_numbers=found.numbers, links=found.links, ram=2**40
    )
    assert box.name == "4x-rtx-pro-6000-server"
    recipe = choose_plan(box, *resolve_model("minimax-m2.7"), Constraints(tp=4)).recipe
    assert recipe.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert recipe.used_gpus(box) == (0, 1, 2, 3)
    assert replace(recipe, env={"CUDA_VISIBLE_DEVICES": "7, 5,"}).used_gpus(box) == (3, 1)
    assert {(link.a, link.b) for link in box.links if link.kind == "pix"} == {(0, 1), (2, 3)}


def test_all_visible_gpus_need_no_names(tmp_path: Path):
    """Nor does a list of all of them."""
    for only in (None, "0,1,2,3,4,5,6,7"):
        assert nvml.read_driver(Driver(), sysfs=tmp_path, only=only).numbers == ()


def test_parts_of_gpus_hide_none():
    """CUDA names a MIG part by its own UUID: the GPU below it is not known here."""
    assert nvml.visible_gpu_numbers("MIG-1f2e3d4c", ["GPU-a", "GPU-b"]) == (0, 1)
