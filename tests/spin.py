"""Programs that use cores and do nothing else."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[list[int]]:
    """Run this many programs that use a core each, in sessions of their own: Linux shares cores by session."""
    spin = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(spin, start_new_session=True) for _ in range(count)]
    try:
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
