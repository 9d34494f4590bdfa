"""ik_llama.cpp's command line to a recipe."""

from moebox.core.recipe import Flag
from moebox.engines.flags import Argument
from tests.chain.parse_back import ggml
from tests.chain.parse_back.reading import Reading, ValueParser, parse_template_arguments, parse_with

FIELDS = ggml.ALL_FIELDS
finish = ggml.finish
FIXED: dict[Argument, tuple[str, Flag]] = {("--reasoning-budget", "0"): ("thinking", False)}
PARSERS: dict[str, ValueParser] = ggml.PARSERS | {"--chat-template-kwargs": parse_template_arguments}


def parse_flag(argument: Argument, name: str, reading: Reading) -> bool:
    """Parse a flag that sets several recipe fields. Return False if it is unknown."""
    return parse_with(argument, name, reading, FIXED, PARSERS)
