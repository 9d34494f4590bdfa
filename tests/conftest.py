"""What all tests share: folders of their own, nothing of the caller's environment, and nothing left behind.

The suite runs in several workers at once (pytest-xdist), so no test may count on an order, a port, or being alone.
"""

import contextlib
import gc
import itertools
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from moebox import files, redact
from moebox.bench.generator.processes import stop_idle_workers
from moebox.detect.health import measure_bandwidth

# One profile for all: examples are bounded and the same in every run, so that only a change turns the suite red, and no
# test asserts a time. `HYPOTHESIS_PROFILE=explore` draws others, and more of them.
_USUAL = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("house", _USUAL, derandomize=True)
settings.register_profile("explore", _USUAL, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

SUITE = "MOEBOX_SUITE"  # in the environment of every process that a test starts
# vLLM leaves sockets between its processes behind, and PyTorch what it compiled.
SOCKET = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|vllm_dist_[0-9a-f]+|torchinductor_\w+")
LEAVING_S = 20.0  # for engines whose guard is still stopping them

# A shell's background job ignores SIGINT, and nohup's SIGHUP, and children inherit that; those here must hear both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Set before any fixture, whatever its scope: a suite's engines must never stand in the user's `moebox ps`, or fall to
# their `moebox down`. The cache outlives a session, since the rehearsal model takes some seconds to write.
# Workers' folders lie beside the first one's: within it, the paths of sockets would become too long.
_ROOT = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_FOLDERS = tempfile.TemporaryDirectory(prefix="moebox-tests-", dir=_ROOT)
_SCRATCH = Path(_FOLDERS.name, "tmp")
_NUMBERS = itertools.count(1)  # of tests without a folder of pytest's
_CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "xdg"
GPUS = os.environ.get("CUDA_VISIBLE_DEVICES")  # the caller's, for suites that need a GPU
os.environ |= {
    "MOEBOX_RUNS": f"{_FOLDERS.name}/runs",
    "MOEBOX_STATE": f"{_FOLDERS.name}/state",
    "XDG_STATE_HOME": f"{_FOLDERS.name}/xdg-state",
    "XDG_DATA_HOME": f"{_FOLDERS.name}/xdg-data",
    "XDG_CACHE_HOME": str(_CACHE),
    "TMPDIR": str(_SCRATCH),
    "HF_HUB_OFFLINE": "1",  # tests of the Hub ask a server of their own
    SUITE: _FOLDERS.name,
    "CUDA_VISIBLE_DEVICES": "",  # a machine with GPUs is tested like one without; suites for GPUs ask for theirs
    "MOEBOX_REPEATS": "0",  # workers disturb each other: loads are marked, not measured again
    "MOEBOX_THREADS": "1",  # workers share the cores, and engines whose threads wait for each other crawl there
    "MOEBOX_SITE": f"{_FOLDERS.name}/site.toml",
}
_SCRATCH.mkdir()
# Ports of its own for each worker: leases of ports are in the state, which workers do not share.
_FIRST_PORT = 20_000 + 2_500 * (int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % 5)
Path(os.environ["MOEBOX_SITE"]).write_text(f"ports = [{_FIRST_PORT}, {_FIRST_PORT + 2_499}]\n", encoding="utf-8")
tempfile.tempdir = None  # asks TMPDIR again
for _name in ("MOEBOX_CACHE", "MOEBOX_INSTANCE", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(_name, None)
measure_bandwidth.__kwdefaults__["seconds"] = 0.05  # how well memory is measured matters to no test
gc.disable()  # until all tests are collected: looking through them again and again takes a tenth of that time
sys.dont_write_bytecode = False  # hundreds of processes are started here: each would compile the sources again


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After the last test of a worker no process that it started lives, and no temporary file is there."""
    yield
    stop_idle_workers()
    until = time.monotonic() + LEAVING_S
    while (left := processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"processes left behind: {left}"
    files.remove_stale_scratch()  # what killed processes leave is swept by the next one
    assert not [path for path in _SCRATCH.iterdir() if not SOCKET.fullmatch(path.name)]


def processes() -> dict[int, str]:
    """Every process that came from this one, however detached it is: its environment says so."""
    mark = f"{SUITE}={_FOLDERS.name}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


# Suites with real engines, browsers, killed processes, many processes, plans or examples: everything else makes
# `make check`, which takes a minute.
SLOW = (
    "assess/test_properties.py",
    "bench/test_again.py",
    "bench/test_command.py",
    "bench/test_counts.py",
    "bench/test_embedded.py",
    "bench/test_fresh.py",
    "bench/test_hostile",
    "bench/test_keeping.py",
    "bench/test_load.py",
    "bench/test_result.py",
    "bench/test_tls.py",
    "bench/test_workers.py",
    "chain/",
    "cli/test_all_screens.py",
    "cli/test_calibrations.py",
    "cli/test_conventions.py",
    "cli/test_eighty_columns.py",
    "cli/test_flags.py",
    "cli/test_forecast.py",
    "cli/test_leaves_nothing.py",
    "cli/test_outside_tables.py",
    "cli/test_plan.py",
    "cli/test_plan_screen.py",
    "cli/test_plugins.py",
    "cli/test_support.py",
    "engines/test_start_rules_data.py",
    "engines/test_toy.py",
    "fleet/",
    "flows/",
    "hub/",
    "phantom/test_tasks.py",
    "phantom/test_weights.py",
    "planner/test_accuracy.py",
    "planner/test_choose.py",
    "planner/test_compressed_cache.py",
    "planner/test_gguf_files.py",
    "planner/test_kv_tiers.py",
    "planner/test_measured.py",
    "planner/test_never_worse.py",
    "planner/test_nofit.py",
    "planner/test_ranges.py",
    "planner/test_simulate.py",
    "quality/",
    "render/test_options.py",
    "report/test_files.py",
    "report/test_reading.py",
    "sandbox/",
    "serve/test_connect.py",
    "serve/test_faults.py",
    "serve/test_installs.py",
    "serve/test_orphans.py",
    "serve/test_rehearse.py",
    "serve/test_render.py",
    "serve/test_render_run.py",
    "serve/test_session.py",
    "serve/test_twin.py",
    "serve/test_twin_tools.py",
    "siege/",
    "tasks/",
    "test_api.py",
    "test_contributing.py",
    "test_docs.py",
    "test_fresh.py",
    "test_house.py",
    "test_wheel.py",
    "twin/",
    "verify/",
    "web/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make check` leaves to `make test`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(SLOW):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_folders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has run and state folders of its own, and no key, proxy or Hub setting of the caller's.

    They lie in the test's tmp_path. Most tests have none and write nothing: none is made for them.
    """
    if "tmp_path" in request.fixturenames:
        home = str(request.getfixturevalue("tmp_path"))
    else:
        home = f"{_FOLDERS.name}/{next(_NUMBERS)}"
    monkeypatch.setenv("MOEBOX_RUNS", f"{home}/runs")
    monkeypatch.setenv("MOEBOX_STATE", f"{home}/state")
    monkeypatch.setenv("MOEBOX_CALIBRATIONS", f"{home}/calibrations")
    # Keys of this test's endpoints are forgotten after it: every text would be searched for those of all tests before.
    monkeypatch.setattr(redact, "_known_keys", {*redact._known_keys})
    monkeypatch.setattr(redact, "_anywhere", redact._anywhere)
    monkeypatch.setattr(redact, "_by_itself", redact._by_itself)
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_TOKEN")) or name.lower().endswith("_proxy") or name.startswith("HF_"):
            monkeypatch.delenv(name)
