"""vLLM's command line to a recipe."""

from moebox.core import presets
from moebox.core.recipe import Flag
from moebox.engines.flags import Argument
from moebox.engines.vllm.engine import ENGINE, KV
from tests.chain.parse_back.reading import (
    Reading,
    ValueParser,
    json_object,
    parse_template_arguments,
    parse_with,
    skip_value,
)

FIELDS = ENGINE.fields
__all__ = ["FIELDS", "finish", "parse_flag"]


def parse_flag(argument: Argument, name: str, reading: Reading) -> bool:
    """Parse a flag that sets several recipe fields. Return False if it is unknown."""
    return parse_with(argument, name, reading, FIXED, PARSERS)


def finish(names: set[str], reading: Reading) -> None:
    """Set what follows from flags that are absent."""
    reading.settings.setdefault("vision", True)


def _parse_kv(value: str, reading: Reading) -> bool:
    return reading.put("kv", {spelling: kind for kind, spelling in KV.items()}.get(value, value))


def _parse_draft(value: str, reading: Reading) -> bool:
    """Parse --speculative-config without what presets add; one with more than a recipe has stays a flag."""
    added = [item for name in presets.preset_names() for item in presets.load_preset(name).speculate.items()]
    own = {key: given for key, given in json_object(value).items() if (key, given) not in added}
    if not own.keys() <= {"method", "model", "num_speculative_tokens"}:
        return False
    tokens = own.get("num_speculative_tokens", 3)
    reading.put("speculate.method", str(own.get("method", "draft_model")))
    reading.put("speculate.draft", str(own.get("model", "")))
    return reading.put("speculate.tokens", tokens if isinstance(tokens, int) else str(tokens))


FIXED: dict[Argument, tuple[str, Flag]] = {
    ("--language-model-only",): ("vision", False),
    ("--mm-encoder-tp-mode", "data"): ("vision", True),
}
PARSERS: dict[str, ValueParser] = {
    "--kv-cache-dtype": _parse_kv,
    "--enable-auto-tool-choice": skip_value,
    "--default-chat-template-kwargs": parse_template_arguments,
    "--speculative-config": _parse_draft,
}
