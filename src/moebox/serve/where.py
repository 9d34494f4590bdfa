"""The nodes that an engine runs on, as given on the command line."""

from dataclasses import dataclass
from pathlib import Path

from moebox.core.recipe import Recipe
from moebox.errors import refuse_if


@dataclass(frozen=True, kw_only=True)
class NodeSelection:
    """Where an engine that spans several nodes runs.

    Attributes:
        hosts: Nodes to start it on over ssh: a file with one a line, and after the name its address if that differs.
        slurm: Start it on nodes that Slurm allocates.
        partition: Slurm's partition.
        account: Slurm's account.
        time_limit: Slurm's time limit, such as 8:00:00; the partition's own without it.
        node_python: The Python that runs moebox's agent on each node; it needs no package; python3 when left out.
    """

    hosts: Path | None = None
    slurm: bool = False
    partition: str = ""
    account: str = ""
    time_limit: str = ""
    node_python: str = ""

    @property
    def python(self) -> str:
        return self.node_python or "python3"

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise BadInput if nodes are named in two ways, or if the recipe runs on one node."""
        refuse_if(self.slurm and self.hosts, "--hosts and --slurm are two ways to name nodes; give one")
        single = self.is_given and recipe.parallel.nodes < 2
        refuse_if(single, f"{recipe.name} runs on one node", hint="plan it for a box of several: --box 2x8x-h200")

    @property
    def is_given(self) -> bool:
        return self.slurm or self.hosts is not None
