"""Host checks: facts in, verdicts out."""

import dataclasses
import json
import subprocess
import sys

import pytest

from moebox.cli import main
from moebox.core.box import Box, Host, Link, Pcie
from moebox.core.catalogue import find_gpu
from moebox.doctor.box import HostCheck, KernelSettings, check_box, read_settings

CARD = dataclasses.replace(
    find_gpu("rtx-pro-6000-server"), pcie=Pcie(generation=5, width=16, max_generation=5, max_width=16)
)
GOOD = Host(
    driver="580.95.05", cuda="13.0", iommu="off", acs="off", shm=64 * 2**30, disk_free=10**13, disk_path="/models"
)


def box(**fields: object) -> Box:
    """Two healthy GPUs in a healthy host, but for `fields` (of the host)."""
    links = (Link(a=0, b=1, kind="pix", p2p=True),)
    host = dataclasses.replace(GOOD, **fields)  # type: ignore[arg-type]
    return Box(name="two", gpus=(CARD, CARD), links=links, host=host, source="detected")


def verdict(checks: list[HostCheck], name: str) -> str:
    """What became of one check."""
    return next(one.verdict for one in checks if one.name == name)


def test_a_healthy_box_passes_every_check() -> None:
    """Nothing to fix, nothing unknown."""
    assert {one.verdict for one in check_box(box(), settings=KernelSettings(files=65536, transparent="madvise"))} == {
        "pass"
    }


@pytest.mark.parametrize(
    ("fields", "name", "wanted"),
    [
        ({"iommu": "on"}, "iommu", "fail"),
        ({"iommu": "passthrough"}, "iommu", "pass"),
        ({"iommu": ""}, "iommu", "unknown"),
        ({"acs": "on"}, "acs", "warn"),
        ({"shm": 64 * 2**20}, "shared memory", "fail"),
        ({"shm": 8 * 2**30}, "shared memory", "warn"),
        ({"disk_free": 10**9}, "disk", "fail"),
        ({"disk_free": 10**11}, "disk", "warn"),
        ({"driver": "550.54"}, "driver", "fail"),
        ({"driver": "570.10"}, "driver", "warn"),
        ({"driver": "?"}, "driver", "unknown"),
        ({"runtimes": {"docker": "28.2"}}, "containers", "warn"),
    ],
)
def test_a_host_fault_is_found_with_its_fix(fields: dict[str, object], name: str, wanted: str) -> None:
    """One thing wrong at a time."""
    checks = check_box(box(**fields))
    assert verdict(checks, name) == wanted
    assert wanted in ("pass", "unknown") or next(one.fix for one in checks if one.name == name)


def test_gpus_without_peer_access_or_lanes_are_found() -> None:
    """P2P that the driver denies, and a GPU in a narrow slot."""
    narrow = dataclasses.replace(CARD, pcie=Pcie(generation=5, width=4, max_generation=5, max_width=16))
    sick = dataclasses.replace(box(), gpus=(CARD, narrow), links=(Link(a=0, b=1, kind="sys", p2p=False),))
    checks = check_box(sick)
    assert verdict(checks, "p2p") == "warn"
    assert verdict(checks, "gpu1 pcie") == "fail"
    assert verdict(checks, "topology") == "warn"


def test_low_limits_and_memory_settings_are_found() -> None:
    """What a shell allows, and what a CPU+GPU engine suffers from."""
    two_sockets = dataclasses.replace(box(), cpu=dataclasses.replace(box().cpu, numa_nodes=2))
    checks = check_box(
        two_sockets,
        settings=KernelSettings(
            files=1024, processes=2048, locked=65536, transparent="never", numa_balancing=True, swappiness=100
        ),
    )
    wanted = {"open files": "fail", "processes": "warn", "locked memory": "warn", "huge pages": "warn", "numa": "warn"}
    assert {name: verdict(checks, name) for name in wanted} == wanted


def test_a_download_that_does_not_fit_fails() -> None:
    """The bytes needed decide, not the usual size."""
    assert verdict(check_box(box(disk_free=5 * 10**11), need=6 * 10**11), "disk") == "fail"
    assert verdict(check_box(box(disk_free=5 * 10**11), need=10**11), "disk") == "pass"


def test_this_machine_can_be_read() -> None:
    """Limits and page settings of whatever runs the tests."""
    assert read_settings().files != 0
    assert read_settings().huge_total >= 0


def test_a_declared_box_gets_no_ticks(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was read from its hardware: no check passed, and a narrow slot that is declared is still a warning."""
    assert main(["doctor", "box", "--box", "8x-h200"]) == 0
    shown = capsys.readouterr().out
    assert "✓" not in shown
    assert "? gpu7 pcie       x16 of x16: declared, not read" in shown
    narrow = dataclasses.replace(CARD, pcie=dataclasses.replace(CARD.pcie, width=8))  # type: ignore[type-var]
    declared = dataclasses.replace(box(), gpus=(CARD, narrow), source="declared")
    found = {one.name: one.verdict for one in check_box(declared)}
    assert (found["gpu0 pcie"], found["gpu1 pcie"], found["p2p"], found["iommu"]) == (
        "unknown",
        "warn",
        "unknown",
        "unknown",
    )


def test_the_command_prints_one_document() -> None:
    """Every check with its verdict; the exit code follows from them."""
    words = [
        sys.executable,
        "-c",
        "import sys; from moebox.cli import main; sys.exit(main())",
        "doctor",
        "box",
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == (1 if document["verdict"] == "fail" else 0)
    assert {"name", "verdict", "found", "fix", "expected"} == set(document["checks"][0])
