"""Kill a member while it serves streams: which streams broke, and when the fleet answered again."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from moebox import codec, http
from moebox.bench.scrape import pick_metrics
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import parse_prometheus
from moebox.core.recipe import Recipe
from moebox.errors import ExternalError, refuse_if
from moebox.serve import preflight, state
from moebox.serve.state import wait_for
from moebox.serve.stop import stop_instance as stop_instance
from moebox.stream.exchange import StreamExchange
from moebox_fleet import routers
from moebox_fleet.up import FleetRecord, MemberRecord, answers_chat, save_fleet, start_member, wait_for_member

CALM_S = 3.0  # without a new stream: the others wait in a queue


@dataclass(slots=True, kw_only=True)
class FollowedStream:
    name: str  # sent as X-Request-Id, for the logs of routers and engines
    member: str = ""  # that serves it, if the router names it
    chunks: int = 0
    finished: bool = False
    error: str = ""
    over: bool = False

    @property
    def is_lost(self) -> bool:
        """It ended without being finished."""
        return self.over and not self.finished


def run_streams(
    endpoint: Endpoint,
    *,
    streams: int,
    tokens: int,
    deadline_s: float,
    member_header: str = "",
    disturb: Callable[[list[FollowedStream]], None] = lambda streams: None,
) -> list[FollowedStream]:
    """Start streams, call `disturb` once they have begun or wait in a queue, and follow all to the end."""
    followed = [FollowedStream(name=f"moebox-{int(time.time())}-{number:03d}") for number in range(streams)]

    def follow(stream: FollowedStream) -> None:
        number = stream.name.rpartition("-")[2]  # first, so that no two prompts share a prefix
        text = f"{number} is the number of this request. Count upwards from one, a number a line, and do not stop."
        body: dict[str, object] = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
        body |= {"max_tokens": tokens, "ignore_eos": True}
        headers = {"X-Request-Id": stream.name}
        try:
            with StreamExchange(endpoint, body, timeout_s=deadline_s, total_s=deadline_s, headers=headers) as exchange:
                for _, event in exchange:
                    stream.member = exchange.headers.get(member_header, "")
                    stream.error = stream.error or event.error
                    stream.chunks += 1
                stream.finished = exchange.done
        except ExternalError as problem:
            stream.error = stream.error or problem.message
        finally:
            stream.over = True
            if not stream.finished:
                stream.error = stream.error or "ended without [DONE]"

    threads = [threading.Thread(target=follow, args=(stream,), daemon=True) for stream in followed]
    for thread in threads:
        thread.start()
    _wait_for_starts(followed, deadline_s)
    disturb(followed)
    for thread in threads:
        thread.join()
    return followed


def _wait_for_starts(streams: Sequence[FollowedStream], deadline_s: float) -> None:
    """Wait until every stream has begun, or no further one has for a while."""
    until = time.monotonic() + deadline_s
    seen, since = 0, time.monotonic()
    while time.monotonic() < until:
        begun = sum(stream.chunks > 0 or stream.over for stream in streams)
        if begun != seen:
            seen, since = begun, time.monotonic()
        calm = seen > 0 and time.monotonic() - since > CALM_S
        if begun == len(streams) or calm:
            return
        time.sleep(0.02)


BUSIEST = "busiest"
BACK_S = 120.0  # for a restarted member to be ready
NOTICE_S = 60.0  # for a router to notice that a member died
PORT_S = 150.0  # for the kernel to drop the connections of a killed server (tcp_fin_timeout is 60 s)
STREAM_TOKENS = 400  # of each stream
CountedBy = Literal["router", "member", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLoss:
    """The effect of a member's death on the streams in flight."""

    member: str
    router: str
    streams: int
    inside: int | None  # streams of the member when it died; None if unknown
    counted_by: CountedBy = ""  # who counted them
    finished: int
    lost: tuple[str, ...]  # X-Request-Id of each broken stream
    elsewhere: tuple[str, ...] = ()  # those of other members or of none, if the router names them
    reasons: dict[str, int]
    served_after_s: float | None  # until a new request was answered; None if none was

    @property
    def is_good(self) -> bool:
        """Only streams of the dead member broke, and the fleet still serves."""
        only_own = not self.elsewhere and (self.inside is None or len(self.lost) <= self.inside)
        return only_own and self.served_after_s is not None


def choose_victim(record: FleetRecord, name: str) -> MemberRecord | None:
    """The member to kill, or None for the busiest one at that time. Raise BadInput if it cannot be killed."""
    members = {member.name: member for member in record.members}
    if name == BUSIEST and len(members) > 1 and all(member.instance for member in record.members):
        return None
    refuse_if(name not in members, f"{record.name} has no member {name!r}", hint=", ".join(members))
    foreign = f"{name} was not started by moebox, so it is not killed"
    refuse_if(not members[name].instance, foreign, hint="a member with a recipe can be")
    refuse_if(len(members) < 2, "a fleet of one member has none left if it is killed")
    return members[name]


def measure_member_loss(record: FleetRecord, victim: MemberRecord | None, *, streams: int) -> MemberLoss:
    """Kill a member with SIGKILL under `streams` streams, count those that broke, and restart it."""
    header = routers.router_traits()[record.router.kind].member_header
    killed: list[tuple[MemberRecord, int | None]] = []

    def disturb(followed: list[FollowedStream]) -> None:
        held = streams_in_flight(record, followed) if header else _requests_by_member(record)
        chosen = victim or max(record.members, key=lambda member: held[member.name] or 0)
        killed.append((chosen, held[chosen.name]))
        instance = state.instances_by_id().get(chosen.instance)
        pid = instance.guard_state.engine if instance else 0
        if pid > 1:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    seen = run_streams(
        record.endpoint(),
        streams=streams,
        tokens=STREAM_TOKENS,
        deadline_s=BACK_S * 2,
        member_header=header,
        disturb=disturb,
    )
    member, inside = killed[0]
    began = time.monotonic()
    served = wait_for(lambda: answers_chat(record.endpoint()), NOTICE_S, every_s=0.2)
    served_after_s = time.monotonic() - began if served else None
    loss = judge_loss(record, member.name, inside, seen, served_after_s=served_after_s)
    restart_member(record, member)
    return loss


def judge_loss(
    record: FleetRecord,
    member: str,
    inside: int | None,
    seen: Sequence[FollowedStream],
    *,
    served_after_s: float | None,
) -> MemberLoss:
    """Judge whose streams broke, by the router if it names the member of each stream, else by the member's count.

    A member counts requests that it computes. Behind a router that is slower than its members (LiteLLM) it has
    computed more than it has sent; the rest is lost with the member and counted nowhere.
    """
    named = bool(routers.router_traits()[record.router.kind].member_header)
    by_member: CountedBy = "" if inside is None else "member"
    lost = [stream for stream in seen if stream.is_lost]
    return MemberLoss(
        member=member,
        router=record.router.kind,
        streams=len(seen),
        inside=inside,
        counted_by="router" if named else by_member,
        finished=sum(stream.finished for stream in seen),
        lost=tuple(stream.name for stream in lost),
        elsewhere=tuple(stream.name for stream in lost if named and stream.member != member),
        reasons=dict(Counter(stream.error for stream in lost)),
        served_after_s=served_after_s,
    )


def streams_in_flight(record: FleetRecord, streams: Sequence[FollowedStream]) -> dict[str, int | None]:
    """Streams of each member that have begun and not ended, as the client sees them."""
    members = [stream.member for stream in streams if not stream.over]
    return {member.name: members.count(member.name) for member in record.members}


def member_counters(record: FleetRecord, member: MemberRecord) -> dict[str, float]:
    """The member's own metrics under moebox's names; empty if it has none."""
    endpoint = record.member_endpoint(member)
    reply = http.get(f"{endpoint.server_url}/metrics", headers=endpoint.headers, timeout_s=5.0)
    return pick_metrics(parse_prometheus(reply.text)) if reply.ok else {}


def _requests_by_member(record: FleetRecord) -> dict[str, int | None]:
    """Current requests of each member, by its own count."""
    counted = {member.name: member_counters(record, member) for member in record.members}
    return {
        name: round(numbers["running"] + numbers.get("waiting", 0.0)) if "running" in numbers else None
        for name, numbers in counted.items()
    }


def restart_member(record: FleetRecord, member: MemberRecord) -> FleetRecord:
    """Restart a member at the address that the router knows."""
    old = state.instances_by_id().get(member.instance)
    if old is None:
        return record
    folder, port = Path(old.run), old.port
    stop_instance(old)
    _wait_for_port(old.base_url, port)
    recipe = codec.read_toml(Recipe, folder / ("twin.toml" if record.twins else "recipe.toml"))
    part = start_member(
        f"{record.name}-{member.name}",
        recipe,
        member.box,
        twins=record.twins,
        key=record.key(member.key_env) or "",
        port=port,
    )
    wait_for_member(part, BACK_S)
    part.detach()
    back = replace(member, instance=part.instance.id)
    members = tuple(back if other.name == member.name else other for other in record.members)
    return save_fleet(replace(record, members=members))


def _wait_for_port(url: str, port: int) -> None:
    """Wait until the port is free: llama.cpp sets only SO_REUSEPORT, so its closed connections block it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    until = time.monotonic() + PORT_S
    while True:
        try:
            preflight.check_port(host, port)
            return
        except ExternalError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
