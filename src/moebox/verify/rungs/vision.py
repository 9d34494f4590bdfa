"""vision: a word, a number and a colour are read from pictures; a server for text refuses them politely."""

from moebox.core.verdict import Score
from moebox.verify import picture
from moebox.verify.ask import Asker, Failed, Skipped, refuse, said
from moebox.verify.picture import Rows
from moebox.verify.rung import Rung
from moebox.verify.rungs.turns import grew
from moebox.verify.trials import Trial, need_answer, trials

LEAST_TOKENS = 16  # that a picture adds to a prompt
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


async def pictures(ask: Asker) -> Score:
    """Fresh pictures, each with one thing to say about it."""
    await _taken(ask)

    async def attempt() -> Trial:
        rows, question, wanted = _drawn(ask)
        answer = await ask.chat([_turn(rows, question)], max_tokens=256)
        said = answer.content.lower()
        right = any(word in said for word in wanted)
        why = "" if right else f"{question} {wanted[0]} expected, got {answer.content[:60]!r}"
        return Trial(why=why, whose="model")

    return await trials(ask, "vision", attempt, ask.options.share(0.5, 3))


def _drawn(ask: Asker) -> tuple[Rows, str, tuple[str, ...]]:
    kind = ask.rng.choice(("word", "count", "colour"))
    if kind == "word":
        text = "".join(ask.rng.sample(picture.LETTERS, 4))
        return picture.word(text), "Which four characters are in this picture? Answer with them only.", (text.lower(),)
    if kind == "count":
        count = ask.rng.choice(list(NUMBERS))
        question = "How many black squares are in this picture? Answer with the number only."
        return picture.squares(count), question, (str(count), NUMBERS[count])
    name = ask.rng.choice(list(picture.COLOURS))
    return picture.colour(name), "Which colour is this picture? Answer with one word.", (name,)


def _turn(rows: Rows, question: str) -> dict[str, object]:
    image = {"type": "image_url", "image_url": {"url": picture.address(rows)}}
    return {"role": "user", "content": [image, {"type": "text", "text": question}]}


async def _taken(ask: Asker) -> None:
    """Skipped for a server of text, which says so; Failed for one that drops the picture, or must see and does not."""
    if ask.options.vision == "no":
        raise Skipped("this model is not expected to see")
    question = "Hello!"
    url = f"{ask.endpoint.base_url}/chat/completions"
    exchange = await ask.client.post(url, ask.body([_turn(picture.colour("red"), question)], max_tokens=16))
    ask.keep(exchange)
    if exchange.error:
        raise Failed(f"a picture: {exchange.error}")
    if ask.options.vision == "yes":
        refuse(exchange)
    if exchange.status != 200:
        await need_answer(ask, "after a picture was refused, an ordinary question got an empty answer")
        raise Skipped(f"the server is for text only: HTTP {exchange.status}{said(exchange)}")
    seen = ask.read(exchange, stream=False, odd=True).count("prompt")
    bare = (await ask.chat([{"role": "user", "content": question}], max_tokens=16)).count("prompt")
    if not grew(bare, seen, LEAST_TOKENS):
        raise Failed(f"a picture is taken and dropped: {bare} prompt tokens without it, {seen} with it")


RUNG = Rung(name="vision", about="pictures read, or refused politely", probes={"pictures": pictures}, cost=6)
