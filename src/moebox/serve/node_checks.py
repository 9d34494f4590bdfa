"""Check that the nodes of a launch are alike, and measure the network between them."""

import json
import secrets
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from moebox import codec, loose
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.engine_event import NodeFacts, NodesProbed, NodesReached
from moebox.errors import ExternalError
from moebox.loose import Json
from moebox.serve.agent import AgentConfig
from moebox.serve.conduct import start_agents
from moebox.serve.preflight import version_command
from moebox.store import Run
from moebox.units import format_rate as rate_text

MAX_CLOCK_SKEW_S = 5.0  # between a node's clock and ours; NCCL ignores it, logs and certificates do not
PROBE_S = 120.0
REACH_S = 15.0
REACH_BYTES = 256 << 20


def check_nodes(deployment: Deployment, config: AgentConfig, run: Run) -> NodesReached:
    """Measure the network. Raise if the nodes differ or a port is closed."""
    engine, weights = deployment.engine, deployment.weights_path
    facts = probe_nodes(
        config,
        version=version_command("python3", engine.package) if engine.package else [],
        weights=weights if weights.startswith(("/", "~")) else "",
        first_only=bool(engine.worker_programs),  # workers receive their share of the weights from the first node
    )
    run.add_event(NodesProbed(nodes=tuple(facts)))
    require_same_setup(facts, config["names"])
    link = measure_links(config, facts, rendezvous_port(deployment), workers_listen=bool(engine.worker_programs))
    run.add_event(link)
    return link


def rendezvous_port(deployment: Deployment) -> int:
    """The engine's rendezvous port on the first node, or the workers' port on each of the others."""
    engine = deployment.engine
    return deployment.recipe.listen.port + engine.worker_port if engine.worker_programs else engine.rendezvous_port


def probe_nodes(
    config: AgentConfig, *, version: Sequence[str] = (), weights: str = "", first_only: bool = False
) -> list[NodeFacts]:
    """Facts about every node, all probed at the same time."""
    began = time.time()
    replies = _agent_replies(config, "probe", version=version, weights=weights, first_only=first_only)
    ended = time.time()
    return [codec.decode(NodeFacts, {**node, "asked_at": began, "heard_at": ended}, where="a node") for node in replies]


def require_same_setup(facts: list[NodeFacts], names: Sequence[str]) -> None:
    """Raise unless every node has the engine and its weights, and the same version, GPUs and time."""
    first = facts[0]
    for node in facts:
        name = names[node.rank]
        if not node.program:
            hint = "install it on every node, or set runtime.entry"
            raise ExternalError(f"{name}: the engine is not on PATH there", hint=hint)
        if not node.weights:
            hint = "use a shared folder, or a copy on every node"
            raise ExternalError(f"{name}: the checkpoint is not there", hint=hint)
        if node.version != first.version:
            text = f"nodes differ: {names[0]} has version {first.version or 'none'}, {name} {node.version or 'none'}"
            raise ExternalError(text)
        if node.gpus != first.gpus:
            raise ExternalError(f"nodes differ: {names[0]} has {_gpus_text(first)}, {name} {_gpus_text(node)}")
        skew_s = max(node.asked_at - node.time, node.time - node.replied_at)
        if skew_s > MAX_CLOCK_SKEW_S:
            what = f"the clock of {name} is {skew_s:.0f} s off this machine's"
            raise ExternalError(what, hint="is NTP running there?")


def _gpus_text(node: NodeFacts) -> str:
    kinds = {name: node.gpus.count(name) for name in node.gpus}
    return " and ".join(f"{count}× {name}" for name, count in kinds.items()) or "no GPU"


def measure_links(
    config: AgentConfig, facts: list[NodeFacts], port: int, *, workers_listen: bool = False
) -> NodesReached:
    """Measure the network between the first node and each other. Raise if the port is closed."""
    replies = _agent_replies(
        config,
        "reach",
        port=port,
        reach_s=REACH_S,
        reach_bytes=REACH_BYTES,
        reach_token=secrets.token_hex(16),
        workers_listen=workers_listen,
    )
    for rank, reply in enumerate(replies):
        if problem := loose.get_text(reply, "problem"):
            what = "the workers listen there" if workers_listen else "it is the ranks' rendezvous"
            hint = f"open port {port} between the nodes; {what}"
            raise ExternalError(f"{config['names'][rank]}: {problem}", hint=hint)
    ways = [way for reply in replies for way in loose.get_objects(reply, "ways")]
    round_trip_us = max((loose.get_number(way, "round_trip_us") or 0.0 for way in ways), default=0.0)
    return NodesReached(
        tcp_bytes_s=min((loose.get_number(way, "rate") or 0.0 for way in ways), default=0.0),
        round_trip_us=round(round_trip_us, 1),
        rdma_bytes_s=min(node.rdma for node in facts),
    )


def describe_link(link: NodesReached) -> str:
    if not link.tcp_bytes_s:
        return "one node"
    rdma = f"; RDMA ports of {rate_text(link.rdma_bytes_s)} per node" if link.rdma_bytes_s else "; no RDMA"
    return f"{rate_text(link.tcp_bytes_s)} and {link.round_trip_us:,.0f} µs round trip over TCP{rdma}"


def with_measured_network(box: Box, link: NodesReached, *, tcp_only: bool) -> Box:
    """The box with the measured network. NCCL uses RDMA if every node has it, RPC servers use TCP."""
    gpus = max(len(box.gpus), 1)
    if link.rdma_bytes_s and not tcp_only:  # as the ports report; the latency stays the default
        return replace(box, network_measured=link.rdma_bytes_s // gpus)
    return replace(box, network_measured=round(link.tcp_bytes_s / gpus), network_us=round(link.round_trip_us / 2, 1))


def _agent_replies(config: AgentConfig, mode: str, **more: object) -> list[Json]:
    """The replies of all agents, by rank. Raise ExternalError if one does not reply."""
    agents = start_agents(config, mode, **more)
    replies: dict[int, Json] = {}
    outputs: list[str] = []
    for agent in agents:
        try:
            output, _ = agent.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            output, _ = agent.communicate()
        outputs.append(output.decode(errors="replace"))
        for line in outputs[-1].splitlines():  # with Slurm one output has the replies of all nodes
            if document := line.partition("moebox-reply: ")[2]:
                reply = json.loads(document)
                replies[int(reply["rank"])] = reply
    for rank, name in enumerate(config["names"]):
        if rank not in replies:
            text = f"{name} does not answer: {last_line(outputs[rank if len(agents) > 1 else 0])}"
            raise ExternalError(text, hint=f"try it by hand: {shlex.join(config['agent_argvs'][0][:2])} …")
    return [replies[rank] for rank in range(len(config["names"]))]


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"
