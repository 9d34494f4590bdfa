"""The head of a launch over several nodes: one agent a node, their output as one log, and one end for all.

`python -m moebox.serve.conduct ORDER.json` runs under the engine's guard like an engine. It keeps the agents alive, and
when one rank ends it stops the others, says which was first and how it ended, and sweeps every node.
Secrets come in its own environment, and reach the agents through their stdin.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from moebox import codec

BEAT_S = 2.0
LIFELINE_S = 20.0  # of silence from the head, before a node stops its rank
SETTLE_S = 3.0  # after the first rank has ended, for the others to say what they saw
SWEEP_S = 20.0
# A module that is in sys.modules is imported from there, with or without its package.
AGENT = """import sys, types
link = sys.modules["moebox.serve.node_link"] = types.ModuleType("moebox.serve.node_link")
exec(compile({link!r}, "node_link.py", "exec"), link.__dict__)
exec(compile({agent!r}, "agent.py", "exec"), {{"__name__": "__main__"}})
"""
ENDED = re.compile(rb"moebox-agent: rank (\d+) (?:ended with (-?\d+)|cannot be started: (.*))")
# A rank that says so ended because another did: gloo, NCCL, and llama.cpp's RPC. Which end is heard of first is chance.
LOST_ANOTHER = re.compile(
    rb"Connection (?:closed|reset) by peer|remote process exit|ncclRemoteError|Remote RPC server crashed", re.IGNORECASE
)
OF_RANK = re.compile(rb"\[(\d+) ")  # before what ranks other than the first print
SLURM_ENDED = re.compile(rb"srun: error: (\S+): task (\d+): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """One node's command."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    other_names: tuple[str, ...] = ()  # the program may be called so instead
    waits_for: int = 0  # port of every other node that must be open before it starts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorConfig:
    """Everything the head needs to know; no secret is in it."""

    mark: str
    names: tuple[str, ...]  # nodes by rank
    master: str  # address of the first
    addresses: tuple[str, ...] = ()  # of all, where ranks other than the first listen
    ranks: tuple[RankCommand, ...]
    agent_argvs: tuple[
        tuple[str, ...], ...
    ]  # argv that runs an agent: one a node (ssh), or a single one for all (srun)
    secret_names: tuple[str, ...] = ()
    cwd: str = ""
    stop_signals: tuple[tuple[str, float], ...] = (("SIGINT", 15.0), ("SIGTERM", 10.0), ("SIGKILL", 5.0))
    lifeline_s: float = LIFELINE_S

    def first_line(self, mode: str, rank: int | None, **more: object) -> bytes:
        """The first line an agent reads."""
        document = {**codec.to_plain(self), "mode": mode, "rank": rank, **more}
        document["secrets"] = {name: os.environ[name] for name in self.secret_names if name in os.environ}
        return json.dumps(document).encode() + b"\n"


def agent_source() -> str:
    """The agent and the module it imports as text, to be run by a Python on a node that has no moebox."""
    link, agent = ((files("moebox.serve") / name).read_text(encoding="utf-8") for name in ("node_link.py", "agent.py"))
    return AGENT.format(link=link, agent=agent)


def start_agents(config: ConductorConfig, mode: str, **more: object) -> "list[subprocess.Popen[bytes]]":
    """An agent on every node, told what to do."""
    agents = []
    for place, way in enumerate(config.agent_argvs):
        agent = subprocess.Popen(
            way, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        agents.append(agent)
        rank = place if len(config.agent_argvs) > 1 or len(config.names) == 1 else None
        with contextlib.suppress(OSError):
            assert agent.stdin
            agent.stdin.write(config.first_line(mode, rank, **more))
            agent.stdin.flush()
    return agents


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended."""

    rank: int
    description: str
    code: int
    from_outside: bool  # killed from outside, or never started


class Conductor:
    """The ranks of one launch."""

    def __init__(self, config: ConductorConfig) -> None:
        self.config = config
        self.ends: list[RankEnd] = []  # in the order they were heard of, before the others were told to stop
        self.lost_another: set[int] = set()  # ranks that said so
        self.stop_at = 0.0  # when the others are told, once one has ended or we were asked
        self.stop_requested = False

    def run(self) -> int:
        """Until every rank has ended; the first one's exit code."""
        self.agents = start_agents(self.config, "run")
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: self._ask())
        try:
            self._watch_agents()
        finally:
            self._end_agents()
        if self.ends and not self.stop_requested:
            cause = self.first_cause()
            others = "" if len(self.config.names) == 1 else "; the other ranks were stopped"
            print(
                f"moebox: rank {cause.rank} on {self.config.names[cause.rank]} {cause.description}{others}", flush=True
            )
            return cause.code or 1
        return 0

    def first_cause(self) -> RankEnd:
        """The end that brought the others about: one from outside, or else one of a rank that lost no other."""
        return min(self.ends, key=lambda end: (not end.from_outside, end.rank in self.lost_another))

    def _ask(self) -> None:
        self.stop_requested, self.stop_at = True, time.monotonic()

    def _watch_agents(self) -> None:
        beat, stopped = 0.0, False
        with selectors.DefaultSelector() as selector:
            for place, agent in enumerate(self.agents):
                assert agent.stdout
                os.set_blocking(agent.stdout.fileno(), False)
                selector.register(agent.stdout, selectors.EVENT_READ, (place, bytearray()))
            while selector.get_map():
                self._read_all(selector)
                if stopped:
                    continue
                if self.stop_at and time.monotonic() >= self.stop_at:
                    stopped = True
                    self._send_agents(b"stop\n", close=True)
                elif time.monotonic() - beat > BEAT_S:
                    beat = time.monotonic()
                    self._send_agents(b"\n")

    def _read_all(self, selector: selectors.BaseSelector) -> None:
        """What the agents say just now; one that says no more has ended."""
        for key, _ in selector.select(0.5):
            place, rest = key.data
            if not self._copy_output(place, key.fd, rest):
                selector.unregister(key.fileobj)
                self._agent_ended(place)

    def _copy_output(self, place: int, source: int, rest: bytearray) -> bool:
        """Pass lines on and hear what they tell of ends; False when there will be no more."""
        try:
            data = os.read(source, 1 << 16)
        except BlockingIOError:
            return True
        rest += data
        *lines, left = bytes(rest).split(b"\n") if data else [*bytes(rest).split(b"\n"), b""]
        rest[:] = left
        for line in lines:
            self.note_line(line)
            if line or data:
                sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        return bool(data)

    def note_line(self, line: bytes) -> None:
        """What a line tells of ranks that ended."""
        if LOST_ANOTHER.search(line):
            rank = OF_RANK.match(line)
            self.lost_another.add(int(rank[1]) if rank else 0)
        if told := ENDED.search(line):
            self._note_end(_rank_end(told))
        elif slurm := SLURM_ENDED.search(line):
            self._note_lost_agent(min(int(slurm[2]), len(self.config.names) - 1), slurm[3].decode(errors="replace"))

    def _note_lost_agent(self, rank: int, how: str) -> None:
        """A rank's agent is gone; it says nothing more, unless it has said how its rank ended."""
        if not any(end.rank == rank for end in self.ends):
            self._note_end(RankEnd(rank=rank, description=f"lost its agent ({how})", code=137, from_outside=True))

    def _note_end(self, end: RankEnd) -> None:
        """Remember an end that is nobody's doing here; the others get a moment to say what they saw."""
        if not self.stop_at or time.monotonic() < self.stop_at:
            self.ends.append(end)
            self.stop_at = self.stop_at or time.monotonic() + SETTLE_S

    def _agent_ended(self, place: int) -> None:
        code = self.agents[place].wait()
        if code and len(self.agents) > 1:
            self._note_lost_agent(place, _describe_exit(code))

    def _send_agents(self, message: bytes, *, close: bool = False) -> None:
        for agent in self.agents:
            with contextlib.suppress(OSError, ValueError):
                assert agent.stdin
                agent.stdin.write(message)
                agent.stdin.flush()
                if close:
                    agent.stdin.close()

    def _end_agents(self) -> None:
        """No agent of ours and no process of any rank stays."""
        self._send_agents(b"stop\n", close=True)
        until = time.monotonic() + sum(wait for _, wait in self.config.stop_signals) + 10.0
        for agent in self.agents:
            try:
                agent.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                agent.kill()
        sweep_nodes(self.config)


def sweep_nodes(config: ConductorConfig) -> None:
    """Kill on every node what carries this launch's mark."""
    for agent in start_agents(config, "sweep"):
        try:
            agent.communicate(timeout=SWEEP_S)
        except (subprocess.TimeoutExpired, ValueError, OSError):
            agent.kill()


def _rank_end(match: re.Match[bytes]) -> RankEnd:
    """What an agent told of its rank's end."""
    if match[2] is None:
        how = f"cannot be started: {match[3].decode(errors='replace')}"
        return RankEnd(rank=int(match[1]), description=how, code=127, from_outside=True)
    code = int(match[2])
    return RankEnd(rank=int(match[1]), description=_describe_exit(code), code=abs(code), from_outside=code < 0)


def _describe_exit(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def main() -> int:
    """Conduct the launch that the file describes."""
    path = Path(sys.argv[1])
    return Conductor(codec.decode(ConductorConfig, codec.load_json(path), where=str(path))).run()


if __name__ == "__main__":
    sys.exit(main())
