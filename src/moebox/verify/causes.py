"""For a failed check: the part of the server that is likely at fault, and the smallest request that shows it."""

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from moebox.core import catalogue
from moebox.core.verdict import CheckVerdict, FaultCause, HttpExchange, Reproduction
from moebox.loose import drop_keys, get_path
from moebox.redact import hide_known_keys
from moebox.verify.client import HANGS, MachineLimit
from moebox.verify.completions import implausible_usage, parse_chat
from moebox.verify.session import ProbeFailed, ProbeSkipped, ServerSession, transport_problem
from moebox.verify.statistics import STREAMED, Suspect
from moebox.verify.violations import ViolationKind

MIN_SHARE = 0.1  # of a cause that is shown
REPEATS = 3  # of the smallest request, to see how often it fails
MAX_REDUCTIONS = 16  # requests that look for a smaller one
EXPLAIN_S = 30.0  # for all of them: the time is taken from the other checks
ANY_REPLY = ("transport", "template-leak", *get_args(ViolationKind))  # kinds that are read from any chat reply
# What a request may do without: its answer is right or wrong as before, and takes no longer.
NEUTRAL_FIELDS = (
    *("stream_options", "seed", "logprobs", "top_logprobs", "stop", "temperature", "parallel_tool_calls", "stream"),
)
ANSWER_FIELDS = ("tool_choice", "tools", "response_format")  # without these another answer is right


def likely_causes(check: CheckVerdict) -> tuple[FaultCause, ...]:
    """The parts of a server that the failures of a check point at, the likeliest first; () without any evidence."""
    table = catalogue.load_table("causes")
    shares: dict[str, float] = dict(table["prior"])
    reasons: dict[str, list[str]] = {part: [] for part in shares}
    lines = list(_failure_lines(check))
    for signal in table["signal"]:
        if any(re.search(signal["pattern"], line) for line in lines):
            for part in shares:
                shares[part] *= signal["odds"].get(part, 1.0)
                if signal["odds"].get(part, 1.0) > 1:
                    reasons[part].append(signal["name"])
    total = sum(shares.values())
    return tuple(
        FaultCause(part=part, share=shares[part] / total, because="; ".join(reasons[part]))
        for part in sorted(shares, key=lambda part: -shares[part])
        if shares[part] >= MIN_SHARE * total and any(reasons.values())
    )


def _failure_lines(check: CheckVerdict) -> Iterator[str]:
    """One line for each failure: check, probe, kind, side, mode and example."""
    seen = {failure.kind: failure for failure in check.slips}
    for probe in check.probes:
        counted = tuple(failure.example[:40] for failure in probe.slips if failure.verdict != "pass")
        if probe.verdict == "fail" and not probe.reason.startswith(counted):
            yield f"{check.name}/{probe.name} probe server both modes: {probe.reason}"
        for failure in probe.slips:
            if failure.verdict == "pass" or not failure.seen:
                continue
            kind = failure.kind.removesuffix(STREAMED)
            other = seen.get(kind if failure.kind.endswith(STREAMED) else kind + STREAMED)
            only = "streams only" if failure.kind.endswith(STREAMED) else "whole only"
            mode = "both modes" if other is None or other.seen else only
            yield f"{check.name}/{probe.name} {kind} {failure.whose} {mode}: {failure.example}"


async def explain_failure(session: ServerSession, check: CheckVerdict) -> CheckVerdict:
    """Add the likely causes of a failed check and the smallest request that shows its failure."""
    failed = {failure.kind.removesuffix(STREAMED) for failure in check.slips if failure.verdict == "fail"}
    suspects = [suspect for suspect in session.suspects if suspect.kind in failed] or session.suspects
    if not suspects:
        probes = [probe for probe in check.probes if probe.verdict == "fail" and probe.evidence]
        suspects = [Suspect(kind="", reason=probe.reason, exchange=probe.evidence[-1]) for probe in probes]
    found = None
    if suspects:
        can_judge = [each for each in suspects if each.judge or each.kind in ANY_REPLY] or suspects
        requests = [each.exchange.request for each in can_judge]  # a whole reply is simpler than a stream
        sizes = [(bool(get_path(each, "stream")), len(json.dumps(each, default=str))) for each in requests]
        found = await _reproduce(session, can_judge[sizes.index(min(sizes))])
    return replace(check, causes=likely_causes(check), reproduction=found)


def reply_problem(kind: str, exchange: HttpExchange) -> str:
    """Return what is wrong with a chat reply by a kind of failure that any reply can show, or ""."""
    if problem := transport_problem(exchange):
        return problem if kind == "transport" else ""
    answer = parse_chat(exchange)
    found = [each.text for each in answer.violations if each.kind == kind]
    if kind == "usage":
        found += filter(None, [implausible_usage(answer, exchange.request)])
    if kind == "template-leak" and answer.leaked_mark:
        found.append(answer.leaked_mark)
    return "; ".join(found)


async def _reproduce(session: ServerSession, suspect: Suspect) -> Reproduction:
    """Reduce the request as long as the failure stays, and count how often the smallest one fails."""
    exchange, fails = suspect.exchange, list[bool]()
    request: Any = exchange.request
    judge = suspect.judge or (partial(reply_problem, suspect.kind) if suspect.kind in ANY_REPLY else None)

    def judge_reply(reply: HttpExchange) -> str:
        try:
            return judge(reply) if judge else ""
        except (ProbeFailed, ProbeSkipped) as problem:
            return str(problem)

    wanted = judge_reply(exchange)

    async def still_fails(body: Any) -> bool:
        reply = await session.post_within_limits(body)
        if reply.error.startswith(HANGS):
            raise TimeoutError
        reason = judge_reply(reply)
        # The same words at the beginning; figures and quoted text differ from reply to reply
        words = [re.split(r"[\d'\"«:{\[]", text, maxsplit=1)[0].strip() for text in (reason, wanted)]
        return bool(reason) and words[0] == words[1]

    can_send = wanted and isinstance(request, dict) and exchange.url == session.chat_url
    if can_send and not exchange.error.startswith(HANGS):
        fields = [*NEUTRAL_FIELDS]
        if not suspect.judge:  # any question shows it
            fields += [*ANSWER_FIELDS, *["messages"] * (len(request.get("messages") or ()) - 1)]
        with contextlib.suppress(TimeoutError, MachineLimit):
            async with asyncio.timeout(min(EXPLAIN_S, session.seconds_left)) as session.probe_timeout:
                for key in [each for each in fields if each in request][:MAX_REDUCTIONS]:
                    without = drop_keys(request, key)
                    smaller = {**request, key: request[key][1:]} if key == "messages" else without
                    request = smaller if await still_fails(smaller) else request
                for _ in range(REPEATS):
                    fails.append(await still_fails(request))
    session.probe_timeout = None
    return Reproduction(
        method=exchange.method,
        url=exchange.url,
        request=request,
        failed=sum(fails),
        times=len(fails),
        reason=suspect.reason,
        curl=curl_command(exchange.method, exchange.url, request, has_key=bool(session.endpoint.key)),
    )


def curl_command(method: str, url: str, request: Any, *, has_key: bool) -> str:
    """The request as a command line; the key is a variable of the shell."""
    line = shlex.join(["curl", "-sS", hide_known_keys(url)])
    line += ' -H "Authorization: Bearer $API_KEY"' if has_key else ""
    line += " -H 'anthropic-version: 2023-06-01'" if url.endswith("/messages") else ""
    if method == "GET":
        return line
    text = request if isinstance(request, str) else json.dumps(request, ensure_ascii=False, default=str)
    return f"{line} -H 'Content-Type: application/json' -d {shlex.quote(hide_known_keys(text))}"
