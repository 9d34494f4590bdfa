"""Code that a model wrote can only compute, at every level of isolation, as root and as an unprivileged user."""

import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from moebox.sandbox import start as sandbox
from moebox.sandbox.start import LEVELS, SandboxLevel, SandboxLimits, SandboxOutcome

QUICK = SandboxLimits(time_s=10, cpu_s=1, memory_bytes=256 * 2**20)


def run_at_level(source: str, level: SandboxLevel, limits: SandboxLimits = QUICK) -> SandboxOutcome:
    return sandbox.run_code(source, level=level, limits=limits)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> SandboxLevel:
    """Every level. All of them work on the kernels that the tests run on."""
    found: SandboxLevel = request.param
    return found


def test_code_computes_and_its_values_are_returned(level: SandboxLevel):
    """Functions of the code are called with the given arguments and their values are returned."""
    source = "import math, itertools, collections\ndef f(n):\n    return [math.comb(n, k) for k in range(n + 1)]\n"
    outcome = sandbox.run_code(source, "f", [[4], [0]], level=level)

    assert outcome.values == ([1, 4, 6, 4, 1], [1])
    assert outcome.ok
    assert outcome.level == level


def test_values_that_are_not_json_and_calls_that_fail_are_reported(level: SandboxLevel):
    """A call that fails does not hide the values of the others, and the reason is part of the outcome."""
    outcome = sandbox.run_code(
        "def f(x):\n    return {1, 2} if x else 5 // x + int('z')\n", "f", [[1], [2]], level=level
    )

    assert "set" in outcome.values[0]["!"]
    assert (
        sandbox.run_code("def f(x): return 1 / x", "f", [[0]], level=level).error
        == "ZeroDivisionError: division by zero"
    )
    assert "no function g" in sandbox.run_code("def f(): pass", "g", [[]], level=level).error
    assert "SyntaxError" in sandbox.run_code("def f(:", "f", [[]], level=level).error


# The kernel's number of a call: (x86_64, aarch64).
NUMBERS = {
    "BPF": (321, 280),
    "FANOTIFY_INIT": (300, 262),
    "INIT_MODULE": (175, 105),
    "IO_URING_SETUP": (425, 425),
    "KEYCTL": (250, 219),
    "OPEN_BY_HANDLE_AT": (304, 265),
    "PERF_EVENT_OPEN": (298, 241),
    "PIDFD_GETFD": (438, 438),
    "PIDFD_OPEN": (434, 434),
    "PIVOT_ROOT": (155, 41),
    "PRLIMIT64": (302, 261),
    "PROCESS_VM_READV": (310, 270),
    "PROCESS_VM_WRITEV": (311, 271),
    "TGKILL": (234, 131),
    "USERFAULTFD": (323, 282),
}
ESCAPES = {
    "network": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "netlink": "import socket\nsocket.socket(16, 3, 0)",
    "passwd": "print(open('/etc/passwd').read())",
    "home": "print(open(r'SECRET').read())",
    "listing": "import os\nprint(os.listdir(r'FOLDER'))",
    "write outside": "open(r'FOLDER/written', 'w').write('x')",
    "delete": "import os\nos.remove(r'SECRET')",
    "symlink": "import os\nos.symlink(r'SECRET', 'here')\nprint(open('here').read())",
    "hard link": "import os\nos.link(r'SECRET', 'here')\nprint(open('here').read())",
    "up and out": "import os\nos.chdir('..' + '/..' * 20)\nprint(open('.' + r'SECRET').read())",
    "chroot": "import os\nos.chroot('/')",
    "fork": "import os\nos.fork()",
    "exec": "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo out > FOLDER/written'])",
    "shell": "import os\nassert os.system('echo out > FOLDER/written') == 0",
    "spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "kill the parent": "import os, signal\nos.kill(os.getppid() or 1, signal.SIGKILL)",
    "kill moebox": "import os, signal\nos.kill(MOEBOX, signal.SIGTERM)",
    "kill all processes": "import os, signal\nos.kill(-1, signal.SIGTERM)",
    "ptrace": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.ptrace(16, MOEBOX, 0, 0) == 0",
    "read its memory": "print(open('/proc/MOEBOX/mem', 'rb').read(1))",
    "its environment": "print(open('/proc/MOEBOX/environ').read())",
    "parent's environment": "import os\nprint(open(f'/proc/{os.getppid()}/environ').read())",
    "mount": "import ctypes\nl = ctypes.CDLL(None)\nassert l.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "new namespace": "import ctypes\nl = ctypes.CDLL(None)\nassert l.unshare(0x10000000) == 0",
    "raise a limit": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))",
    "io_uring": "import ctypes\nassert ctypes.CDLL(None).syscall(IO_URING_SETUP, 8, b'\\0' * 120) >= 0",
    "bpf": "import ctypes\nassert ctypes.CDLL(None).syscall(BPF, 0, 0, 0) >= 0",
    "set user": "import os\nos.setuid(0) if os.getuid() else os.setuid(1)",
    "device": "import os\nos.mknod('null', 0o20666, os.makedev(1, 3))",
    "fifo": "import os\nos.mkfifo('pipe')",
    "set-uid bit": "import os\nos.chmod('.', 0o4777)",
    "give away": "import os\nos.chown('.', 1, 1)",
    "kernel module": "import ctypes\nassert ctypes.CDLL(None).syscall(INIT_MODULE, 0, 0, 0) == 0",
    "reboot": "import ctypes\nl = ctypes.CDLL(None)\nassert l.reboot(0) == 0",
    "host name": "import socket\nsocket.sethostname('moebox-was-here')",
    "the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "nice": "import os\nos.nice(-5)",
    "keys": "import ctypes\nassert ctypes.CDLL(None).syscall(KEYCTL, 0, 0, 0) >= 0",
    "another's file descriptors": "import ctypes\nassert ctypes.CDLL(None).syscall(PIDFD_GETFD, 0, 1, 0) >= 0",
    "open another process": "import ctypes\nassert ctypes.CDLL(None).syscall(PIDFD_OPEN, MOEBOX, 0) >= 0",
    "another's memory": "import ctypes\nassert ctypes.CDLL(None).syscall(PROCESS_VM_READV, MOEBOX, 0, 0, 0, 0, 0) >= 0",
    "user faults": "import ctypes\nassert ctypes.CDLL(None).syscall(USERFAULTFD, 0) >= 0",
    "performance counters": "import ctypes\nassert ctypes.CDLL(None).syscall(PERF_EVENT_OPEN, 0, 0, 0, 0, 0) >= 0",
    "join a namespace": "import ctypes\nl = ctypes.CDLL(None)\nassert l.setns(0, 0) == 0",
    "pivot": "import ctypes\nassert ctypes.CDLL(None).syscall(PIVOT_ROOT, b'/tmp', b'/tmp') == 0",
    "swap": "import ctypes\nl = ctypes.CDLL(None)\nassert l.swapon(b'/tmp/x', 0) == 0",
    "a shell by subprocess": "import subprocess\nsubprocess.run(['/bin/touch', 'FOLDER/written'], check=True)",
    "multiprocessing": "import multiprocessing.shared_memory as m\nm.SharedMemory(create=True, size=16)",
    "pty": "import pty\npty.openpty()",
    "kernel log": "print(open('/dev/kmsg').read(1))",
    "vsock": "import socket\nsocket.socket(40, socket.SOCK_STREAM)",
    "raw packets": "import socket\nsocket.socket(17, socket.SOCK_RAW, 0)",
    "a program in memory": "import os\nfd = os.memfd_create('x')\nos.write(fd, b'#!')\nos.execve(fd, ['x'], {})",
    "write its memory": "import ctypes\nassert ctypes.CDLL(None).syscall(PROCESS_VM_WRITEV, MOEBOX, *[0] * 5) >= 0",
    "open by handle": "import ctypes\nassert ctypes.CDLL(None).syscall(OPEN_BY_HANDLE_AT, -100, b'\\0' * 64, 0) >= 0",
    "watch files": "import ctypes\nassert ctypes.CDLL(None).syscall(FANOTIFY_INIT, 0, 0) >= 0",
    "another's limits": "import ctypes\nassert ctypes.CDLL(None).syscall(PRLIMIT64, MOEBOX, 7, 0, b'\\0' * 16) == 0",
    "signal a thread of ours": "import ctypes\nassert ctypes.CDLL(None).syscall(TGKILL, MOEBOX, MOEBOX, 0) == 0",
    "outlive its parent": "import ctypes\nl = ctypes.CDLL(None)\nassert l.prctl(1, 0, 0, 0, 0) == 0",
}


TRY_ALL = """
for name, source in ESCAPES.items():
    try:
        exec(source, {})
        print("GOT OUT:", name)
    except (OSError, AssertionError, ImportError, ValueError):
        pass
print("THE END")
"""


def with_call_numbers(source: str) -> str:
    """Replace the names of system calls by their numbers on this machine."""
    column = ("x86_64", "aarch64").index(platform.machine())
    return re.sub(r"syscall\((\w+),", lambda found: f"syscall({NUMBERS[found[1]][column]},", source)


def test_attempts_to_get_out_fail(level: SandboxLevel, tmp_path: Path):
    """Each attempt raises an error, and nothing outside is read or changed."""
    secret = tmp_path / "secret"
    secret.write_text("the family silver")
    os.environ["MOEBOX_TEST_SECRET"] = "the family silver"
    source = f"ESCAPES = {ESCAPES!r}\n{TRY_ALL}".replace("SECRET", str(secret)).replace("FOLDER", str(tmp_path))
    outcome = run_at_level(with_call_numbers(source).replace("MOEBOX", str(os.getpid())).replace("PORT", "9"), level)
    del os.environ["MOEBOX_TEST_SECRET"]

    assert outcome.output == "THE END\n"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert secret.read_text() == "the family silver"


def test_the_environment_is_empty(level: SandboxLevel):
    """The code cannot read a key from the caller's environment."""
    outcome = run_at_level("import os\nprint(sorted(os.environ))", level)

    assert outcome.output.strip() in ("['LC_CTYPE']", "[]")


def test_no_descriptor_of_ours_is_open(level: SandboxLevel):
    """Only stdin, stdout, stderr and the pipe of the results are open."""
    outcome = run_at_level(
        "import os\nfor n in range(64):\n    try: os.fstat(n); print(n)\n    except OSError: pass", level
    )

    assert len(outcome.output.split()) <= 4


def test_a_loop_without_end_is_ended(level: SandboxLevel):
    """The limit of computing time ends it."""
    outcome = run_at_level("while True: pass", level)

    assert "1 s of computing" in outcome.error


def test_a_sleep_without_end_is_ended(level: SandboxLevel):
    """The limit of wall time ends it."""
    outcome = run_at_level("import time\ntime.sleep(1000)", level, SandboxLimits(time_s=0.5))

    assert outcome.timed_out
    assert "0.5 s" in outcome.error


def test_a_memory_bomb_is_a_memory_error(level: SandboxLevel):
    """The code hits its own limit before the machine is short of memory."""
    assert "MemoryError" in run_at_level("x = bytearray(2 * 10**9)", level).error
    assert not run_at_level("x = []\nwhile True: x.append('x' * 10**6)", level).ok


def test_a_thread_bomb_ends(level: SandboxLevel):
    """Threads count against the limits of memory and time."""
    source = "import _thread, time\nwhile True: _thread.start_new_thread(time.sleep, (100,))"

    assert not run_at_level(source, level).ok


def test_a_flood_of_output_is_cut(level: SandboxLevel):
    """The code is ended, and at most 1 MiB of its output is kept."""
    outcome = run_at_level("while True: print('x' * 10000)", level)

    assert "printed more than" in outcome.error
    assert len(outcome.output) <= 2**20


def test_a_disk_bomb_is_cut(level: SandboxLevel):
    """Code cannot write more than its quota, or cannot write at all."""
    source = "f = open('big', 'wb')\nfor _ in range(200): f.write(b'x' * 2**20)"

    assert not run_at_level(source, level).ok


def test_its_temp_folder_is_its_own_and_does_not_stay(level: SandboxLevel):
    """Files can be made there, except at the level at which nothing can be opened."""
    outcome = run_at_level("open('a', 'w').write('x')\nimport os\nprint(os.getcwd(), open('a').read())", level)

    assert outcome.ok == (level != "seccomp")
    if level == "landlock":
        assert not Path(outcome.output.split()[0]).exists()


FORGE = """
import os
for number in range(3, 64):
    for line in (b'{"setup": "no"}', b'{"exit": 0, "values": [[0, 42]], "error": ""}', b'{"place": 0, "value": 42}'):
        try: os.write(number, line + b"\\n")
        except OSError: pass
"""


def test_there_are_fifty_ways_out_to_try():
    """The documentation promises at least 50 attempts."""
    assert len(ESCAPES) >= 50


def test_code_cannot_forge_a_failed_setup(level: SandboxLevel):
    """Only the supervisor writes the result line: writing to every descriptor changes neither level nor values."""
    before = sandbox.strongest_level()
    outcome = sandbox.run_code(FORGE, level=level)

    assert outcome.level == level
    assert outcome.values == ()
    assert sandbox.strongest_level() == before


def test_code_cannot_forge_its_exit_code(level: SandboxLevel):
    """A program that failed is reported as failed, whatever it wrote before."""
    outcome = sandbox.run_code(FORGE + "raise SystemExit(3)", level=level)

    assert outcome.exit_code == 3
    assert not outcome.ok


def test_values_written_beside_the_functions_are_refused(level: SandboxLevel):
    """Code that writes a value before its function is called is detected, because that call then has two values."""
    outcome = sandbox.run_code(FORGE + "\ndef f(): return 7\n", "f", [[]], level=level)

    assert outcome.values == ()
    assert "pipe of its results" in outcome.error


def test_no_capability_is_left(level: SandboxLevel):
    """The locked process has no Linux capability, besides the filter of its system calls."""
    source = (
        "import ctypes\nhead = (ctypes.c_uint32 * 2)(0x20080522, 0)\nsets = (ctypes.c_uint32 * 6)()\n"
        "assert ctypes.CDLL(None).capget(head, sets) == 0\nprint(sum(sets))"
    )
    outcome = run_at_level(source, level)

    assert outcome.ok
    assert outcome.output.strip() == "0" or (level != "namespaces" and os.geteuid() == 0)


def test_only_a_few_descriptors_can_be_open(level: SandboxLevel):
    """The limit of open files ends a program that collects them; 64 is the number after the highest one."""
    source = "import os\nlast = 0\ntry:\n    while True: last = os.dup(0)\nexcept OSError as e: print(e.errno, last)"
    outcome = run_at_level(source, level)

    assert outcome.output.split() == ["24", "63"]  # EMFILE


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has a second table of system calls")
def test_system_calls_of_the_second_table_are_refused(level: SandboxLevel):
    """getpid is allowed, and by its x32 number it is not: the filter refuses it, not the kernel (ENOSYS)."""
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(39) > 0, libc.syscall(0x40000000 + 39), ctypes.get_errno())"
    )
    outcome = run_at_level(source, level)

    assert outcome.output.split() == ["True", "-1", "1"]  # EPERM


FILE_LEVELS: tuple[SandboxLevel, ...] = ("namespaces", "landlock")


@pytest.mark.parametrize("walls", FILE_LEVELS)
def test_a_program_sees_its_files_and_brings_back_what_it_left(walls: SandboxLevel):
    """Files are written into its folder, the script runs, and new, changed and deleted files are read back."""
    files = {"a/data.txt": b"21", "gone": b"x", "go.py": b"import sys, os\nfrom a import m\nm.go(sys.argv[1])\n"}
    files["a/m.py"] = b"import os\ndef go(w):\n    os.remove('gone')\n    open('out', 'w').write(w * 2)\n"
    outcome = sandbox.run_program(files, "go.py", ["ab"], level=walls)

    assert outcome.ok, outcome
    assert outcome.files is not None
    assert outcome.files["out"] == b"abab"
    assert "gone" not in outcome.files


@pytest.mark.parametrize("walls", FILE_LEVELS)
def test_a_library_module_runs_as_a_program(walls: SandboxLevel):
    """unittest finds the tests in the folder, and its exit code is returned."""
    bad = b"import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(1, 2)\n"
    outcome = sandbox.run_program({"test_it.py": bad}, "unittest", ["-q"], module=True, level=walls)

    assert outcome.exit_code == 1
    assert "1 != 2" in outcome.output


@pytest.mark.parametrize("walls", FILE_LEVELS)
def test_a_failed_snippet_does_not_stop_the_next(walls: SandboxLevel):
    """One that raises, exits, or leaves a value that JSON cannot hold has a reason as its value."""
    files = {"mod.py": b"x = 5\n"}
    sources = ["import mod\nresult = mod.x", "raise SystemExit(0)", "result = {1}", "pass", "result = 'end'"]
    outcome = sandbox.run_snippets(files, sources, level=walls)

    assert outcome.values[0] == 5
    assert [sorted(value) for value in outcome.values[1:4]] == [["!"], ["!"], ["!"]]
    assert outcome.values[4] == "end"


def test_a_snippet_without_end_keeps_the_values_before_it():
    """Each value is sent as soon as it is there."""
    outcome = sandbox.run_snippets({}, ["result = 1", "while True: pass", "result = 3"], limits=QUICK)

    assert outcome.values == (1,)
    assert not outcome.ok


def test_files_that_leave_the_folder_are_refused():
    """A path outside the folder is an error before a process is started."""
    for name in ("../x", "/etc/x", "a/../../x", ""):
        with pytest.raises(ValueError, match="leaves the folder"):
            sandbox.run_program({name: b""}, "x")


def test_nothing_outlives_the_job(level: SandboxLevel):
    """No process of the jail is left, even if the code asked for a session of its own."""
    run_at_level(
        "import os, time\ntry: os.setsid()\nexcept OSError: pass\ntime.sleep(1000)", level, SandboxLimits(time_s=0.3)
    )
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout

    assert "moebox.sandbox.jail" not in listed


def test_the_sandbox_holds_without_root():
    """An unprivileged user gets the same isolation at every level, with an interpreter that this user may run."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        os.chmod(home, 0o755)  # noqa: S103
        sources = Path(sandbox.__file__).parents[1]
        unneeded = shutil.ignore_patterns("*.gguf", "__pycache__", "data", "engines", "web")
        shutil.copytree(sources, Path(home, "moebox"), ignore=unneeded)
        argv = [interpreter_for_nobody(), "-B", "-c", NOBODY, home]
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env={"TMPDIR": "/tmp"}, check=False, **who)
    seen = json.loads(done.stdout or done.stderr)

    assert seen["uid"] != 0
    assert seen["strongest"] in LEVELS
    assert seen["levels"]
    for results in seen["levels"].values():
        assert results["memory_owner"] == 0, "other processes of the user can read the code's memory"
        assert results["values"] == [9]
        assert all(results["escapes"].values()), results


NOBODY = """
import json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from moebox.sandbox import start as sandbox
escapes = {
    "passwd": "open('/etc/passwd').read()",
    "network": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "fork": "import os; os.fork()",
    "environment": f"open('/proc/{os.getpid()}/environ').read()",
    "kill": f"import os; os.kill({os.getpid()}, 15)",
    "write": "open('/var/tmp/moebox-was-here', 'w')",
}

def parents():
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    return found

def memory_owner(level):
    # The kernel gives the memory of a process that is not dumpable to root, and of any other to its user.
    limits = sandbox.SandboxLimits(time_s=20)
    job = threading.Thread(target=sandbox.run_code, args=("import time; time.sleep(20)",),
                           kwargs={"level": level, "limits": limits})
    job.start()
    owner = None
    while job.is_alive():
        tree = parents()
        for pid, parent in tree.items():
            if tree.get(parent) != os.getpid():
                continue
            try:
                owner = os.stat(f"/proc/{pid}/mem").st_uid
            except OSError:
                continue
            if owner == 0:
                os.kill(pid, 9)
                job.join()
    return owner

levels = {}
for level in sandbox.LEVELS:
    try:
        good = sandbox.run_code("def f(x): return x * x", "f", [[3]], level=level)
    except sandbox.NoSandbox:
        continue
    held = {name: not sandbox.run_code(code, level=level).ok for name, code in escapes.items()}
    levels[level] = {"values": list(good.values), "escapes": held, "memory_owner": memory_owner(level)}
print(json.dumps({"uid": os.getuid(), "strongest": sandbox.strongest_level(), "levels": levels}))
"""


def interpreter_for_nobody() -> str:
    """Return a Python 3.11 or newer that any user may run: ours, unless it is in a private home folder."""
    for path in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if path and all(parent.stat().st_mode & 0o001 for parent in Path(path).parents):
            return path
    raise AssertionError("no interpreter that an unprivileged user can run")
