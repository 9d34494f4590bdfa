"""combinations: features that clients use together. Every pair of their values is tried; thorough runs try triples.

What must hold is the same in every combination: the question is answered, calls and JSON fit their schemas, reasoning
is apart, nothing leaks. A combination that fails is asked again, then reduced to the features that are needed for it.
"""

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moebox.core import catalogue
from moebox.phantom.format_questions import strip_fence
from moebox.phantom.question import Question
from moebox.phantom.tool_questions import calls_message, result_message
from moebox.units import plural
from moebox.verify.checks.json_modes import judge_json
from moebox.verify.checks.thinking import mixed_reasoning, reason_thinking_stays_on
from moebox.verify.checks.tools import call_problem
from moebox.verify.checks.turns import assistant_turn, user_turn
from moebox.verify.completions import ChatAnswer, is_logprob
from moebox.verify.options import TRIALS
from moebox.verify.session import REJECTED_STATUSES, EndpointUnusable, ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.trials import Check, CheckSession, judge_answer

Combination = dict[str, str]  # a value for each feature

FEATURES: dict[str, tuple[str, ...]] = {
    name: tuple(values) for name, values in catalogue.load_table("check_requests")["features"].items()
}
FAMILIES = {
    "text": "secret",
    "JSON object": "json_object",
    "JSON schema": "json_schema",
    **dict.fromkeys(("tool call", "forced call", "named call", "choice none"), "tool_call"),
}
# These change how a request is served, never what is a right answer to it.
NEUTRAL = ("streamed", "a stop string", "logprobs", "among others", "beside a cancelled stream")
ABSENT_STOP = "⟦end of the letter⟧"  # is in no answer
NEIGHBOUR_FAMILIES = ("json_schema", "tool_call")
NEIGHBOUR_TOKENS = 16
QUICK_ROWS, BRIEF_ROWS = 10, 6  # of the list of pairs, which begins with the rows that cover most
CANDIDATES = 60  # rows from which each next one of the list is chosen
CONFIRMATIONS = 2
MAX_REDUCED = 4  # failing combinations that are reduced to their cause


def cover_combinations(features: Mapping[str, Sequence[str]], strength: int, rng: random.Random) -> list[Combination]:
    """Rows that contain every combination of `strength` values, the most useful rows first (greedy)."""
    names = list(features)
    groups = list(itertools.combinations(names, strength))
    missing = {
        tuple(zip(group, values, strict=True))
        for group in groups
        for values in itertools.product(*(features[name] for name in group))
    }
    rows: list[Combination] = []
    while missing:
        best: Combination = {}
        best_new: set[tuple[tuple[str, str], ...]] = set()
        wanted = sorted(missing)
        for _ in range(CANDIDATES):
            row = {name: rng.choice(features[name]) for name in names} | dict(rng.choice(wanted))
            new = {tuple((name, row[name]) for name in group) for group in groups} & missing
            if len(new) > len(best_new):
                best, best_new = row, new
        rows.append(best)
        missing -= best_new
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationRequest:
    """A question with the settings of one combination."""

    row: Combination
    question: Question
    messages: tuple[Any, ...]
    settings: dict[str, Any]

    def judge(self, session: CheckSession, answer: ChatAnswer) -> tuple[str, bool]:
        """Return what is wrong, or "", and whether only the content is wrong, which a model may get wrong by itself."""
        row, task = self.row, self.row["task"]
        thinks = row["thinking"] == "thinking"
        if task == "choice none":
            return (f"tool_choice is none, yet {answer.calls[0].name} was called" if answer.calls else ""), False
        if answer.leaked_mark:
            return f"{answer.leaked_mark} leaked into the answer", False
        if thinks and session.model_thinks and (mixed := mixed_reasoning(answer)):
            return mixed, False
        if not thinks and session.model_thinks and not session.always_thinks and answer.reasoning.strip():
            return "thinking is off, yet reasoning came", False
        # A server that never gave any is the business of the check of sampling
        asked = (session.gives_logprobs, row["logprobs"] == "logprobs", answer.content, not answer.calls)
        if all(asked) and not (answer.tokens and all(map(is_logprob, answer.logprobs))):
            return "no valid log-probabilities came", False
        if task in ("forced call", "named call") and (problem := call_problem(self.question, answer)):
            return problem, False
        wanted = self.settings.get("tool_choice")
        if isinstance(wanted, dict) and {call.name for call in answer.calls} != {wanted["function"]["name"]}:
            return f"{wanted['function']['name']} was required, and {answer.calls[0].name} was called", False
        if not task.startswith("JSON"):
            return judge_answer(self.question, answer), True
        text = answer.content.strip()
        return judge_json(self.question, answer), strip_fence(text) == text


def build_request(row: Combination, question: Question, earlier: Question) -> CombinationRequest:
    """The request of a combination; a plain row gives the question as it is, `earlier` is a tool's question before."""
    messages: list[Any] = list(question.messages)
    tools = list(question.tools)
    if row["history"] == "after turns":
        messages = [user_turn("Good morning!"), assistant_turn("Good morning! How can I help?"), *messages]
    if row["history"] == "after a tool result":
        calls = earlier.sample.calls
        results = [result_message(call, {"value": 412}) for call in calls]
        messages = [*earlier.messages, calls_message(*calls), *results, assistant_turn("Done."), *messages]
    if row["system"] == "a system message":
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    settings: dict[str, Any] = {"tools": tools or None, "response_format": question.response_format}
    settings |= {"thinking": row["thinking"] == "thinking", "max_tokens": question.max_tokens}
    settings["stream"] = row["transfer"] == "streamed"
    if row["stop"] == "a stop string":
        settings["stop"] = [ABSENT_STOP]
    if row["logprobs"] == "logprobs":
        settings |= {"logprobs": True, "top_logprobs": 2}
    if row["heat"] != "temperature 0":
        settings |= {"temperature": 0.2, "seed": 7}
    name = question.expect[0][0] if question.family == "tool_call" else ""
    choices = {"named call": {"type": "function", "function": {"name": name}}}
    settings["tool_choice"] = {"forced call": "required", "choice none": "none", **choices}.get(row["task"])
    return CombinationRequest(row=row, question=question, messages=tuple(messages), settings=settings)


class CombinationProbe:
    """Asks every row of a list and keeps what was found."""

    def __init__(self, session: CheckSession, features: Mapping[str, Sequence[str]]) -> None:
        self.session = session
        self.plain = {name: values[0] for name, values in features.items()}
        self.earlier = session.draw("tool_call")
        self.neighbours = []  # the same for each row: a prefix cache then knows their beginnings
        for family in NEIGHBOUR_FAMILIES:
            question = session.draw(family, thinking=session.model_thinks and family == "tool_call")
            more = {"tools": list(question.tools) or None, "response_format": question.response_format}
            body = session.chat_request(question.messages, thinking=question.thinking, max_tokens=NEIGHBOUR_TOKENS)
            body |= {key: value for key, value in more.items() if value} | ({} if question.tools else {"stream": True})
            self.neighbours.append(body)
        self.refused: dict[str, str] = {}
        self.found: list[str] = []

    async def ask(self, row: Combination, question: Question) -> tuple[str, bool]:
        """Send one combination and judge it; a rejection raises ProbeFailed with its status."""
        session, request = self.session, build_request(row, question, self.earlier)
        others: list[asyncio.Task[Any]] = []
        if row["neighbours"] == "among others":
            turns = session.draw("secret").messages  # another one each time: its prompt is read beside this answer
            fresh = session.chat_request(turns, max_tokens=NEIGHBOUR_TOKENS, stream=True)
            self.neighbours.reverse()  # each in turn
            posts = [session.client.post(session.chat_url, body) for body in (self.neighbours[0], fresh)]
            others += map(asyncio.create_task, posts)
        elif row["neighbours"] == "beside a cancelled stream":
            story = session.chat_request([user_turn("Write a long story.")], max_tokens=256, stream=True)
            others.append(asyncio.create_task(session.client.post_and_disconnect(session.chat_url, story)))
        try:
            quiet = row["task"] == "choice none"
            answer = await session.chat(request.messages, allow_marks=quiet, **request.settings)
        finally:
            await asyncio.gather(*others, return_exceptions=True)
        return request.judge(session, answer)

    async def judge_row(self, row: Combination, question: Question) -> tuple[str, bool]:
        """Like `ask`, with a reply that cannot be read as a failure; a rejection counts as no failure and is noted."""
        try:
            return await self.ask(row, question)
        except EndpointUnusable:
            raise
        except (ProbeSkipped, ProbeFailed) as problem:
            if isinstance(problem, ProbeSkipped) or problem.status in REJECTED_STATUSES:
                self.refused.setdefault(describe_row(row), str(problem))
                return "", False
            return str(problem), False

    async def try_row(self, row: Combination) -> None:
        """Ask a row; if it fails, ask it again, find the features that are needed for it, and count all of it."""
        session = self.session
        question = session.draw(FAMILIES[row["task"]], thinking=row["thinking"] == "thinking")
        reason, content_only = await self.judge_row(row, question)
        if not reason:
            session.failures.add("combination", stream=row["transfer"] == "streamed")
            return
        again = [await self.judge_row(row, question) for _ in range(CONFIRMATIONS)]
        plain = {**self.plain, "task": row["task"]}
        fails_plain, _ = await self.judge_row(plain, question)
        smallest = plain if fails_plain else row
        if all((not fails_plain, len(self.found) < MAX_REDUCED, *(other for other, _ in again))):
            smallest = await self.reduce(row, question)
        needed = {value for name, value in smallest.items() if value != self.plain[name]}
        models_own = content_only and (bool(fails_plain) or not needed & set(NEUTRAL))
        text = f"{describe_row(smallest)}: {reason}"
        self.found.append(text)
        if models_own:  # the same answer each time counts once
            session.failures.add("combination", text, "model", stream=row["transfer"] == "streamed")
            return
        for wrong in (reason, *(other for other, _ in again)):
            session.failures.add("combination", text if wrong else "", stream=row["transfer"] == "streamed")

    async def reduce(self, row: Combination, question: Question) -> Combination:
        """Return the row with every feature plain that the failure does not need."""
        for name in FEATURES:
            if name == "task" or row[name] == self.plain[name]:
                continue
            simpler = {**row, name: self.plain[name]}
            reason, _ = await self.judge_row(simpler, question)
            if reason:
                row = simpler
        return row


PLAIN: Combination = {name: values[0] for name, values in FEATURES.items()}


def describe_row(row: Combination) -> str:
    """The values of a row that are not plain: "forced call + thinking + streamed"."""
    return " + ".join(value for name, value in row.items() if value != PLAIN[name]) or "a plain request"


def offered_features(session: CheckSession) -> dict[str, tuple[str, ...]]:
    """The features without those that this model or server does not have."""
    features = dict(FEATURES)
    if not session.model_thinks:
        features["thinking"] = ("no thinking",)
    elif reason_thinking_stays_on(session) or session.always_thinks:
        features["thinking"] = ("thinking",)
    return features


async def probe_combinations(session: CheckSession) -> str | ProbeWarning:
    """Every pair of features, each row once; a failure is asked again and reduced."""
    features, trials = offered_features(session), session.options.trials
    rows = cover_combinations(features, 3 if trials >= TRIALS["thorough"] else 2, session.rng)
    if trials <= TRIALS["quick"]:
        rows = rows[: BRIEF_ROWS if session.options.brief else QUICK_ROWS]
    # Prompts that begin alike follow each other, for a prefix cache
    rows.sort(key=lambda row: (FAMILIES[row["task"]], row["system"], row["history"], row["thinking"]))
    probe = CombinationProbe(session, features)
    done = 0
    for row in rows:
        if session.seconds_left <= 0:
            break
        session.trial_progress = (done + 1, len(rows))
        await probe.try_row(row)
        done += 1
    pairs, total = covered_pairs(features, rows[:done])
    refused = f"; {plural(len(probe.refused), 'combination')} refused by the server" if probe.refused else ""
    return f"{plural(done, 'combination')}, {pairs} of {total} pairs of features{refused}"


def covered_pairs(features: Mapping[str, Sequence[str]], rows: Sequence[Combination]) -> tuple[int, int]:
    """Pairs of values that the rows contain, and pairs that there are."""
    groups = list(itertools.combinations(features, 2))
    seen = {(first, row[first], second, row[second]) for row in rows for first, second in groups}
    return len(seen), sum(len(features[first]) * len(features[second]) for first, second in groups)


CHECK = Check(name="combinations", probes={"pairs": probe_combinations})
