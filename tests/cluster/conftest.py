"""A real Slurm with two nodes and a real sshd, both on loopback, in a temporary folder, gone after the session."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core.recipe import Listen, Parallel, Recipe, Runtime
from moebox.flows.recipes import load_recipe
from moebox.serve import state
from moebox.serve.agent import processes_with_mark
from moebox.serve.nodes import prepare_nodes
from moebox.serve.preflight import find_free_port
from moebox.serve.session import EngineSession, launch_engine
from moebox.serve.where import NodePrograms, NodeSelection, NodeSettings
from moebox.store import Run

ENGINE = Path(__file__).with_name("engine.py")
START_S = 60.0
SLURM = NodeSelection(slurm=True, settings=NodeSettings(nodes=NodePrograms(python=sys.executable)))
QUIET = iter(range(20_000 + os.getpid() % 5_000 * 2, 32_000, 2))
NAMES = ("n1", "n2")
CONF = """ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
KillWait=5
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=1:00:00 State=UP
"""


# NODE_FAULT reaches the second node alone; a Python in its place acts it out.
SSH = """#!/bin/sh
case " $* " in *" s2 "*) [ -z "$NODE_FAULT" ] || set -- -o "SetEnv=NODE_FAULT=$NODE_FAULT" "$@" ;; esac
exec {real} -F {folder}/config "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a test needs to know of it."""

    folder: Path
    port: int = 0


def started(argv: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as file:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def until(good: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_S
    while not good():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@contextlib.contextmanager
def ended(processes: list["subprocess.Popen[bytes]"]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in reversed(processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """munged, slurmctld and two slurmd."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "munge", *(f"spool-{node}" for node in NAMES)):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    for number in range(8):
        (folder / f"gpu{number}").touch()
    host = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={find_free_port()} "
        "CPUs=4 RealMemory=1000 Gres=gpu:8"
        for name in NAMES
    )
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, host=host, ctld=find_free_port(), nodes=nodes))
    (folder / "gres.conf").write_text("".join(f"NodeName={name} Name=gpu File={folder}/gpu[0-7]\n" for name in NAMES))
    munge = {word: f"{folder}/munge/{word}" for word in ("key", "sock", "pid", "log", "seed")}
    words = ["munged", "--foreground", "--force", f"--key-file={munge['key']}", f"--socket={munge['sock']}"]
    words += [f"--pid-file={munge['pid']}", f"--log-file={munge['log']}", f"--seed-file={munge['seed']}"]
    running: list[subprocess.Popen[bytes]] = []
    os.environ["SLURM_CONF"] = str(conf)
    with no_process_of(conf), ended(running):
        running.append(started(words, folder / "out"))
        until(lambda: Path(munge["sock"]).exists(), "munged did not start")
        running.append(started(["slurmctld", "-D", "-f", str(conf)], folder / "out"))
        running.extend(started(["slurmd", "-D", "-N", name, "-f", str(conf)], folder / "out") for name in NAMES)
        until(lambda: "idle" in said(["sinfo", "--noheader", "--format=%T %D"]), "slurmd did not register")
        yield Cluster(folder=folder)
        no_jobs()  # slurmd's steps outlive it: a job that is left when it ends has no owner
    del os.environ["SLURM_CONF"]


def no_jobs() -> None:
    """Cancel every job and wait until its processes are gone."""
    for job in said(["squeue", "--noheader", "--format=%i"]).split():
        subprocess.run(["scancel", job], check=False)
    until(lambda: not said(["squeue", "--noheader"]).strip(), "a job stays")


@contextlib.contextmanager
def no_process_of(conf: Path) -> Iterator[None]:
    """Whatever was started with this configuration is gone afterwards; what is not is killed, and an error."""
    try:
        yield
    finally:
        left = {pid: command_of(pid) for pid in started_with(f"SLURM_CONF={conf}")}
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"left when Slurm was gone: {left}"


def started_with(variable: str) -> list[int]:
    """Processes, other than this one, that were started with this variable."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if variable.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return ""


def said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with no job before and none left after a test."""
    assert not said(["squeue", "--noheader"]).strip()
    yield slurm_cluster
    try:
        until(lambda: not said(["squeue", "--noheader"]).strip(), "a test left a job")
    finally:
        no_jobs()


@pytest.fixture(scope="session")
def ssh_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One sshd that answers to two names, and an ssh that finds it."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = find_free_port()
    keys = folder / "authorized"
    shutil.copy(folder / "user.pub", keys)
    keys.chmod(0o600)
    daemon = f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {keys}\n"
    daemon += f"PidFile {folder}/pid\nAcceptEnv NODE_FAULT\n"
    daemon += "StrictModes no\nPermitRootLogin yes\nUsePAM no\nPasswordAuthentication no\n"
    (folder / "sshd_config").write_text(daemon)
    client = (
        f"Host s1 s2\nHostName 127.0.0.1\nPort {port}\nIdentityFile {folder}/user\nUserKnownHostsFile {folder}/known\n"
    )
    client += "StrictHostKeyChecking accept-new\n"
    (folder / "config").write_text(client)
    real = shutil.which("ssh")
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(SSH.format(real=real, folder=folder))
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    running = [started([shutil.which("sshd") or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")], folder / "out")]
    with ended(running):
        until(lambda: open_port(port), f"sshd did not start: {(folder / 'out').read_text()[-300:]}")
        yield Cluster(folder=folder, port=port)


def quiet_port() -> int:
    """A port that is free with the next one, below those that connections take; another each time."""
    for port in QUIET:
        with contextlib.suppress(OSError):
            for taken in (port, port + 1):
                socket.create_server(("127.0.0.1", taken)).close()
            return port
    raise AssertionError("no two ports are free")


def open_port(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def ssh(ssh_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The nodes s1 and s2 over ssh."""
    monkeypatch.setenv("PATH", f"{ssh_cluster.folder / 'bin'}:{os.environ['PATH']}")
    return ssh_cluster


@pytest.fixture
def spanning(tmp_path: Path) -> Callable[..., Path]:
    """A recipe for the small engine over two nodes."""

    def make(mode: str = "") -> Path:
        recipe = Recipe(
            name="span",
            engine="vllm",
            model="kimi-k2.6",
            checkpoint="moonshotai/Kimi-K2.6",
            served_name="small",
            parallel=Parallel(tp=1, pp=2, nodes=2),
            runtime=Runtime(entry=f"{sys.executable} {ENGINE} serve"),
            listen=Listen(port=quiet_port()),
            env={"SMALL_ENGINE": mode, "SMALL_ENGINE_PORT": str(find_free_port())},
        )
        path = tmp_path / "span.toml"
        path.write_text(codec.to_toml(recipe))
        return path

    return make


def ranks_gone(mark: str) -> None:
    """No process of any rank is left, on any node: they all are this machine."""
    until(lambda: not processes_with_mark(mark), f"left: {processes_with_mark(mark)}")


@contextlib.contextmanager
def session(recipe: Path, where: NodeSelection = SLURM) -> Iterator[EngineSession]:
    run = Run.create("span")
    running = launch_engine(prepare_nodes(deploy(load_recipe(str(recipe))), run, where, lambda _: None), run)
    try:
        yield running
    finally:
        running.stop()
        ranks_gone(state.instance_mark(run.id))


def hosts(tmp_path: Path, text: str = "s1 127.0.0.1\ns2 127.0.0.1\n") -> NodeSelection:
    path = tmp_path / "hosts"
    path.write_text(text)
    return NodeSelection(hosts=path, settings=NodeSettings(nodes=NodePrograms(python=sys.executable)))
