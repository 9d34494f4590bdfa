"""SGLang's command line to a recipe."""

from moebox.core.recipe import Flag
from moebox.engines.flags import Argument
from moebox.engines.sglang.engine import ALGORITHMS, ALWAYS_ON, ENGINE
from tests.chain.parse_back.reading import (
    Reading,
    ValueParser,
    note_absent,
    parse_template_arguments,
    parse_with,
    skip_value,
)

FIELDS = ENGINE.fields
__all__ = ["FIELDS", "finish", "parse_flag"]
DRAFT_FLAGS = ("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps")


def parse_flag(argument: Argument, name: str, reading: Reading) -> bool:
    """Parse a flag that sets several recipe fields. Return False if it is unknown."""
    if name not in DRAFT_FLAGS:
        return parse_with(argument, name, reading, FIXED, PARSERS)
    value = argument[-1]
    reading.settings.setdefault("speculate.draft", "")
    if name == "--speculative-algorithm":
        methods = {algorithm: method for method, algorithm in ALGORITHMS.items()}
        return reading.put("speculate.method", methods.get(value.upper(), value.lower()))
    if name == "--speculative-draft-model-path":
        return reading.put("speculate.draft", value)
    return reading.put("speculate.tokens", int(value) if value.isdecimal() else value)


def finish(names: set[str], reading: Reading) -> None:
    """Set what follows from several flags together, and from those that are absent."""
    groups = reading.count("parallel.dp", 1)
    if reading.flags.pop("enable-dp-attention", False) and groups > 1:
        reading.put("parallel.tp", max(reading.count("parallel.tp", 1) // groups, 1))
    reading.settings.setdefault("vision", True)
    note_absent(names, reading, *ALWAYS_ON)
    if "speculate.draft" not in reading.settings:
        return
    tokens = reading.count("speculate.tokens", 3)
    reading.put("speculate.tokens", tokens)
    for key, usual in (("speculative-eagle-topk", 1), ("speculative-num-draft-tokens", tokens + 1)):
        if reading.flags.get(key) == usual:
            del reading.flags[key]


def _parse_kv(value: str, reading: Reading) -> bool:
    return reading.put("kv", {"fp8_e4m3": "fp8", "bfloat16": "bf16"}.get(value, value))


def _parse_experts(value: str, reading: Reading) -> bool:
    return value.isdecimal() and reading.put("parallel.ep", int(value) > 1)


FIXED: dict[Argument, tuple[str, Flag]] = {
    ("--disable-radix-cache",): ("prefix_caching", False),
    ("--language-model-only",): ("vision", False),
    ("--mm-enable-dp-encoder",): ("vision", True),
}
PARSERS: dict[str, ValueParser] = {
    **dict.fromkeys(ALWAYS_ON, skip_value),
    "--kv-cache-dtype": _parse_kv,
    "--ep-size": _parse_experts,
    "--default-chat-template-kwargs": parse_template_arguments,
}
