"""vision: a word, a number and a colour are read from pictures; a server for text refuses them politely."""

from moebox.core.verdict import Score
from moebox.verify import picture
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped, error_text, raise_for_failure
from moebox.verify.picture import Rows
from moebox.verify.rung import Check
from moebox.verify.rungs.turns import prompt_grew
from moebox.verify.trials import TrialOutcome, require_answer, run_trials

LEAST_TOKENS = 16  # that a picture adds to a prompt
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


async def probe_pictures(session: CheckSession) -> Score:
    """Fresh pictures, each with one thing to say about it."""
    await _taken(session)

    async def attempt() -> TrialOutcome:
        rows, question, wanted = _drawn(session)
        answer = await session.chat([_turn(rows, question)], max_tokens=256)
        said = answer.content.lower()
        right = any(word in said for word in wanted)
        why = "" if right else f"{question} {wanted[0]} expected, got {answer.content[:60]!r}"
        return TrialOutcome(reason=why, attributed_to="model")

    return await run_trials(session, "vision", attempt, session.options.trial_share(0.5, 3))


def _drawn(session: CheckSession) -> tuple[Rows, str, tuple[str, ...]]:
    kind = session.rng.choice(("word", "count", "colour"))
    if kind == "word":
        text = "".join(session.rng.sample(picture.LETTERS, 4))
        return (
            picture.draw_word(text),
            "Which four characters are in this picture? Answer with them only.",
            (text.lower(),),
        )
    if kind == "count":
        count = session.rng.choice(list(NUMBERS))
        question = "How many black squares are in this picture? Answer with the number only."
        return picture.draw_squares(count), question, (str(count), NUMBERS[count])
    name = session.rng.choice(list(picture.COLOURS))
    return picture.fill_colour(name), "Which colour is this picture? Answer with one word.", (name,)


def _turn(rows: Rows, question: str) -> dict[str, object]:
    image = {"type": "image_url", "image_url": {"url": picture.data_url(rows)}}
    return {"role": "user", "content": [image, {"type": "text", "text": question}]}


async def _taken(session: CheckSession) -> None:
    """Skipped for a server of text, which says so; Failed for one that drops the picture, or must see and does not."""
    if session.options.vision == "no":
        raise ProbeSkipped("this model is not expected to see")
    question = "Hello!"
    url = f"{session.endpoint.base_url}/chat/completions"
    exchange = await session.client.post(
        url, session.chat_request([_turn(picture.fill_colour("red"), question)], max_tokens=16)
    )
    session.keep_evidence(exchange)
    if exchange.error:
        raise ProbeFailed(f"a picture: {exchange.error}")
    if session.options.vision == "yes":
        raise_for_failure(exchange)
    if exchange.status != 200:
        await require_answer(session, "after a picture was refused, an ordinary question got an empty answer")
        raise ProbeSkipped(f"the server is for text only: HTTP {exchange.status}{error_text(exchange)}")
    seen = session.read_answer(exchange, stream=False, allow_marks=True).token_count("prompt")
    bare = (await session.chat([{"role": "user", "content": question}], max_tokens=16)).token_count("prompt")
    if not prompt_grew(bare, seen, LEAST_TOKENS):
        raise ProbeFailed(f"a picture is taken and dropped: {bare} prompt tokens without it, {seen} with it")


CHECK = Check(
    name="vision", about="pictures read, or refused politely", probes={"pictures": probe_pictures}, request_estimate=6
)
