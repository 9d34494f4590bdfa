"""Where an engine that spans several nodes runs, as the command line says it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where an engine that spans several nodes runs.

    Attributes:
        hosts: Nodes to start it on over ssh: a file with one a line, and after the name its address if that differs.
        slurm: Start it on nodes that Slurm allocates.
        partition: Slurm's partition.
        account: Slurm's account.
        time_limit: Slurm's time limit, such as 8:00:00; the partition's own without it.
        node_python: The Python that runs moebox's agent on each node; it needs no package.
    """

    hosts: Path | None = None
    slurm: bool = False
    partition: str = ""
    account: str = ""
    time_limit: str = ""
    node_python: str = "python3"

    @property
    def given(self) -> bool:
        """Nodes were named."""
        return self.slurm or self.hosts is not None
