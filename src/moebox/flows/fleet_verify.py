"""`moebox fleet verify`: the ladder through the router, then affinity and a member's death."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from moebox import codec, http
from moebox.core.verdict import CheckResults, CheckVerdict, Probe
from moebox.fleet import routers
from moebox.flows.fleet_loss import MemberLoss, choose_victim, measure_member_loss, member_counters
from moebox.flows.fleet_record import FleetRecord
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks as climb

CONVERSATIONS, TURNS = 4, 3
AT_HOME = 0.8  # of later turns that must find their prefix; one conversation may have moved
SETTLE_S = 5.0  # for counters of an engine to include a request that has just ended
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVerdict:
    """The ladder through the router, and the fleet's own rungs."""

    checks: CheckResults
    affinity: CheckVerdict
    loss: MemberLoss | None
    by_member: dict[str, int]  # requests each member served during the ladder, by its own count of prompts

    @property
    def is_good(self) -> bool:
        """Everything that was tried passed."""
        return (
            self.checks.verdict == "pass"
            and self.affinity.verdict != "fail"
            and (self.loss is None or self.loss.is_good)
        )


def verify_fleet(
    record: FleetRecord,
    options: VerifyOptions,
    *,
    only: list[str],
    kill: str = "",
    streams: int = 64,
    run: Run,
    notify: Callable[[CheckVerdict], None] | None = None,
) -> FleetVerdict:
    """Climb the ladder through the router, look at affinity; with `kill`, end a member under load and restart it."""
    victim = choose_victim(record, kill) if kill else None  # misspelt names are told before anything is asked
    endpoint = record.endpoint()
    before = _prompts_by_member(record)
    checks = climb(endpoint, options, only=only, run=run, on_check=notify)
    after = _prompts_by_member(record)
    found = check_affinity(record)
    if notify:
        notify(found)
    loss = measure_member_loss(record, victim, streams=streams) if kill else None
    verdict = FleetVerdict(
        checks=checks,
        affinity=found,
        loss=loss,
        by_member={name: round(after[name] - before[name]) for name in after},
    )
    run.write_json("fleet.json", verdict_document(verdict))
    return verdict


def _prompts_by_member(record: FleetRecord) -> dict[str, float]:
    return {member.name: _prompts(member_counters(record, member)) for member in record.members}


def verdict_document(verdict: FleetVerdict) -> dict[str, object]:
    """The fleet's own results for scripts; the ladder's stand beside them."""
    loss = verdict.loss
    return {
        "verdict": "pass" if verdict.is_good else "fail",
        "affinity": codec.to_plain(verdict.affinity),
        "member_loss": {**codec.to_plain(loss), "good": loss.is_good} if loss else None,
        "prompt_tokens_by_member": verdict.by_member,
    }


def _prompts(counted: dict[str, float]) -> float:
    return counted.get("prompt_tokens_total", 0.0)


# -- affinity


def check_affinity(record: FleetRecord) -> CheckVerdict:
    """Turns of one conversation go to the member that has its prefix."""
    began = time.monotonic()
    if why := _no_affinity(record):
        return CheckVerdict(name="affinity", verdict="skip", reason=why)
    homes = [_conversation(record, number) for number in range(CONVERSATIONS)]
    later = len(homes) * (TURNS - 1)
    kept = sum(map(_at_home, homes))
    text = f"{kept} of {later} later turns went to the member that had the prefix"
    return CheckVerdict(
        name="affinity",
        verdict="pass" if kept >= AT_HOME * later else "fail",
        reason=text + _caveats(record, homes),
        seconds=time.monotonic() - began,
        probes=tuple(_turns(number, turns) for number, turns in enumerate(homes, 1)),
    )


def _no_affinity(record: FleetRecord) -> str:
    """Why affinity cannot be looked at, or nothing."""
    if record.router.policy != "prefix":
        return f"the router's policy is {record.router.policy}"
    if len(record.members) < 2:
        return "one member alone is always at home"
    if not all("prompt_tokens_total" in member_counters(record, member) for member in record.members):
        return "a member shows no /metrics, so who served a request is unknown"
    return ""


def _at_home(turns: list[str]) -> int:
    """Later turns that the member of the first one served."""
    first, *later = turns
    return later.count(first) if first else 0


def _caveats(record: FleetRecord, homes: list[list[str]]) -> str:
    text = ""
    if header := routers.router_traits()[record.router.kind].session_header:
        text += f", where clients name the conversation in {header}; {record.router.kind} cannot tell otherwise"
    firsts = {turns[0] for turns in homes}
    if len(firsts) == 1:
        text += f"; all conversations share a system prompt and went to {firsts.pop()}"
    return text


def _turns(number: int, turns: list[str]) -> Probe:
    reason = " → ".join(name or "?" for name in turns)
    return Probe(name=f"conversation {number}", verdict="pass", reason=reason, requests=TURNS)


def _conversation(record: FleetRecord, number: int) -> list[str]:
    """Which member served each turn of a conversation of its own."""
    endpoint = record.endpoint()
    words = " ".join(f"item-{number}-{place}" for place in range(60))
    system = {"role": "system", "content": "You are one of several helpers who share this line."}
    messages: list[dict[str, str]] = [system, {"role": "user", "content": f"{number}. Remember: {words}"}]
    served = []
    header = routers.router_traits()[record.router.kind].session_header
    named = {header: f"moebox-{os.getpid()}-{number}"} if header else {}
    for turn in range(TURNS):
        before = _prompts_by_member(record)
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
            if _prompts(member_counters(record, member)) > before[member.name]:
                return member.name
        time.sleep(0.1)
    return ""
