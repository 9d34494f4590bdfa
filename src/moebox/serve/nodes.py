"""Find the nodes of an engine over Slurm or ssh, check them, and prepare what each one runs.

A hosts file has one node per line: a name for ssh, and after it the address that other nodes use if that differs.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, engines
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.endpoint import endpoint_from_url
from moebox.errors import ExternalError, Unsupported, refuse_if
from moebox.serve import agent, node_checks
from moebox.serve.guard import STOP_SIGNALS
from moebox.serve.node_checks import last_line
from moebox.serve.order import PreparedLaunch, launch_secrets
from moebox.serve.state import instance_mark
from moebox.serve.stop import release_job
from moebox.serve.watch import Notify
from moebox.serve.where import NodeSelection
from moebox.store import Run

GRANT_S = 600.0
LIFELINE_S = 20.0  # without a line from the conductor, before a node stops its rank
TOOL_S = 60.0  # for squeue and scontrol
SURVEY_PORT = 29501  # the rendezvous port of vLLM's ranks
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.:@%-]{0,250})")
SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
SSH = ("ssh", *(word for option in SSH_OPTIONS for word in ("-o", option)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a launch, in rank order."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]  # that other nodes use
    job: str = ""  # the Slurm allocation; "" over ssh
    python: str = "python3"

    def agent_argvs(self) -> tuple[tuple[str, ...], ...]:
        """The command that runs agents: one for all nodes with Slurm, one per node with ssh."""
        program = (self.python, "-c", inspect.getsource(agent))
        if self.job:
            count = str(len(self.names))
            # steps are exclusive by default: without --overlap a second one would wait for the first
            step = ("srun", f"--jobid={self.job}", "--nodes", count, "--ntasks-per-node=1", "--overlap")
            return ((*step, "--unbuffered", "--kill-on-bad-exit=0", "--quit-on-interrupt", *program),)
        return tuple((*SSH, name, shlex.join(program)) for name in self.names)

    def conductor_config(
        self, name: str, ranks: Sequence[agent.RankCommand], *, secret_names: Sequence[str] = ()
    ) -> agent.AgentConfig:
        return {
            "mark": instance_mark(name),
            "names": self.names,
            "master": self.addresses[0],
            "addresses": self.addresses,
            "ranks": ranks,
            "agent_argvs": self.agent_argvs(),
            "secret_names": secret_names,
            "cwd": "",
            "stop_signals": [(sign.name, wait) for sign, wait in STOP_SIGNALS],
            "lifeline_s": LIFELINE_S,
        }


def read_hosts(path: Path, *, python: str, count: int | None = None) -> Nodes:
    """The first `count` nodes of a hosts file, all by default. Raise BadInput if there are fewer."""
    addresses: dict[str, str] = {}
    for number, line in enumerate(codec.read_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            text = f"{path}: line {number}: a node is a name and, if it differs, its address"
            refuse_if(len(words) > 2 or not all(map(HOST.fullmatch, words)), text, hint="n1 10.0.0.1")
            refuse_if(words[0] in addresses, f"{path}: {words[0]} is listed twice")
            addresses[words[0]] = words[-1].rpartition("@")[2]
    refuse_if(not addresses, f"{path}: lists no node")
    listed = len(addresses)
    refuse_if(listed < (count or 0), f"the recipe spans {count} nodes and the hosts file lists {listed}")
    return Nodes(names=tuple(addresses)[:count], addresses=tuple(addresses.values())[:count], python=python)


def require_ssh() -> None:
    if shutil.which("ssh") is None:
        raise ExternalError("ssh is not installed here", hint="install openssh-client, or use --slurm")


def allocate_slurm_nodes(count: int, gpus: int, selection: NodeSelection, *, name: str) -> Nodes:
    """Allocate `count` nodes. The caller releases them."""
    if shutil.which("salloc") is None:
        text = "Slurm is not installed here: salloc is not on PATH"
        raise ExternalError(text, hint="use --hosts FILE, or a login node")
    argv = ["salloc", "--no-shell", f"--job-name=moebox-{name}"[:120], f"--nodes={count}", "--ntasks-per-node=1"]
    options = {
        "gpus-per-node": gpus,
        "partition": selection.settings.slurm.partition,
        "account": selection.settings.slurm.account,
        "time": selection.settings.slurm.time_limit,
    }
    argv += [f"--{flag}={value}" for flag, value in options.items() if value]
    output = _run_salloc(argv, count)
    granted = re.search(r"Granted job allocation (\d+)", output)
    if not granted:
        raise ExternalError(f"Slurm granted nothing: {last_line(output)}")
    job = granted[1]
    try:
        listed = _run_tool(["squeue", "--noheader", "--jobs", job, "--format", "%N"]).strip()
        addresses: dict[str, str] = {}
        for host in _run_tool(["scontrol", "show", "hostnames", listed]).split():
            # The address that Slurm uses: the host name need not resolve.
            address = re.search(r"NodeAddr=(\S+)", _run_tool(["scontrol", "show", "node", host, "--oneliner"]))
            addresses[host] = address[1] if address else host
        return Nodes(names=tuple(addresses), addresses=tuple(addresses.values()), job=job, python=selection.python)
    except BaseException:
        release_job(job)
        raise


def _run_salloc(argv: list[str], count: int) -> str:
    """Run salloc and return its output. Cancel the request on timeout, which SIGKILL would not do."""
    salloc = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = salloc.communicate(timeout=GRANT_S)
    except BaseException as problem:
        salloc.terminate()
        output, _ = salloc.communicate()
        if isinstance(problem, subprocess.TimeoutExpired):
            raise ExternalError(f"Slurm gave no {count} nodes within {GRANT_S:.0f} s: {last_line(output)}") from None
        raise
    if salloc.returncode:
        text = f"Slurm: {last_line(output)}"
        raise ExternalError(text, hint="`sinfo` shows its nodes; `--set slurm.partition=…` chooses")
    return output


def prepare_nodes(deployment: Deployment, run: Run, selection: NodeSelection, notify: Notify) -> PreparedLaunch:
    """Find the nodes, check them, and decide what each runs. Release an allocation if that fails."""
    recipe = deployment.recipe
    count = recipe.parallel.nodes
    if selection.hosts:
        nodes = read_hosts(selection.hosts, python=selection.python, count=count)
        require_ssh()
    else:
        nodes = allocate_slurm_nodes(count, recipe.gpus_per_node, selection, name=run.id)
    try:
        prepared = prepare_conductor(deployment, nodes, run)
        link = node_checks.check_nodes(prepared.deployment, conductor_config(prepared.deployment, nodes, run.id), run)
        notify(f"{count} nodes: {', '.join(prepared.nodes)}; {node_checks.describe_link(link)}")
        return prepared
    except BaseException:
        release_job(nodes.job)
        raise


def measure_network(box: Box, hosts: Path, *, python: str) -> Box:
    """The box with as many nodes as the file lists, and the network between them as measured over ssh."""
    nodes = read_hosts(hosts, python=python)
    count = len(nodes.names)
    refuse_if(count < 2, f"{hosts}: lists one node; at least two are needed to measure the network")
    refuse_if(box.nodes not in (1, count), f"{hosts}: lists {count} nodes, and {box.name} has {box.nodes}")
    require_ssh()
    config = nodes.conductor_config(
        "survey", [agent.RankCommand(argv=["true"], env={}, other_names=(), waits_for=0)] * count
    )
    link = node_checks.measure_links(config, node_checks.probe_nodes(config), SURVEY_PORT)
    return node_checks.with_measured_network(replace(box, nodes=count), link, tcp_only=False)


def conductor_config(deployment: Deployment, nodes: Nodes, name: str) -> agent.AgentConfig:
    """The config of the conductor. A first node that connects to workers starts once they listen."""
    ranks, workers = [], deployment.engine.worker_programs
    for rank in range(len(nodes.names)):
        launch = engines.build_launch(deployment, rank=rank, master=agent.MASTER, addresses=nodes.addresses)
        command = agent.RankCommand(
            argv=launch.argv,
            env={"PYTHONUNBUFFERED": "1", **launch.env},
            other_names=workers[1:] if rank else (),
            waits_for=node_checks.rendezvous_port(deployment) if workers and not rank else 0,
        )
        ranks.append(command)
    return nodes.conductor_config(name, ranks, secret_names=tuple(engines.build_launch(deployment).secret_env))


def node_commands(deployment: Deployment, selection: NodeSelection) -> dict[str, str]:
    """What every node of a hosts file would run, by name. The nodes are not contacted."""
    if selection.hosts is None:
        job = "`moebox render --as slurm` writes the job"
        hint = "`--hosts FILE` prints what each node runs" if deployment.engine.worker_programs else job
        raise Unsupported("the nodes are unknown until Slurm starts the job", hint=hint)
    nodes = read_hosts(selection.hosts, python=selection.python, count=deployment.recipe.parallel.nodes)
    _check_spanning(deployment, nodes)
    addresses = nodes.addresses
    opened, shown = _with_open_host(deployment, addresses[0]), {}
    for rank, name in enumerate(nodes.names):
        launch = engines.build_launch(opened, rank=rank, master=addresses[0], addresses=addresses)
        shown[name] = engines.shell_text(launch, launch.argv)
    return shown


def prepare_conductor(deployment: Deployment, nodes: Nodes, run: Run) -> PreparedLaunch:
    """Prepare the conductor, which runs here under the guard and starts an agent on every node."""
    recipe = deployment.recipe
    _check_spanning(deployment, nodes)
    address = nodes.addresses[0]
    opened = _with_open_host(deployment, address)
    path = run.write_file("nodes.json", codec.to_json(conductor_config(opened, nodes, run.id)))
    launch = engines.build_launch(opened, addresses=nodes.addresses)
    key = os.environ.get(recipe.listen.key_env)
    where = f"[{address}]" if ":" in address else address
    endpoint = endpoint_from_url(f"{where}:{recipe.listen.port}", recipe.served_name, key=key, engine=recipe.engine)
    return PreparedLaunch(
        deployment=opened,
        launch=launch,
        argv=(sys.executable, "-m", "moebox.serve.conduct", str(path)),
        endpoint=endpoint,
        secrets=launch_secrets(launch),
        gpus=(),
        nodes=nodes.names,
        job=nodes.job,
    )


def _with_open_host(deployment: Deployment, address: str) -> Deployment:
    """Listen on the address that the other ranks and this machine use, instead of on loopback."""
    recipe = deployment.recipe.with_store_here()
    host = recipe.listen.host if recipe.listen.host != "127.0.0.1" else address
    return deployment.with_recipe(replace(recipe, listen=replace(recipe.listen, host=host)))


def _check_spanning(deployment: Deployment, nodes: Nodes) -> None:
    """Raise BadInput if the deployment cannot run on several nodes."""
    recipe = deployment.recipe
    text = f"over several nodes the engine runs natively, not in {recipe.runtime.kind}"
    refuse_if(recipe.runtime.kind != "native", text, hint='runtime.kind = "native", or `moebox render --as k8s`')
    refuse_if(not recipe.listen.port, "listen.port: an engine on other nodes needs a fixed port", hint="e.g. 8000")
    engines.check_recipe(deployment)
    engines.require_weights_file(deployment)
    text = f"{deployment.engine.title}'s workers need IPv4 addresses or host names, not IPv6"
    refuse_if(deployment.engine.worker_programs and ":" in "".join(nodes.addresses), text)


def _run_tool(argv: list[str]) -> str:
    what = argv[0]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_S, check=False)
    except subprocess.TimeoutExpired:
        raise ExternalError(f"{what} did not answer within {TOOL_S:.0f} s") from None
    except OSError as problem:
        raise ExternalError(f"{what}: {problem.strerror}") from None
    if done.returncode:
        raise ExternalError(f"{what}: {last_line(done.stderr or done.stdout)}")
    return done.stdout + done.stderr
