"""The conductor of a launch on several nodes: it starts one agent per node and merges their output into one log.

`python -m moebox.serve.conduct NODES.json` runs under the engine's guard like an engine. When one rank ends it stops
the others, prints which was first and how it ended, and kills what is left on every node.
Secrets come in its environment, and reach the agents through their stdin.
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
from dataclasses import dataclass
from pathlib import Path

from moebox import codec
from moebox.serve.agent import AgentConfig
from moebox.serve.faults import describe_exit

BEAT_S = 2.0
SETTLE_S = 3.0  # after the first rank has ended, for the others to print their errors
SWEEP_S = 20.0
ENDED = re.compile(rb"moebox-agent: rank (\d+) (?:ended with (-?\d+)|cannot be started: (.*))")
# Messages of ranks that ended because another did: gloo, NCCL, llama.cpp's RPC. Their order of arrival is random.
LOST_ANOTHER = re.compile(
    rb"Connection (?:closed|reset) by peer|remote process exit|ncclRemoteError|Remote RPC server crashed", re.IGNORECASE
)
OF_RANK = re.compile(rb"\[(\d+) ")  # prefix of the lines of all ranks but the first
SLURM_ENDED = re.compile(rb"srun: error: (\S+): task (\d+): (.*)")


def start_agents(config: AgentConfig, mode: str, **more: object) -> "list[subprocess.Popen[bytes]]":
    """Start the agents, and give each its config with the secrets."""
    agents, names, argvs = [], config["names"], config["agent_argvs"]
    secrets = {name: os.environ[name] for name in config["secret_names"] if name in os.environ}
    for place, way in enumerate(argvs):
        agent = subprocess.Popen(
            way, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        agents.append(agent)
        rank = place if len(argvs) > 1 or len(names) == 1 else None
        document = {**config, "mode": mode, "rank": rank, "secrets": secrets, **more}
        with contextlib.suppress(OSError):
            assert agent.stdin
            agent.stdin.write(json.dumps(document).encode() + b"\n")
            agent.stdin.flush()
    return agents


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    rank: int
    description: str
    code: int
    from_outside: bool  # killed from outside, or never started


class Conductor:
    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.ends: list[RankEnd] = []  # in order of arrival, before the others were stopped
        self.lost_another: set[int] = set()  # ranks with a message of LOST_ANOTHER
        self.stop_at = 0.0  # when to stop the others, once one has ended or a stop was requested
        self.stop_requested = False

    def run(self) -> int:
        """Run until every rank has ended. Return the exit code of the first one that failed."""
        self.agents = start_agents(self.config, "run")
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, self._request_stop)
        try:
            self._watch_agents()
        finally:
            self._end_agents()
        if self.ends and not self.stop_requested:
            cause = self.first_cause()
            others = "" if len(self.config["names"]) == 1 else "; the other ranks were stopped"
            name = self.config["names"][cause.rank]
            print(f"moebox: rank {cause.rank} on {name} {cause.description}{others}", flush=True)
            return cause.code or 1
        return 0

    def first_cause(self) -> RankEnd:
        """The end that caused the others: one from outside, else one of a rank that did not lose another."""
        return min(self.ends, key=lambda end: (not end.from_outside, end.rank in self.lost_another))

    def _request_stop(self, *_: object) -> None:
        self.stop_requested, self.stop_at = True, time.monotonic()

    def _watch_agents(self) -> None:
        beat, stopped = 0.0, False
        with selectors.DefaultSelector() as selector:
            for place, agent in enumerate(self.agents):
                assert agent.stdout
                os.set_blocking(agent.stdout.fileno(), False)
                selector.register(agent.stdout, selectors.EVENT_READ, (place, bytearray()))
            while selector.get_map():
                for key, _ in selector.select(0.5):
                    place, rest = key.data
                    if not self._copy_output(key.fd, rest):
                        selector.unregister(key.fileobj)
                        code = self.agents[place].wait()
                        if code and len(self.agents) > 1:
                            self._note_lost_agent(place, describe_exit(code))
                if stopped:
                    continue
                if self.stop_at and time.monotonic() >= self.stop_at:
                    stopped = True
                    self._send_agents(b"stop\n", close=True)
                elif time.monotonic() - beat > BEAT_S:
                    beat = time.monotonic()
                    self._send_agents(b"\n")

    def _copy_output(self, source: int, rest: bytearray) -> bool:
        """Print whole lines, and note the ends of ranks in them. Return False at the end."""
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
        """Note if a line reports the end of a rank."""
        if LOST_ANOTHER.search(line):
            rank = OF_RANK.match(line)
            self.lost_another.add(int(rank[1]) if rank else 0)
        if ended := ENDED.search(line):
            if ended[2] is None:
                description, code = f"cannot be started: {ended[3].decode(errors='replace')}", 127
            else:
                code = int(ended[2])
                description = describe_exit(code)
            outside = ended[2] is None or code < 0
            self._note_end(RankEnd(rank=int(ended[1]), description=description, code=abs(code), from_outside=outside))
        elif slurm := SLURM_ENDED.search(line):
            self._note_lost_agent(min(int(slurm[2]), len(self.config["names"]) - 1), slurm[3].decode(errors="replace"))

    def _note_lost_agent(self, rank: int, how: str) -> None:
        """Note that a rank's agent is gone, unless it has reported the end of its rank."""
        if not any(end.rank == rank for end in self.ends):
            self._note_end(RankEnd(rank=rank, description=f"lost its agent ({how})", code=137, from_outside=True))

    def _note_end(self, end: RankEnd) -> None:
        """Note an end that was not requested. The others get a moment to print their errors."""
        if not self.stop_at or time.monotonic() < self.stop_at:
            self.ends.append(end)
            self.stop_at = self.stop_at or time.monotonic() + SETTLE_S

    def _send_agents(self, message: bytes, *, close: bool = False) -> None:
        for agent in self.agents:
            with contextlib.suppress(OSError, ValueError):
                assert agent.stdin
                agent.stdin.write(message)
                agent.stdin.flush()
                if close:
                    agent.stdin.close()

    def _end_agents(self) -> None:
        """Stop all agents, and kill what is left of their ranks on every node."""
        self._send_agents(b"stop\n", close=True)
        until = time.monotonic() + sum(wait for _, wait in self.config["stop_signals"]) + 10.0
        for agent in self.agents:
            try:
                agent.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                agent.kill()
        for agent in start_agents(self.config, "sweep"):
            try:
                agent.communicate(timeout=SWEEP_S)
            except (subprocess.TimeoutExpired, ValueError, OSError):
                agent.kill()


def main() -> int:
    return Conductor(codec.load_json(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    sys.exit(main())
