"""combinations: features that clients use together. Every pair of their values is tried; thorough runs try triples.

What must hold is the same in every combination: the question is answered, calls and JSON fit their schemas, reasoning
is apart, nothing leaks. A combination that fails is asked again, then reduced to the features that are needed for it.
"""

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from moebox.core import catalogue
from moebox.phantom.format_questions import strip_fence
from moebox.phantom.question import Question
from moebox.phantom.tool_questions import calls_message, result_message
from moebox.units import plural
from moebox.verify.checks.schemas import judge_json
from moebox.verify.checks.thinking import mixed_reasoning, reason_thinking_stays_on
from moebox.verify.checks.tools import call_problem
from moebox.verify.checks.turns import assistant_turn, user_turn
from moebox.verify.completions import ChatAnswer, is_logprob
from moebox.verify.options import TRIALS
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning, RequestRejected, Settings, question_settings
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer

Combination = dict[str, str]  # a value for each feature

_TABLE = catalogue.load_table("check_requests")
FEATURES: Mapping[str, Sequence[str]] = _TABLE["features"]
FAMILIES: Mapping[str, str] = _TABLE["task_families"]  # of the questions
SETTINGS: Mapping[str, Mapping[str, Any]] = _TABLE["feature_settings"]  # of the requests
# These change how a request is served, never what is a right answer to it.
NEUTRAL = ("streamed", "a stop string", "logprobs", "among others", "beside a cancelled stream")
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

    def find_new(row: Combination) -> set[tuple[tuple[str, str], ...]]:
        return {tuple((name, row[name]) for name in group) for group in groups} & missing

    rows: list[Combination] = []
    while missing:
        wanted, drawn = sorted(missing), list[Combination]()
        for _ in range(CANDIDATES):
            drawn.append({name: rng.choice(features[name]) for name in names} | dict(rng.choice(wanted)))
        rows.append(max(drawn, key=lambda row: len(find_new(row))))
        missing -= find_new(rows[-1])
    return rows


def build_request(row: Combination, question: Question, earlier: Question) -> tuple[list[Any], Settings]:
    """Messages and settings of a combination; `earlier` is a question that needed a tool, asked before this one."""
    messages: list[Any] = list(question.messages)
    if row["history"] == "after turns":
        messages = [user_turn("Good morning!"), assistant_turn("Good morning! How can I help?"), *messages]
    if row["history"] == "after a tool result":
        calls = earlier.sample.calls
        results = [result_message(call, {"value": 412}) for call in calls]
        messages = [*earlier.messages, calls_message(*calls), *results, assistant_turn("Done."), *messages]
    if row["system"] == "a system message":
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    settings = question_settings(question)
    for value in row.values():
        settings |= SETTINGS.get(value, {})
    if row["task"] == "named call":
        settings["tool_choice"] = {"type": "function", "function": {"name": question.expect[0][0]}}
    return messages, settings


def judge_combination(session: CheckSession, row: Combination, question: Question, answer: ChatAnswer) -> str:
    """Return what is wrong, or "": a ModelFailure if only the content is, which a model may get wrong by itself."""
    task, thinks = row["task"], row["thinking"] == "thinking"
    if task == "choice none":
        return f"tool_choice is none, yet {answer.calls[0].name} was called" if answer.calls else ""
    if answer.leaked_mark:
        return f"{answer.leaked_mark} leaked into the answer"
    if thinks and session.model_thinks and (mixed := mixed_reasoning(answer)):
        return mixed
    if not thinks and session.model_thinks and not session.always_thinks and answer.reasoning.strip():
        return "thinking is off, yet reasoning came"
    # A server that never gave any is the business of the check of sampling
    asked = (session.gives_logprobs, row["logprobs"] == "logprobs", answer.content, not answer.calls)
    if all(asked) and not (answer.tokens and all(map(is_logprob, answer.logprobs))):
        return "no valid log-probabilities came"
    if task in ("forced call", "named call") and (problem := call_problem(question, answer)):
        return problem
    if task == "named call" and {call.name for call in answer.calls} != {question.expect[0][0]}:
        return f"{question.expect[0][0]} was required, and {answer.calls[0].name} was called"
    if not task.startswith("JSON"):
        return ModelFailure(judge_answer(question, answer))
    text, wrong = answer.content.strip(), judge_json(question, answer)
    return ModelFailure(wrong) if strip_fence(text) == text else wrong


class CombinationProbe:
    """Asks every row of a list and keeps what was found."""

    def __init__(self, session: CheckSession, features: Mapping[str, Sequence[str]]) -> None:
        self.session = session
        self.plain = {name: values[0] for name, values in features.items()}
        self.earlier = session.draw("tool_call")
        self.neighbours = []  # the same for each row: a prefix cache then knows their beginnings
        for family in ("json_schema", "tool_call"):
            question = session.draw(family, thinking=session.model_thinks and family == "tool_call")
            request = session.question_request(question, max_tokens=NEIGHBOUR_TOKENS, stream=not question.tools)
            self.neighbours.append(request)
        self.refused: dict[str, str] = {}
        self.found: list[str] = []

    async def ask(self, row: Combination, question: Question) -> str:
        """Send one combination and judge it; a rejection counts as no failure and is noted."""
        session, others = self.session, list[asyncio.Task[Any]]()
        messages, settings = build_request(row, question, self.earlier)
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
            answer = await session.chat(messages, allow_marks=row["task"] == "choice none", **settings)
        except (ProbeSkipped, RequestRejected) as problem:
            self.refused.setdefault(describe_row(row), str(problem))
            return ""
        except ProbeFailed as problem:
            return str(problem)
        finally:
            await asyncio.gather(*others, return_exceptions=True)
        return judge_combination(session, row, question, answer)

    async def try_row(self, row: Combination) -> None:
        """Ask a row; if it fails, ask it again, find the features that are needed for it, and count all of it."""
        failures, stream = self.session.failures, row["transfer"] == "streamed"
        question = self.session.draw(FAMILIES[row["task"]], thinking=row["thinking"] == "thinking")
        reason = await self.ask(row, question)
        if not reason:
            failures.add("combination", stream=stream)
            return
        again = [await self.ask(row, question) for _ in range(CONFIRMATIONS)]
        plain = {**self.plain, "task": row["task"]}
        fails_plain = await self.ask(plain, question)
        smallest = plain if fails_plain else row
        if not fails_plain and len(self.found) < MAX_REDUCED and all(again):
            smallest = await self.reduce(row, question)
        needed = {value for name, value in smallest.items() if value != self.plain[name]}
        text = f"{describe_row(smallest)}: {reason}"
        self.found.append(text)
        if isinstance(reason, ModelFailure) and (fails_plain or not needed & set(NEUTRAL)):
            failures.add("combination", ModelFailure(text), stream=stream)  # the same answer each time counts once
            return
        for wrong in (reason, *again):
            failures.add("combination", text if wrong else "", stream=stream)

    async def reduce(self, row: Combination, question: Question) -> Combination:
        """Return the row with every feature plain that the failure does not need."""
        for name in FEATURES:
            simpler = {**row, name: self.plain[name]}
            if name != "task" and simpler != row and await self.ask(simpler, question):
                row = simpler
        return row


PLAIN: Combination = {name: values[0] for name, values in FEATURES.items()}


def describe_row(row: Combination) -> str:
    """The values of a row that are not plain: "forced call + thinking + streamed"."""
    return " + ".join(value for name, value in row.items() if value != PLAIN[name]) or "a plain request"


async def probe_combinations(session: CheckSession) -> str | ProbeWarning:
    """Every pair of features, each row once; a failure is asked again and reduced."""
    features = dict(FEATURES)
    if not session.model_thinks:
        features["thinking"] = ("no thinking",)
    elif reason_thinking_stays_on(session):
        features["thinking"] = ("thinking",)
    rows = cover_combinations(features, 3 if session.options.effort == "thorough" else 2, session.rng)
    if session.options.trials <= TRIALS["quick"]:
        rows = rows[: BRIEF_ROWS if session.options.brief else QUICK_ROWS]
    # Prompts that begin alike follow each other, for a prefix cache
    rows.sort(key=lambda row: (FAMILIES[row["task"]], row["system"], row["history"], row["thinking"]))
    probe = CombinationProbe(session, features)
    done: list[Combination] = []
    for _, row in session.track(rows):
        if session.seconds_left <= 0:
            break
        await probe.try_row(row)
        done.append(row)
    pairs, total = covered_pairs(features, done)
    refused = f"; {plural(len(probe.refused), 'combination')} refused by the server" if probe.refused else ""
    return f"{plural(len(done), 'combination')}, {pairs} of {total} pairs of features{refused}"


def covered_pairs(features: Mapping[str, Sequence[str]], rows: Sequence[Combination]) -> tuple[int, int]:
    """Pairs of values that the rows contain, and pairs that there are."""
    groups = list(itertools.combinations(features, 2))
    seen = {(first, row[first], second, row[second]) for row in rows for first, second in groups}
    return len(seen), sum(len(features[first]) * len(features[second]) for first, second in groups)


PROBES: Probes = {"pairs": probe_combinations}
