"""vision: a word, a number and a colour are read from pictures; a server for text rejects them properly."""

import base64
import struct
import zlib

from moebox.core import catalogue
from moebox.core.verdict import Score
from moebox.verify.checks.turns import HELLO, prompt_grew, user_turn
from moebox.verify.session import ProbeFailed, ProbeSkipped, error_text, raise_for_failure
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes

MIN_PICTURE_TOKENS = 16  # that a picture adds to a prompt
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
PixelColour = tuple[int, int, int]
Picture = list[list[PixelColour]]
WHITE: PixelColour = (255, 255, 255)
BLACK: PixelColour = (0, 0, 0)
_TABLE = catalogue.load_table("pictures")
COLOURS: dict[str, PixelColour] = {name: (red, green, blue) for name, (red, green, blue) in _TABLE["colours"].items()}
FONT: dict[str, list[int]] = _TABLE["letters"]
SCALE = 12  # pixels of one dot of a letter


async def probe_pictures(session: CheckSession) -> Score:
    """Fresh pictures, each with one question about it. A server of text must reject them, not drop them."""
    if session.options.vision == "no":
        raise ProbeSkipped("this model is not expected to see")
    turn = _picture_turn(_fill(128, 128, COLOURS["red"]), "Hello!")
    exchange = await session.post(session.chat_url, session.chat_request([turn], max_tokens=16))
    if exchange.error:
        raise ProbeFailed(f"a picture: {exchange.error}")
    if session.options.vision == "yes":
        raise_for_failure(exchange)
    if exchange.status != 200:
        await session.require_answer("after a picture was refused, an ordinary question got an empty answer")
        raise ProbeSkipped(f"the server is for text only: HTTP {exchange.status}{error_text(exchange)}")
    seen = session.read_answer(exchange, allow_marks=True).token_count("prompt")
    bare = (await session.chat([HELLO], max_tokens=16)).token_count("prompt")
    if not prompt_grew(bare, seen, MIN_PICTURE_TOKENS):
        raise ProbeFailed(f"a picture is accepted but ignored: {bare} prompt tokens without it, {seen} with it")

    async def attempt(stream: bool) -> str:
        picture, question, wanted = _draw_picture(session)
        answer = await session.chat([_picture_turn(picture, question)], max_tokens=256)
        right = any(word in answer.content.lower() for word in wanted)
        return ModelFailure("" if right else f"{question} {wanted[0]} expected, got {answer.content[:60]!r}")

    return await session.run_trials("vision", attempt, 0.5, 3)


def _draw_picture(session: CheckSession) -> tuple[Picture, str, tuple[str, ...]]:
    kind = session.rng.choice(("word", "count", "colour"))
    if kind == "word":
        text = "".join(session.rng.sample(tuple(FONT), 4))
        picture = _fill((6 * len(text) + 4) * SCALE, 11 * SCALE, WHITE)
        for place, letter in enumerate(text):
            for y, bits in enumerate(FONT[letter]):
                for x in range(5):
                    if bits >> (4 - x) & 1:
                        _draw_square(picture, (2 + 6 * place + x) * SCALE, (2 + y) * SCALE, SCALE)
        return picture, "Which four characters are in this picture? Answer with them only.", (text.lower(),)
    if kind == "count":
        count = session.rng.choice(list(NUMBERS))
        picture = _fill(60 * count + 40, 120, WHITE)
        for place in range(count):
            _draw_square(picture, 30 + 60 * place, 40, 40)
        question = "How many black squares are in this picture? Answer with the number only."
        return picture, question, (str(count), NUMBERS[count])
    name = session.rng.choice(list(COLOURS))
    return _fill(128, 128, COLOURS[name]), "Which colour is this picture? Answer with one word.", (name,)


def _fill(width: int, height: int, colour: PixelColour) -> Picture:
    return [[colour] * width for _ in range(height)]


def _draw_square(picture: Picture, left: int, top: int, size: int) -> None:
    for row in picture[top : top + size]:
        row[left : left + size] = [BLACK] * size


def _picture_turn(picture: Picture, question: str) -> dict[str, object]:
    raw = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in picture)
    header = struct.pack(">IIBBBBB", len(picture[0]), len(picture), 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}
    return user_turn([image, {"type": "text", "text": question}])


PROBES: Probes = {"pictures": probe_pictures}
