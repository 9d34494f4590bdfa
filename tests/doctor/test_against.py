"""What changed since a capture."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from moebox import codec
from moebox.core.box import Box, Cpu, Host, Link, Pcie
from moebox.core.catalogue import find_gpu
from moebox.doctor.box import compare_boxes

SLOT = Pcie(generation=5, width=16, max_generation=5, max_width=16)
GPU = dataclasses.replace(find_gpu("rtx-5090"), pcie=SLOT, max_clock=3090, power_limit=575)
HOST = Host(system="Linux 6.8.0", bios="AMI 2.1 01/02/2026", driver="580.95.05", cuda="13.0", iommu="off")
OLD = Box(
    name="2x-rtx-5090",
    gpus=(GPU, GPU),
    links=(Link(a=0, b=1, kind="phb", p2p=True),),
    cpu=Cpu(model="EPYC 9355"),
    ram=768 * 2**30,
    host=HOST,
    source="detected",
)


def test_an_unchanged_box_has_no_changes() -> None:
    """One line that names the capture."""
    assert [(check.name, check.verdict) for check in compare_boxes(OLD, OLD)] == [("changes", "pass")]


def test_each_change_is_named_with_both_values() -> None:
    """Driver, BIOS, kernel, IOMMU, lanes, clocks, power, memory and peer access."""
    worse = dataclasses.replace(
        GPU, pcie=dataclasses.replace(SLOT, width=8), max_clock=2400, power_limit=400, memory=GPU.memory // 2
    )
    host = dataclasses.replace(HOST, system="Linux 6.14.0", bios="AMI 2.4 08/09/2026", driver="590.44.01", iommu="on")
    new = dataclasses.replace(
        OLD, gpus=(GPU, worse), host=host, ram=704 * 2**30, links=(Link(a=0, b=1, kind="phb", p2p=False),)
    )
    checks = {check.name: check for check in compare_boxes(new, OLD)}
    named = {"driver", "kernel", "bios", "iommu", "ram", "gpu1 lanes", "gpu1 clocks", "gpu1 power", "gpu1 memory"}
    assert named | {"gpu0-gpu1"} == checks.keys()
    assert checks["gpu1 lanes"].found == "x16, at most 5.0 before, x8, at most 5.0 now"
    assert checks["gpu1 power"].fix == "nvidia-smi -i 1 -pl 575"
    assert all(check.fix and "before" in check.found for check in checks.values())


def test_a_lost_gpu_is_the_first_thing_to_look_at() -> None:
    """Fewer GPUs than in the capture."""
    checks = compare_boxes(dataclasses.replace(OLD, gpus=(GPU,), links=()), OLD)
    assert [check.name for check in checks] == ["gpus"]
    assert "2 before, 1 now" in checks[0].found


def test_the_command_reads_a_capture_folder(tmp_path: Path) -> None:
    """`--against` takes what `moebox box --save` wrote; a missing one is one line."""
    (tmp_path / "box.toml").write_text(codec.to_toml(OLD))
    newer = tmp_path / "now.toml"
    newer.write_text(codec.to_toml(dataclasses.replace(OLD, host=dataclasses.replace(HOST, driver="590.44.01"))))
    command = [sys.executable, "-m", "moebox", "doctor", "box", "--box", str(newer), "--against", str(tmp_path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert [check["name"] for check in json.loads(done.stdout)["checks"]] == ["driver"]
    done = subprocess.run([*command[:-1], str(tmp_path / "none.toml")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) <= 2
