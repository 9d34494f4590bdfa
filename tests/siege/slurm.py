"""A Slurm controller of our own on loopback, with nodes that exist on paper: enough for `sbatch --test-only`."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONF = """ClusterName=siege
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
ProctrackType=proctrack/linuxproc
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=300
ResumeTimeout=600
NodeName=n[1-4] NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 Gres=gpu:16 State=CLOUD
PartitionName=siege Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def installed() -> bool:
    """Debian's slurm-wlm and munge are here, and this may start them."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("munged", "slurmctld", "sbatch"))


@contextlib.contextmanager
def controller(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch finds it."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(port=port, folder=folder))
    munge = [f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munge.pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/seed"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(["munged", "--force", "--foreground", *munge], **quiet)]  # type: ignore[call-overload]
    try:
        _until(lambda: (folder / "munge.sock").exists())
        started.append(subprocess.Popen(["slurmctld", "-D", "-f", conf], **quiet))  # type: ignore[call-overload]
        env = os.environ | {"SLURM_CONF": str(conf)}
        _until(lambda: subprocess.run(["sinfo"], env=env, **quiet, check=False).returncode == 0)  # type: ignore[call-overload]
        yield env
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def _until(happened: object, *, tries: int = 300) -> None:
    for _ in range(tries):
        if happened():  # type: ignore[operator]
            return
        time.sleep(0.1)
    raise TimeoutError("Slurm's controller did not come up")


def refusal(job: Path, env: dict[str, str]) -> str:
    """What `sbatch --test-only` has against the file; nothing where it would start."""
    done = subprocess.run(["sbatch", "--test-only", job], env=env, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()
