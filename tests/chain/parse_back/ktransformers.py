"""KTransformers' command line to a recipe: SGLang's, and the flags of kt-kernel."""

from moebox.engines.flags import Argument
from moebox.engines.ktransformers.engine import ENGINE, THRESHOLD
from tests.chain.parse_back import sglang
from tests.chain.parse_back.reading import Reading

FIELDS = {**ENGINE.fields, **ENGINE.hybrid_fields}
finish = sglang.finish


def parse_flag(argument: Argument, name: str, reading: Reading) -> bool:
    """Parse a flag that sets several recipe fields, or follows from others. Return False if it is unknown."""
    if name in ("--kt-weight-path", "--kt-method", "--disable-shared-experts-fusion"):
        return True
    if name == "--kt-gpu-prefill-token-threshold" and argument[-1] == str(THRESHOLD):
        return True
    return sglang.parse_flag(argument, name, reading)
