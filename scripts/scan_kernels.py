"""Writes src/moebox/data/kernels.toml: which kernels of known engine releases do not launch, by architecture.

    python scripts/scan_kernels.py FOLDER PYTHON

FOLDER holds unpacked wheels as sglang-VERSION/ and vllm-VERSION/; PYTHON has Triton and PyTorch. Kimi's shapes at TP8.
"""

import re
import sys
import tomllib
from pathlib import Path

from moebox.core import catalogue
from moebox.core.kernel import KernelScan, find_arch
from moebox_kernels.scan import KernelRequest, scan_engine

ARCHS = ("sm_120", "sm_90", "sm_100")
HEAD = """# What a scan of each release found for Kimi's shapes at TP8: launches made, and the kernels that do not fit.
# Made by scripts/scan_kernels.py; `moebox plan` reads it, so that nobody needs Triton to be warned.

"""


def row(found: KernelScan) -> str:
    """One release on one architecture with one cache type."""
    lines = ["[[scan]]", f'engine = "{found.engine}"', f'version = "{found.version}"', f'arch = "{found.arch}"']
    lines += [f'kv = "{found.kv}"', f'triton = "{found.triton}"', f"launches = {len(found.launches)}"]
    lines += [f"not_covered = {len(found.not_covered)}"]
    groups: dict[tuple[str, int], list[str]] = {}
    for one in found.failing_launches:
        groups.setdefault((one.kernel, one.shared_bytes), []).append(one.case)
    bad = [
        f'{{ kernel = "{kernel}", shared_bytes = {size}, case = "{cases[0]}" }}'
        for (kernel, size), cases in groups.items()
    ]
    return "\n".join([*lines, f"bad = [{', '.join(bad)}]"]) + "\n"


def main(folder: Path, python: Path) -> None:
    """Scan everything and write the table."""
    releases = sorted(folder.glob("*-*"), key=lambda path: (path.name.split("-")[0], numbers(path.name)))
    out = Path(__file__).parent.parent / "src/moebox/data/kernels.toml"
    before = tomllib.loads(out.read_text())["scan"] if out.exists() else []
    rows = re.findall(r"\[\[scan\]\]\n(?:.+\n)+", out.read_text()) if before else []
    done = {(one["engine"], one["version"], one["arch"], one["kv"]) for one in before}
    for name in ARCHS:
        for release in releases:
            for kv in ("bf16", "fp8"):
                if (*release.name.split("-"), name, kv) in done:
                    continue
                found = look(release, name, kv, python)
                rows.append(row(found))
                out.write_text(HEAD + "\n".join(rows))
                worst = sorted({(one.kernel, one.shared_bytes) for one in found.failing_launches})
                print(release.name, name, kv, len(found.launches), worst, flush=True)


def numbers(name: str) -> list[int]:
    """The version in "sglang-0.5.23", to sort by."""
    return [int(part) for part in name.split("-")[1].split(".")]


def look(release: Path, arch_name: str, kv: str, python: Path) -> KernelScan:
    """One scan."""
    return scan_engine(
        KernelRequest(
            engine=release.name.split("-")[0],
            arch=find_arch(arch_name),
            model=catalogue.find_model("kimi-k2.6"),
            kv=kv,
            site_packages=release,
            python=python,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
