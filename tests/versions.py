"""Versions of engines to install, upgrade to and bisect: tiny wheels of the toy, and commits of a llama-server.

The llama-server of a commit passes requests on to the embedded engine, with the fault that the commit injects.
"""

import base64
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

needs_cmake = pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("git"), reason="no cmake or git here")
needs_pip = pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="this Python has no pip")
SERVER = Path(__file__).with_name("faulty_server.py")
TOY_SERVER = Path(__file__).parent / "toy_engine" / "toy_engine" / "server.py"
CMAKE = """cmake_minimum_required(VERSION 3.16)
project(llama NONE)
{broken}
add_custom_target(llama-server COMMAND ${{CMAKE_COMMAND}} -E copy
  ${{CMAKE_SOURCE_DIR}}/llama-server ${{CMAKE_BINARY_DIR}}/bin/llama-server)
"""


def write_wheel(folder: Path, version: str, *, needs: str = "") -> Path:
    """Write a wheel of the toy with its program `toy-serve`; `needs` names a package that it requires."""
    info = f"toy_engine-{version}.dist-info"
    require = f"Requires-Dist: {needs}\n" if needs else ""
    contents = {
        "toy_server.py": TOY_SERVER.read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: toy-engine\nVersion: {version}\n{require}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntoy-serve = toy_server:main\n",
    }
    rows = []
    for name, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text.encode())}")
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"toy_engine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(name, text)
    return path


def run_git(tree: Path, *words: str) -> str:
    """Run git in a tree, without the user's settings."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    for kind in ("AUTHOR", "COMMITTER"):
        env |= {
            f"GIT_{kind}_NAME": "a",
            f"GIT_{kind}_EMAIL": "a@example.org",
            f"GIT_{kind}_DATE": "2026-11-01T00:00:00Z",
        }
    argv = ["git", "-C", str(tree), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout.strip()


def write_tree(tree: Path, faults: Sequence[str], prefix: str = "b") -> list[str]:
    """Write a git repository whose commits b1, b2, … have these faults ("" is none). Return the tags."""
    tree.mkdir(parents=True)
    run_git(tree, "init", "--quiet")
    tags = []
    for number, fault in enumerate(faults, 1):
        broken = 'message(FATAL_ERROR "this commit does not build")' if fault == "no-build" else ""
        (tree / "CMakeLists.txt").write_text(CMAKE.format(broken=broken))
        server = tree / "llama-server"
        server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SERVER}" b{number} "{fault}" "$@"\n')
        server.chmod(server.stat().st_mode | stat.S_IXUSR)
        run_git(tree, "add", "--all")
        run_git(tree, "commit", "--quiet", "--message", f"server: change {number}")
        run_git(tree, "tag", f"{prefix}{number}")
        tags.append(f"{prefix}{number}")
    return tags
