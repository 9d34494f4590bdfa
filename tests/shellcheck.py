"""What shellcheck says of scripts: the dev group's, or the machine's own where it has no wheel (Linux on Arm)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_OURS = Path(sys.executable).with_name("shellcheck")


def complaints(*paths: Path, text: str | None = None, severity: str = "style") -> str:
    """Empty where it has none; skips where there is no shellcheck."""
    program = str(_OURS) if _OURS.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip(
            "no shellcheck here: its package has no wheel for this machine (Debian: apt-get install shellcheck)"
        )
    command = [program, f"--severity={severity}", *(str(path) for path in paths)]
    done = subprocess.run(command + ["-"] * (text is not None), input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""
