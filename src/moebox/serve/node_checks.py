"""Whether the nodes of a launch are fit: asked at the same time, compared, and the way between them tried and timed."""

import json
import secrets
import shlex
import subprocess
import time
from dataclasses import dataclass, replace

from moebox import codec, loose
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.event import NodeFacts, NodesProbed, NodesReached
from moebox.errors import ExternalError
from moebox.loose import Json
from moebox.serve.conduct import ConductorConfig, start_agents
from moebox.serve.preflight import version_command
from moebox.store import Run
from moebox.units import format_rate as rate_text

MAX_CLOCK_SKEW_S = 5.0  # by which two nodes' clocks may differ; NCCL does not care, logs and certificates do
PROBE_S = 120.0
REACH_S = 15.0
REACH_BYTES = 256 << 20
NOTHING: dict[str, object] = {"version": [], "weights": "", "first_only": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLink:
    """The way between nodes: the slowest pair with the first node."""

    tcp: float = 0.0  # bytes/s of one TCP connection
    round_trip_us: float = 0.0  # of one byte there and back over TCP
    rdma: int = 0  # bytes/s a node, as its ports say; 0: a node has none


def check_nodes(deployment: Deployment, config: ConductorConfig, run: Run) -> NodeLink:
    """Raise for the first thing that differs or is closed; what lies between the nodes."""
    facts = probe_nodes(deployment, config)
    run.add_event(NodesProbed(nodes=tuple(facts)))
    require_same_setup(facts, config.names)
    ways = measure_links(config, rendezvous_port(deployment), workers_listen=bool(deployment.engine.worker_programs))
    link = NodeLink(
        tcp=min((way.tcp for way in ways), default=0.0),
        round_trip_us=max((way.round_trip_us for way in ways), default=0.0),
        rdma=min(node.rdma for node in facts),
    )
    run.add_event(
        NodesReached(tcp_bytes_s=link.tcp, round_trip_us=round(link.round_trip_us, 1), rdma_bytes_s=link.rdma)
    )
    return link


def rendezvous_port(deployment: Deployment) -> int:
    """Where the nodes meet: the engine's rendezvous on the first, or the workers' own port on each of the others."""
    engine = deployment.engine
    return deployment.recipe.listen.port + engine.worker_port if engine.worker_programs else engine.rendezvous_port


def probe_nodes(deployment: Deployment, config: ConductorConfig) -> list[NodeFacts]:
    """What every node is, asked at the same time."""
    package = deployment.engine.package
    ask = version_command("python3", package) if package else []
    weights = deployment.weights_path
    local = weights if weights.startswith(("/", "~")) else ""
    began = time.time()
    # The workers of an engine get their share of the weights from the first node.
    replies = _agent_replies(
        config, "probe", version=ask, weights=local, first_only=bool(deployment.engine.worker_programs)
    )
    ended = time.time()
    return [codec.decode(NodeFacts, {**node, "asked_at": began, "heard_at": ended}, where="a node") for node in replies]


def require_same_setup(facts: list[NodeFacts], names: tuple[str, ...]) -> None:
    """Every node has the engine, its weights, the same version, GPUs and time."""
    first = facts[0]
    for node in facts:
        name = names[node.rank]
        _fit(node, name)
        if node.version != first.version:
            raise ExternalError(
                f"nodes differ: {names[0]} has version {first.version or 'none'}, {name} {node.version or 'none'}"
            )
        if node.gpus != first.gpus:
            raise ExternalError(f"nodes differ: {names[0]} has {_gpus(first)}, {name} {_gpus(node)}")
        apart = _apart(node)
        if apart > MAX_CLOCK_SKEW_S:
            raise ExternalError(
                f"the clock of {name} is {apart:.0f} s off this machine's", hint="is NTP running there?"
            )


def _fit(node: NodeFacts, name: str) -> None:
    if not node.program:
        raise ExternalError(
            f"{name}: the engine is not on PATH there", hint="install it on every node, or set runtime.entry"
        )
    if not node.weights:
        raise ExternalError(f"{name}: the checkpoint is not there", hint="a shared folder, or a copy on every node")


def _apart(node: NodeFacts) -> float:
    """Seconds by which the node's clock lies outside the time in which it was asked."""
    return max(node.asked_at - node.time, node.time - node.heard_at, 0.0)


def _gpus(node: NodeFacts) -> str:
    kinds = {name: node.gpus.count(name) for name in node.gpus}
    return " and ".join(f"{count}× {name}" for name, count in kinds.items()) or "no GPU"


def measure_links(config: ConductorConfig, port: int, *, workers_listen: bool = False) -> list[NodeLink]:
    """The port at which the nodes meet is open between the first and each other; how fast the way is."""
    answers = _agent_replies(
        config,
        "reach",
        port=port,
        reach_s=REACH_S,
        reach_bytes=REACH_BYTES,
        reach_token=secrets.token_hex(16),
        workers_listen=workers_listen,
    )
    for rank, answer in enumerate(answers):
        if problem := loose.get_text(answer, "problem"):
            what = "the workers listen there" if workers_listen else "ranks meet there"
            raise ExternalError(f"{config.names[rank]}: {problem}", hint=f"open port {port} between the nodes; {what}")
    return [_link(way) for answer in answers for way in loose.get_objects(answer, "ways")]


def _link(way: Json) -> NodeLink:
    return NodeLink(
        tcp=loose.get_number(way, "rate") or 0.0, round_trip_us=loose.get_number(way, "round_trip_us") or 0.0
    )


def describe_link(link: NodeLink) -> str:
    """The way between nodes in words; NCCL over RDMA is faster than TCP."""
    if not link.tcp:
        return "one node"
    rdma = f"; RDMA ports of {rate_text(link.rdma)} a node" if link.rdma else "; no RDMA"
    return f"{rate_text(link.tcp)} and {link.round_trip_us:,.0f} µs there and back over TCP{rdma}"


def with_measured_network(box: Box, link: NodeLink, *, tcp_only: bool) -> Box:
    """The box with what was timed between its nodes; NCCL takes RDMA where every node has it, RPC servers TCP."""
    gpus = max(len(box.gpus), 1)
    if link.rdma and not tcp_only:
        return replace(box, network_measured=link.rdma // gpus)  # what the ports say; the hop stays the usual one
    return replace(box, network_measured=round(link.tcp / gpus), network_us=round(link.round_trip_us / 2, 1))


def survey_links(config: ConductorConfig, port: int) -> NodeLink:
    """What lies between nodes on which nothing is to be started."""
    facts = [codec.decode(NodeFacts, node, where="a node") for node in _agent_replies(config, "probe", **NOTHING)]
    ways = measure_links(config, port)
    return NodeLink(
        tcp=min(way.tcp for way in ways),
        round_trip_us=max(way.round_trip_us for way in ways),
        rdma=min(node.rdma for node in facts),
    )


def _agent_replies(config: ConductorConfig, mode: str, **more: object) -> list[Json]:
    """What the agents of all nodes answer, by rank; Outside for a node that does not."""
    agents = start_agents(config, mode, **more)
    answers: dict[int, Json] = {}
    printed: dict[int, str] = {}
    for place, agent in enumerate(agents):
        printed[place] = _read_output(agent)
        answers |= _parse_replies(printed[place])
    for rank, name in enumerate(config.names):
        if rank not in answers:
            output = printed.get(rank if len(agents) > 1 else 0, "")
            raise ExternalError(
                f"{name} does not answer: {last_line(output)}",
                hint=f"try it by hand: {shlex.join(config.agent_argvs[0][:2])} …",
            )
    return [answers[rank] for rank in range(len(config.names))]


def last_line(text: str) -> str:
    """The last words of a program that failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def _read_output(agent: "subprocess.Popen[bytes]") -> str:
    """All that an agent prints; it is killed where it takes too long."""
    try:
        out, _ = agent.communicate(timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        out, _ = agent.communicate()
    return out.decode(errors="replace")


def _parse_replies(printed: str) -> dict[int, Json]:
    """The answers in what was printed, by rank; with Slurm one agent's output has all."""
    documents = [line.partition("moebox-reply: ")[2] for line in printed.splitlines()]
    answers = [json.loads(document) for document in documents if document]
    return {int(answer["rank"]): answer for answer in answers}
