"""Write the wheels that the container installs, with their SHA-256: pip refuses any other (--require-hashes).

    python scripts/lock_wheels.py out/dist/moebox-0.2.0-py3-none-any.whl > out/dist/requirements.lock

Resolved for Containerfile's Python on x86_64 and aarch64 by the configured index; `make dist` runs it.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GLIBC = (28, 27, 24, 17)  # of manylinux, newest first; the base image has a newer one


def read_python_version() -> str:
    """The version of Containerfile's base image."""
    found = re.search(r"python:(\d+\.\d+)", Path(__file__).parents[1].joinpath("Containerfile").read_text())
    return found[1] if found else f"{sys.version_info.major}.{sys.version_info.minor}"


def resolve_wheels(wheel: str, machine: str) -> dict[str, str]:
    """The hash of each `name==version` that the wheel needs on one kind of machine."""
    platforms = [word for minor in GLIBC for word in ("--platform", f"manylinux_2_{minor}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--python-version", read_python_version()]
        options += ["--target", folder, "--report", str(report), *platforms, "--platform", f"manylinux2014_{machine}"]
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
        subprocess.run([*argv, f"{Path(wheel).resolve()}[embedded]"], check=True)
        rows = json.loads(report.read_text())["install"]
    found = {f"{row['metadata']['name']}=={row['metadata']['version']}": row["download_info"] for row in rows}
    return {name: info["archive_info"]["hashes"]["sha256"] for name, info in found.items() if "moebox==" not in name}


def main() -> int:
    """Print one line a package."""
    machines = [resolve_wheels(sys.argv[1], machine) for machine in ("x86_64", "aarch64")]
    for name in sorted({name for found in machines for name in found}, key=str.lower):
        hashes = sorted({found[name] for found in machines if name in found})
        print(name, *(f"--hash=sha256:{each}" for each in hashes), sep=" \\\n    ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
