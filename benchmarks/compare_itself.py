"""Compare a server with itself while another program keeps the cores busy: no difference may be claimed.

    python benchmarks/compare_itself.py 20                     # on this machine
    taskset -c 0,1 python benchmarks/compare_itself.py 20      # on two cores of a larger one

The rehearsal model is started once. Each comparison gets a busy program that starts at a random moment and runs for a
random time, so that often only one side is disturbed. The exit code is 1 if any comparison finds a difference.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MOEBOX = str(Path(sys.executable).with_name("moebox"))
BUSY = "import time, sys\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
COMPARE_S = 60.0  # about what a quick comparison takes


def main() -> int:
    """Start, compare several times, print a line for each and count the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    home = tempfile.mkdtemp(prefix="compare-")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("XDG_")} | {"HOME": home}
    different = failed = 0

    def run_moebox(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([MOEBOX, *words], capture_output=True, text=True, env=environment, check=False)

    try:
        started = run_moebox("up", "phantom", "--detach", "--json")
        if started.returncode:
            print(started.stdout + started.stderr)
            return 1
        url = json.loads(started.stdout)["base_url"]
        for number in range(asked.count):
            busy: list[subprocess.Popen[bytes]] = []
            words = [sys.executable, "-c", BUSY, str(random.uniform(5.0, COMPARE_S))]
            timer = threading.Timer(
                random.uniform(0.0, COMPARE_S), lambda words=words, busy=busy: busy.append(subprocess.Popen(words))
            )
            timer.start()
            began = time.monotonic()
            found = run_moebox("compare", url, url, "--effort", "quick", "--json")
            timer.cancel()
            for process in busy:
                process.kill()
                process.wait()
            try:
                result = json.loads(found.stdout)
                different += result["different"]
                text = result["verdict"]
            except (json.JSONDecodeError, KeyError):
                failed += 1
                text = found.stderr.strip()
            print(f"{number + 1}: {time.monotonic() - began:.0f} s, {text}", flush=True)
    finally:
        run_moebox("down", "--all")
    print(f"{different} of {asked.count} comparisons found a difference (goal: 0); {failed} gave no result")
    return int(different > 0 or failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
