"""Text for a model that is not there: deterministic words, one a token, that say what they are."""

import zlib

SENTENCE = "This text comes from a simulation by moebox; no model wrote it."
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi"
)
OPENING, FILLER = SENTENCE.split(), GREEK.split()
CHARACTERS = 4  # a token of English is about four characters


def filler_token(prompt: str, place: int) -> str:
    """The token at `place` of the answer to `prompt`: the same every time."""
    if place < len(OPENING):
        word = OPENING[place]
    else:
        word = FILLER[(zlib.crc32(prompt.encode("utf-8", "replace")) + place * 7) % len(FILLER)]
    return word if place == 0 else f" {word}"


def filler_text(prompt: str, start: int, end: int) -> str:
    """The tokens from `start` up to `end`."""
    return "".join(filler_token(prompt, place) for place in range(start, end))


def count_tokens(prompt: str) -> int:
    """How many tokens a prompt is, roughly; there is no tokenizer here."""
    return max(1, -(-len(prompt) // CHARACTERS))
