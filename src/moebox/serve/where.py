"""The nodes that an engine runs on, as given on the command line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What Slurm is asked for; "" leaves it to Slurm."""

    partition: str = ""
    account: str = ""
    time_limit: str = ""  # such as 8:00:00; the partition's own without it


@dataclass(frozen=True, kw_only=True)
class NodePrograms:
    python: str = "python3"  # runs moebox's agent; it needs no package


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """When a service restarts its engine (`--set service.canary_s=60`)."""

    canary_every_s: float = 30.0
    canary_s: float = 120.0  # without an answer and without any token: a prompt of 100k tokens takes about a minute
    stall_s: float = 14.0  # of a server that neither computes nor answers anything
    pause_s: float = 5.0  # before a restart; doubled after each start that fails
    max_pause_s: float = 300.0
    failed_starts: int = 5  # in a row, after which the service gives up
    min_free_gib: float = 2.0  # of the run folder's disk; below it old incidents are removed, and no start is made


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What --set changes beside the recipe."""

    slurm: SlurmJob = SlurmJob()
    nodes: NodePrograms = NodePrograms()
    service: ServiceSettings = ServiceSettings()
    patience_s: float = 900.0  # the longest time without progress while an engine starts


@dataclass(frozen=True, kw_only=True)
class NodeSelection:
    """Where an engine that spans several nodes runs."""

    hosts: Path | None = None  # a file with a node a line, and after the name its address if that differs
    slurm: bool = False  # nodes that Slurm allocates
    settings: NodeSettings = NodeSettings()

    @property
    def python(self) -> str:
        return self.settings.nodes.python

    @property
    def is_given(self) -> bool:
        return self.slurm or self.hosts is not None
