"""sampling: temperature and seed do what they say, and log-probabilities belong to the text."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from moebox.core.verdict import Score
from moebox.verify.answer import NOT_OFFERED, ChatAnswer, TokenLogprob, is_logprob
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped, error_text, skip_if_rejected
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.trials import TrialOutcome, draw_question, run_trials, server_failure

HOT = 1.8
WAYS = (False, True, False, True, False, True)  # streamed or not: three of each
DRAWS = len(WAYS)
SURE = 0.05  # nats a token below which a model hardly ever says anything else
STOP = "12"
WIDE = "Repeat after me: naïve 東京 🦜"
# An open question to large models, and characters that a small one has never seen: of one of them it is not sure.
OPEN = ("Make up three names, four colours and a sound.", "Repeat after me: 🦜🚀 東京 𝒳𝒴 привет")


async def probe_temperature(session: CheckSession) -> str | ProbeWarning:
    """Hot answers differ from each other, in streams and whole."""
    sure = True
    for question in OPEN:
        answers = [await _sampled(session, _hot(session, question, stream=way or None)) for way in WAYS]
        if any(_differ(answers, way) for way in (False, True)):
            return await _in_both_ways(session, question, answers)
        sure = sure and _is_sure(answers[0])
    if sure:
        raise ProbeSkipped("model, not server: it is too sure of its words to tell")
    return ProbeWarning(f"{DRAWS} answers at temperature {HOT} are the same: it is not read, or the model is too sure")


async def _in_both_ways(session: CheckSession, question: str, answers: list[ChatAnswer]) -> str | ProbeWarning:
    """Where those of one way alone differ it is chance, or the other is one in which temperature is not read."""
    for way in (False, True):
        if _differ(answers, way):
            continue
        more = [await _sampled(session, _hot(session, question, stream=way or None)) for _ in WAYS]
        if not _differ([*answers, *more], way):
            return ProbeWarning(f"answers at temperature {HOT} differ, {_ONLY[way]} are all the same")
    return f"{DRAWS} answers at temperature {HOT} differ"


def _is_sure(answer: ChatAnswer) -> bool:
    """The model says that it would hardly ever write anything else."""
    surprise = [-token.logprob for token in answer.tokens]
    return bool(surprise) and sum(surprise) / len(surprise) < SURE


_ONLY = {False: "and those that are not streamed", True: "and those in streams"}


def _differ(answers: Sequence[ChatAnswer], stream: bool) -> bool:
    """Those that came in this way are not all the same."""
    return len({answer.content + answer.reasoning for answer in answers if answer.stream == stream}) > 1


async def probe_seed(session: CheckSession) -> str | ProbeWarning:
    """The same seed gives the same answer."""
    for question in OPEN:
        same = [await _sampled(session, _hot(session, question, seed=7)) for _ in range(2)]
        if same[0].content + same[0].reasoning != same[1].content + same[1].reasoning:
            return ProbeWarning(
                f"the same seed gave two answers: {same[0].content[:40]!r} and {same[1].content[:40]!r}"
            )
    return "the same seed gave the same answer"


def _hot(session: CheckSession, question: str, **more: Any) -> dict[str, object]:
    body: dict[str, object] = session.chat_request([{"role": "user", "content": question}], max_tokens=24, **more)
    return body | {"temperature": HOT, "top_p": 1}


async def _sampled(session: CheckSession, body: dict[str, object]) -> ChatAnswer:
    exchange = await session.post_chat(body | {"logprobs": True})
    if exchange.status in REJECTED_STATUSES:
        exchange = await session.post_chat(body)
    if exchange.status in REJECTED_STATUSES:
        raise ProbeSkipped(f"refused: HTTP {exchange.status}{error_text(exchange)}")
    return session.read_answer(exchange, stream=bool(body.get("stream")), allow_marks=True)


async def probe_logprobs(session: CheckSession) -> Score | ProbeWarning:
    """Whole and streamed, they are numbers below zero that belong to the words that came."""
    first = await session.post_chat(
        session.chat_request(draw_question(session, "copy").messages, max_tokens=24, logprobs=True, top_logprobs=2)
    )
    with skip_if_rejected(NOT_OFFERED):
        tokens = session.read_answer(first, stream=False).tokens
    if not tokens:
        return ProbeWarning("logprobs was taken, and none came")
    if not any(token.top for token in tokens):
        return ProbeWarning("top_logprobs was taken, and none came")
    score: Score | None = None
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> TrialOutcome:
            task = draw_question(session, "copy")
            answer = await session.ask_question(task, stream=stream, logprobs=True, top_logprobs=2)
            return server_failure(logprob_problem(answer))

        score = await run_trials(session, "logprobs" + STREAMED * stream, attempt, session.options.trial_share(0.34))
    if score is None:
        raise ProbeFailed("nothing was asked")
    return score


async def probe_logprobs_at_stop(session: CheckSession) -> str | ProbeWarning:
    """They end where a stop string ends the text, and spell letters outside ASCII by their bytes."""
    asked = session.chat_request(
        draw_question(session, "count", start=1, end=30).messages, max_tokens=256, logprobs=True, stop=[STOP]
    )
    exchange = await session.post_chat(asked)
    with skip_if_rejected(NOT_OFFERED):
        stopped = session.read_answer(exchange, stream=False)
    session.failures.add("logprobs", tokens_after_stop(stopped, STOP))
    wide = await session.chat([{"role": "user", "content": WIDE}], max_tokens=64, logprobs=True, allow_marks=True)
    spelled = _spelled(wide.tokens)
    if wide.tokens and wide.content.strip() not in spelled:
        return ProbeWarning(
            f"log-probabilities of letters outside ASCII spell {spelled[:40]!r}, not {wide.content[:40]!r}"
        )
    return "they end with the text"


def tokens_after_stop(answer: ChatAnswer, stop: str) -> str:
    """ "" or the first token that begins after the stop string; the one that completes it may reach further."""
    ended = answer.content.rstrip()
    spelled = ""
    for token in answer.tokens:
        if stop in spelled[len(ended) :]:
            return f"log-probabilities go on after the stop string {stop!r}: {token.text!r}"
        spelled += token.text
    return ""


def logprob_problem(answer: ChatAnswer) -> str:
    """ "" or how tokens and text disagree."""
    if not answer.tokens:
        return "no log-probabilities came this time"
    if not all(map(is_logprob, answer.logprobs)):
        return "a log-probability is not a number below zero"
    spelled = _spelled(answer.tokens)
    if answer.content.strip() not in spelled:
        return f"the tokens spell {spelled[:60]!r}, the text is {answer.content[:60]!r}"
    if odd := next(filter(None, map(_unranked, answer.tokens)), ""):
        return odd
    made = answer.token_count("completion")
    if made is not None and len(answer.tokens) > made + 1:
        return f"{len(answer.tokens)} tokens have log-probabilities, usage counts {made}"
    return ""


def _unranked(token: TokenLogprob) -> str:
    """ "" or what is wrong with the likeliest tokens in this one's place; at temperature 0 it is the first of them."""
    if not token.top:
        return ""
    if any(later > earlier + 1e-3 for earlier, later in pairwise(token.top)):
        return f"the likeliest tokens beside {token.text!r} are not in order: {token.top}"
    if token.top[0] > 1e-3:
        return f"a log-probability beside {token.text!r} is above zero: {token.top[0]}"
    if token.logprob > token.top[-1] + 1e-3 and token.text not in token.likely:
        return f"{token.text!r} was taken at {token.logprob}, and is not among the likeliest: {token.likely}"
    if token.logprob < token.top[-1] - 1e-3 and len(token.top) > 1:
        return f"{token.text!r} was taken at {token.logprob}, below all of the likeliest: {token.top}"
    return ""


def _spelled(tokens: tuple[TokenLogprob, ...]) -> str:
    """The text of the tokens, by their bytes where these are given."""
    raw = b"".join(bytes(token.data) if _is_bytes(token) else token.text.encode(errors="replace") for token in tokens)
    return raw.decode(errors="replace")


def _is_bytes(token: TokenLogprob) -> bool:
    return bool(token.data) and all(0 <= part < 256 for part in token.data)


CHECK = Check(
    name="sampling",
    about="temperature, seed, and log-probabilities that belong to the text",
    probes={
        "temperature": probe_temperature,
        "seed": probe_seed,
        "logprobs": probe_logprobs,
        "logprobs at a stop": probe_logprobs_at_stop,
    },
    request_estimate=18,
)
