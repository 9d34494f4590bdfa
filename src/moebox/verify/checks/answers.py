"""alive, plain, arithmetic and code: the server lists the model, and fresh questions with known answers."""

import asyncio
import unicodedata
from functools import partial

from moebox.core import registry
from moebox.loose import get_number, get_objects, get_path, get_texts
from moebox.phantom.format_questions import extract_code
from moebox.phantom.question import Question
from moebox.phantom.text_questions import text_flaw
from moebox.sandbox import start as sandbox
from moebox.verify.client import THIS_MACHINE
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import REJECTED_STATUSES, EndpointUnusable, ProbeFailed, ProbeSkipped, raise_for_failure
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer, probe_family
from moebox.verify.violations import parse_json_or

FOREIGN_SHARE = 0.2  # of the letters outside the Latin script, from which an answer is not in English
STORY_TOKENS = 240  # several times the loops that are looked for
SENTENCE_ENDS = ".!?…\"'”’)*`:;>"  # how a complete text may end


async def probe_models(session: CheckSession) -> str:
    """/v1/models lists the model. Learn the context length and the engine from it."""
    endpoint = session.endpoint
    exchange = session.keep_evidence(await session.client.get(f"{endpoint.base_url}/models"))
    raise_for_failure(exchange)
    document = parse_json_or(exchange.response)
    if not isinstance(get_path(document, "data"), list):
        raise ProbeFailed("/v1/models does not answer with a list of models")
    listed = get_objects(document, "data")
    mine = next((item for item in listed if endpoint.model in (item.get("id"), *get_texts(item, "aliases"))), None)
    if mine is None:
        shown = ", ".join(str(item.get("id")) for item in listed[:8]) or "nothing"
        if not endpoint.router:
            raise EndpointUnusable(f"/v1/models does not list {endpoint.model!r}, but: {shown}")
        session.context_limit = endpoint.context or None
        return f"{endpoint.router} lists {shown}; name and context are the fleet's"
    limit, owner = mine.get("max_model_len") or get_path(mine, "meta.n_ctx"), str(mine.get("owned_by"))
    session.context_limit = limit if isinstance(limit, int) and limit > 0 else None
    known = registry.all_traits()
    session.engine = session.engine or next((traits.name for traits in known if owner and traits.owned_by == owner), "")
    # ik_llama.cpp lists the context of all slots together; one request has that of one slot, which /props reports.
    has_slots = any(traits.name == session.engine and traits.has_slots for traits in known)
    if session.context_limit is None or has_slots:
        # The context of one slot, as llama.cpp reports it
        props = parse_json_or((await session.client.get(f"{endpoint.server_url}/props")).response)
        slot = get_number(props, "default_generation_settings.n_ctx") or 0
        limits = (session.context_limit, endpoint.context, int(max(slot, 0)))
        session.context_limit = min(filter(None, limits), default=None)
    return f"context {session.context_limit:,}" if session.context_limit else ""


async def probe_health(session: CheckSession) -> None:
    """/health, if there is one, answers with success."""
    exchange = session.keep_evidence(await session.client.get(f"{session.endpoint.server_url}/health"))
    if 300 <= exchange.status < 500:  # a gateway may guard what is not part of the API
        raise ProbeSkipped(f"the server has no /health for clients: HTTP {exchange.status}")
    raise_for_failure(exchange)


async def probe_answers(session: CheckSession) -> None:
    """One small question gets an answer. Learn which settings the server accepts."""
    question = session.draw("secret")
    exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES and session.max_tokens_field in exchange.response:
        session.max_tokens_field = "max_completion_tokens"
        exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES:
        session.accepts_template_arguments = False
        exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if session.read_answer(exchange).is_empty:
        raise ProbeFailed("an empty answer")


def judge_in_english(question: Question, answer: ChatAnswer) -> str:
    return judge_answer(question, answer) or foreign_script(answer.content)


async def probe_long_text(session: CheckSession) -> None:
    """A longer text stays coherent to its end: no loop, no run of one mark, no other language."""

    async def attempt(stream: bool) -> str:
        answer = await session.ask_question(session.draw("story"), max_tokens=STORY_TOKENS)
        if reason := text_flaw(answer.content, min_words=40) or foreign_script(answer.content):
            raise ProbeFailed(reason)
        ended = answer.finish_reason != "stop" or answer.content.rstrip()[-1:] in SENTENCE_ENDS
        return "" if ended else f"finish_reason stop in mid-sentence: …{answer.content[-40:]!r}"

    await session.run_trials("text", attempt, 0.09, 1)


def foreign_script(text: str) -> str:
    """Return the script in which an English question was answered, or ""."""
    letters = list(filter(str.isalpha, text))
    other = [letter for letter in letters if not unicodedata.name(letter, "").startswith("LATIN")]
    if len(other) <= FOREIGN_SHARE * len(letters):
        return ""
    script = unicodedata.name(other[0], "another").split()[0].lower()
    return f"answered in {script} letters: {text[:60]}"


async def probe_functions(session: CheckSession) -> str:
    """Small functions return the right value for every case. They run in the sandbox only."""
    try:
        session.sandbox = await asyncio.to_thread(sandbox.strongest_level)
    except sandbox.NoSandbox as problem:
        raise ProbeSkipped(f"{THIS_MACHINE}: code is not run here: {problem}") from None

    async def attempt(stream: bool) -> str:
        question = session.draw("code")
        answer = await session.ask_question(question)
        reason = judge_answer(question, answer) or await asyncio.to_thread(_run_cases, question, answer.content)
        return ModelFailure(reason)  # other checks find words that a server lost

    await session.run_trials("answer", attempt, 0.25)
    return f"run behind {session.sandbox}"


def _run_cases(question: Question, text: str) -> str:
    """Run the function in the sandbox. Return "" if every case gives the right value."""
    name, cases = question.expect, question.cases
    try:
        outcome = sandbox.run_code(extract_code(text), name, [[argument] for argument, _ in cases])
    except OSError as problem:  # NoSandbox, or no descriptor or process for it
        raise ProbeSkipped(f"{THIS_MACHINE}: code could not be run: {problem}") from None
    if outcome.error:
        return f"{name}: {outcome.error}"
    for (argument, want), value in zip(cases, outcome.values, strict=False):
        if value != want or isinstance(value, bool) != isinstance(want, bool):  # True is not 1
            return f"{name}({argument!r}) is {value!r}, not {want!r}"
    return "" if len(outcome.values) == len(cases) else f"{name}: {len(outcome.values)} values came back"


ALIVE: Probes = {"models": probe_models, "health": probe_health, "answers": probe_answers}
PLAIN: Probes = {
    "facts": partial(probe_family, family="plain", share=0.38, judge=judge_in_english),
    "memory": partial(probe_family, family="memory", share=0.25),
    "at length": probe_long_text,
}
ARITHMETIC: Probes = {
    "sums": partial(probe_family, family="sums", share=1.0, least=8),
    "counting": partial(probe_family, family="count", share=0.17, least=1),
}
CODE: Probes = {"functions": probe_functions}
