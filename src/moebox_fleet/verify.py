"""`moebox fleet verify`: the checks through the router, then affinity and a member's death."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from moebox import codec, http
from moebox.core.verdict import CheckResults, CheckVerdict, Probe
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from moebox_fleet import routers
from moebox_fleet.loss import MemberLoss, choose_victim, measure_member_loss, member_counters
from moebox_fleet.up import FleetRecord

CONVERSATIONS, TURNS = 4, 3
AT_HOME = 0.8  # share of later turns that must find their prefix; one conversation may have moved
SETTLE_S = 5.0  # for counters of an engine to include a request that has just ended
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVerdict:
    """Results of the checks through the router, and of the fleet's own checks."""

    checks: CheckResults
    affinity: CheckVerdict
    loss: MemberLoss | None
    by_member: dict[str, int]  # prompt tokens of each member during the checks, by its own count

    @property
    def is_good(self) -> bool:
        """Every check that ran passed."""
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
    """Run the checks through the router and check affinity. With `kill`, kill a member under load and restart it."""
    victim = choose_victim(record, kill) if kill else None  # report a wrong name before anything starts
    endpoint = record.endpoint()
    before = _prompts_by_member(record)
    checks = run_checks(endpoint, options, only=only, run=run, on_check=notify)
    after = _prompts_by_member(record)
    found = check_affinity(record)
    if notify:
        notify(found)
    loss = measure_member_loss(record, victim, streams=streams) if kill else None
    verdict = FleetVerdict(
        checks=checks, affinity=found, loss=loss, by_member={name: round(after[name] - before[name]) for name in after}
    )
    run.write_json("fleet.json", verdict_document(verdict))
    return verdict


def _prompts_by_member(record: FleetRecord) -> dict[str, float]:
    counters = {member.name: member_counters(record, member) for member in record.members}
    return {name: values.get("prompt_tokens_total", 0.0) for name, values in counters.items()}


def verdict_document(verdict: FleetVerdict) -> dict[str, object]:
    """The fleet's own results as a JSON document."""
    loss = verdict.loss
    return {
        "verdict": "pass" if verdict.is_good else "fail",
        "affinity": codec.to_plain(verdict.affinity),
        "member_loss": {**codec.to_plain(loss), "good": loss.is_good} if loss else None,
        "prompt_tokens_by_member": verdict.by_member,
    }


def check_affinity(record: FleetRecord) -> CheckVerdict:
    """Check that the turns of a conversation go to the member that has its prefix."""
    began = time.monotonic()
    skip = ""
    if record.router.policy != "prefix":
        skip = f"the router's policy is {record.router.policy}"
    elif len(record.members) < 2:
        skip = "the fleet has only one member"
    elif not all("prompt_tokens_total" in member_counters(record, member) for member in record.members):
        skip = "a member has no /metrics, so it is unknown which one served a request"
    if skip:
        return CheckVerdict(name="affinity", verdict="skip", reason=skip)
    served = [_run_conversation(record, number) for number in range(CONVERSATIONS)]  # a member for each turn
    later = len(served) * (TURNS - 1)
    kept = sum(turns[1:].count(turns[0]) for turns in served if turns[0])
    text = f"{kept} of {later} later turns went to the member that had the prefix"
    if header := routers.router_traits()[record.router.kind].session_header:
        text += f", if clients name the conversation in {header}, which {record.router.kind} requires"
    firsts = {turns[0] for turns in served}
    if len(firsts) == 1:
        text += f"; all conversations share a system prompt and went to {firsts.pop()}"
    probes = []
    for number, turns in enumerate(served, 1):
        reason = " → ".join(name or "?" for name in turns)
        probes.append(Probe(name=f"conversation {number}", verdict="pass", reason=reason, requests=TURNS))
    return CheckVerdict(
        name="affinity",
        verdict="pass" if kept >= AT_HOME * later else "fail",
        reason=text,
        seconds=time.monotonic() - began,
        probes=tuple(probes),
    )


def _run_conversation(record: FleetRecord, number: int) -> list[str]:
    """The member that served each turn of a new conversation."""
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
            f"{endpoint.base_url}/chat/completions", body, headers={**endpoint.headers, **named}, timeout_s=ANSWER_S
        )
        served.append(_member_with_growth(record, before) if reply.ok else "")
        messages = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {turn}?"}]
    return served


def _member_with_growth(record: FleetRecord, before: dict[str, float]) -> str:
    """The member whose counter of prompt tokens grew; engines update it a moment after a reply."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        for name, tokens in _prompts_by_member(record).items():
            if tokens > before[name]:
                return name
        time.sleep(0.1)
    return ""
