"""`moebox fleet verify`: the ladder through the router, then affinity and a member's death."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from moebox import codec, http
from moebox.bench.scrape import parse, pick
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.core.verdict import Ladder, Probe, Verdict
from moebox.errors import BadInput, Outside
from moebox.fleet import routers
from moebox.flows.fleet_streams import Crowd, Stream, crowd
from moebox.flows.fleet_up import FleetRecord, MemberRecord, answers, save, start_twin, wait_ready
from moebox.serve import preflight, state
from moebox.serve.program import Program
from moebox.serve.session import Session, launch, prepare
from moebox.serve.stop import stop as stop_instance
from moebox.store import Run
from moebox.verify.ladder import verify as climb
from moebox.verify.options import Options

CONVERSATIONS, TURNS = 4, 3
BUSIEST = "busiest"
AT_HOME = 0.8  # of later turns that must find their prefix; one conversation may have moved
SETTLE_S = 5.0  # for counters of an engine to include a request that has just ended
BACK_S = 120.0  # for a router to send requests again to a member that came back
ANSWER_S = 120.0
NOTICE_S = 60.0  # for a router to send requests past a member that died
PORT_S = 150.0  # for the kernel to forget the connections of a killed server (tcp_fin_timeout is 60 s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLoss:
    """What a member's death did to the streams in flight."""

    member: str
    streams: int
    inside: int | None  # requests the member held when it died, by its own count; None where it does not count
    finished: int
    lost: tuple[str, ...]  # X-Request-Id of each broken stream
    reasons: dict[str, int]
    served_after_s: float | None  # until a new request was answered; None when none was

    @property
    def good(self) -> bool:
        """Only streams of the dead member broke, and the fleet went on."""
        only_own = self.inside is None or len(self.lost) <= self.inside
        return only_own and self.served_after_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVerdict:
    """The ladder through the router, and the fleet's own rungs."""

    ladder: Ladder
    affinity: Verdict
    loss: MemberLoss | None
    by_member: dict[str, int]  # requests each member served during the ladder, by its own count of prompts

    @property
    def good(self) -> bool:
        """Everything that was tried passed."""
        return (
            self.ladder.verdict == "pass" and self.affinity.verdict != "fail" and (self.loss is None or self.loss.good)
        )


def verify(
    record: FleetRecord,
    options: Options,
    *,
    only: list[str],
    kill: str = "",
    streams: int = 64,
    run: Run,
    tell: Callable[[Verdict], None] | None = None,
) -> FleetVerdict:
    """Climb the ladder through the router, look at affinity; with `kill`, end a member under load and restart it."""
    victim = _victim(record, kill) if kill else None  # misspelt names are told before anything is asked
    endpoint = record.endpoint()
    before = {member.name: counts(record, member) for member in record.members}
    ladder = climb(endpoint, options, only=only, run=run, tell=tell)
    after = {member.name: counts(record, member) for member in record.members}
    found = affinity(record)
    if tell:
        tell(found)
    loss = member_loss(record, victim, streams=streams) if kill else None
    verdict = FleetVerdict(
        ladder=ladder,
        affinity=found,
        loss=loss,
        by_member={name: round(_prompts(after[name]) - _prompts(before[name])) for name in after},
    )
    run.write_json("fleet.json", document(verdict))
    return verdict


def document(verdict: FleetVerdict) -> dict[str, object]:
    """The fleet's own results for scripts; the ladder's stand beside them."""
    loss = verdict.loss
    return {
        "verdict": "pass" if verdict.good else "fail",
        "affinity": codec.plain(verdict.affinity),
        "member_loss": {**codec.plain(loss), "good": loss.good} if loss else None,
        "prompt_tokens_by_member": verdict.by_member,
    }


def counts(record: FleetRecord, member: MemberRecord) -> dict[str, float]:
    """The member's own counters, under our names; empty where it has none."""
    endpoint = record.member_endpoint(member)
    reply = http.get(f"{endpoint.root}/metrics", headers=endpoint.headers, timeout_s=5.0)
    return pick(parse(reply.text)) if reply.ok else {}


def _prompts(counted: dict[str, float]) -> float:
    return counted.get("prompt_tokens_total", 0.0)


# -- affinity


def affinity(record: FleetRecord) -> Verdict:
    """Turns of one conversation go to the member that has its prefix."""
    began = time.monotonic()
    if record.router.policy != "prefix":
        return Verdict(name="affinity", verdict="skip", reason=f"the router's policy is {record.router.policy}")
    if len(record.members) < 2:
        return Verdict(name="affinity", verdict="skip", reason="one member alone is always at home")
    if not all("prompt_tokens_total" in counts(record, member) for member in record.members):
        return Verdict(
            name="affinity", verdict="skip", reason="a member shows no /metrics, so who served a request is unknown"
        )
    homes = [_conversation(record, number) for number in range(CONVERSATIONS)]
    later = [(turns[0], name) for turns in homes for name in turns[1:]]
    kept = sum(first == name and name != "" for first, name in later)
    spread = {turns[0] for turns in homes}
    text = f"{kept} of {len(later)} later turns went to the member that had the prefix"
    if header := routers.traits()[record.router.kind].session_header:
        text += f", where clients name the conversation in {header}; {record.router.kind} cannot tell otherwise"
    if len(spread) == 1:
        text += f"; all conversations share a system prompt and went to {spread.pop()}"
    good = kept >= AT_HOME * len(later)
    probes = tuple(
        Probe(
            name=f"conversation {number}",
            verdict="pass",
            reason=" → ".join(name or "?" for name in turns),
            requests=TURNS,
        )
        for number, turns in enumerate(homes, 1)
    )
    return Verdict(
        name="affinity",
        verdict="pass" if good else "fail",
        reason=text,
        seconds=time.monotonic() - began,
        probes=probes,
    )


def _conversation(record: FleetRecord, number: int) -> list[str]:
    """Which member served each turn of a conversation of its own."""
    endpoint = record.endpoint()
    words = " ".join(f"item-{number}-{place}" for place in range(60))
    system = {"role": "system", "content": "You are one of several helpers who share this line."}
    messages: list[dict[str, str]] = [system, {"role": "user", "content": f"{number}. Remember: {words}"}]
    served = []
    header = routers.traits()[record.router.kind].session_header
    named = {header: f"moebox-{os.getpid()}-{number}"} if header else {}
    for turn in range(TURNS):
        before = {member.name: _prompts(counts(record, member)) for member in record.members}
        body = {"model": endpoint.model, "messages": messages, "max_tokens": 4, "temperature": 0}
        reply = http.post_json(
            f"{endpoint.base_url}/chat/completions",
            body,
            headers={**endpoint.headers, **named},
            timeout_s=ANSWER_S,
        )
        served.append(_grew(record, before) if reply.ok else "")
        messages = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {turn}?"}]
    return served


def _grew(record: FleetRecord, before: dict[str, float]) -> str:
    """The member whose counter moved; engines update theirs a moment after a reply."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        for member in record.members:
            if _prompts(counts(record, member)) > before[member.name]:
                return member.name
        time.sleep(0.1)
    return ""


# -- a member's death


def _victim(record: FleetRecord, name: str) -> MemberRecord | None:
    """The member to be killed; None for the one that is busiest when it comes to it."""
    if name == BUSIEST and len(record.members) > 1 and all(one.instance for one in record.members):
        return None
    member = next((one for one in record.members if one.name == name), None)
    if member is None:
        raise BadInput(f"{record.name} has no member {name!r}", hint=", ".join(one.name for one in record.members))
    if not member.instance:
        raise BadInput(f"{name} was not started by moebox, so it is not killed", hint="a member with a recipe can be")
    if len(record.members) < 2:
        raise BadInput("killing the only member leaves nothing to look at")
    return member


def member_loss(record: FleetRecord, victim: MemberRecord | None, *, streams: int, tokens: int = 400) -> MemberLoss:
    """Kill a member with -9 under `streams` streams, count what broke, and start it again."""
    killed: list[tuple[MemberRecord, int | None]] = []

    async def disturb(_: list[Stream]) -> None:
        held = await asyncio.to_thread(_held, record)
        chosen = victim or max(record.members, key=lambda member: held[member.name] or 0)
        killed.append((chosen, held[chosen.name]))
        _kill(chosen)

    endpoint = record.endpoint()
    seen = asyncio.run(crowd(endpoint, streams=streams, tokens=tokens, deadline_s=BACK_S * 2, disturb=disturb))
    member, inside = killed[0]
    found = MemberLoss(
        member=member.name,
        streams=streams,
        inside=inside,
        finished=sum(stream.finished for stream in seen.streams),
        lost=tuple(stream.name for stream in seen.lost),
        reasons=_reasons(seen),
        served_after_s=_served_again(record),
    )
    restart(record, member)
    return found


def _held(record: FleetRecord) -> dict[str, int | None]:
    """Requests in each member now, by its own count."""
    counted = {member.name: counts(record, member) for member in record.members}
    return {
        name: round(found["running"] + found.get("waiting", 0.0)) if "running" in found else None
        for name, found in counted.items()
    }


def _served_again(record: FleetRecord) -> float | None:
    """Seconds until a request whose prefix any member may have is answered; a router takes a while to notice."""
    began = time.monotonic()
    while time.monotonic() - began < NOTICE_S:
        if answers(record.endpoint()):
            return time.monotonic() - began
        time.sleep(0.2)
    return None


def _reasons(seen: Crowd) -> dict[str, int]:
    reasons: dict[str, int] = {}
    for stream in seen.lost:
        reasons[stream.error] = reasons.get(stream.error, 0) + 1
    return reasons


def _kill(member: MemberRecord) -> None:
    instance = next((one for one in state.instances() if one.id == member.instance), None)
    pid = instance.life.engine if instance else 0
    if isinstance(pid, int) and pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def restart(record: FleetRecord, member: MemberRecord) -> FleetRecord:
    """The member again, at the address the router knows."""
    old = next((one for one in state.instances() if one.id == member.instance), None)
    if old is None:
        return record
    folder, port = Path(old.run), old.port
    stop_instance(old)
    _wait_for_port(old.base_url, port)
    run_name = f"{record.name}-{member.name}"
    run = Run.create(run_name)
    if record.twins:
        recipe = codec.read_toml(Recipe, folder / "twin.toml")
        part: Session | Program = start_twin(recipe, member.box, run, title=run_name, port=port)
    else:
        recipe = codec.read_toml(Recipe, folder / "recipe.toml")
        part = launch(prepare(deploy(recipe), name=run.id), run)
    try:
        wait_ready(part, BACK_S)
    except BaseException:
        part.stop()
        raise
    part.detach()
    members = tuple(
        replace(one, instance=part.instance.id) if one.name == member.name else one for one in record.members
    )
    return save(replace(record, members=members))


def _wait_for_port(url: str, port: int) -> None:
    """Connections of a killed llama.cpp keep its port for the kernel's fin timeout: it sets SO_REUSEPORT alone."""
    host = urlsplit(url).hostname or "127.0.0.1"
    until = time.monotonic() + PORT_S
    while True:
        try:
            preflight.port(host, port)
            return
        except Outside:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
