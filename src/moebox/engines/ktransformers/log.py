"""KTransformers' log: SGLang's, and what kt-kernel says of itself."""

from moebox.engines.events import Event, read, sign
from moebox.engines.sglang.log import SIGNS as SGLANG

SIGNS = (
    sign(r"(?:\[KT\]|kt[_-]kernel|KTMoEWrapper).*(?:[Ll]oad(?:ing)?)", "phase", "loading weights"),
    sign(r"Illegal instruction|does not support (?:AMX|AVX512)|AVX512.* (?:not|un)supported", "error"),
    *SGLANG,
)


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)
