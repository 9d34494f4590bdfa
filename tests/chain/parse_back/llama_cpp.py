"""The command line of mainline llama.cpp's server to a recipe."""

from moebox.engines.flags import Argument
from moebox.engines.llama_cpp.engine import LOOKUP, VERBOSITY
from tests.chain.parse_back import ggml
from tests.chain.parse_back.reading import Reading, ValueParser, parse_template_arguments, parse_with, set_field

FIELDS = ggml.ALL_FIELDS
finish = ggml.finish


def parse_flag(argument: Argument, name: str, reading: Reading) -> bool:
    """Parse a flag that sets several recipe fields. Return False if it is unknown."""
    if (name, argument[-1]) == ("-lv", VERBOSITY):
        return True
    return parse_with(argument, name, reading, {}, PARSERS)


def _parse_value_type(value: str, reading: Reading) -> bool:
    """Parse -ctv, which follows -ctk."""
    return reading.text("kv") == value


def _parse_method(value: str, reading: Reading) -> bool:
    return reading.put("speculate.method", "ngram" if value == LOOKUP else value.removeprefix("draft-"))


def _parse_tokens(value: str, reading: Reading) -> bool:
    return reading.put("speculate.tokens", int(value) if value.isdecimal() else value)


def _parse_split(value: str, reading: Reading) -> bool:
    """Parse -ts; proportions that are not whole layers stay a flag."""
    counts = value.split(",")
    return all(each.isdecimal() for each in counts) and reading.put("hybrid.split", [int(each) for each in counts])


PARSERS: dict[str, ValueParser] = ggml.PARSERS | {
    "-ts": _parse_split,
    "-ctv": _parse_value_type,
    "--chat-template-kwargs": parse_template_arguments,
    "--spec-type": _parse_method,
    "--spec-draft-model": set_field("speculate.draft"),
    "--spec-draft-n-max": _parse_tokens,
}
