"""KTransformers' log: SGLang's, and what kt-kernel says of itself."""

from moebox.engines.events import LogEvent, log_pattern, match_line
from moebox.engines.sglang.log import PATTERNS as SGLANG

PATTERNS = (
    log_pattern(r"(?:\[KT\]|kt[_-]kernel|KTMoEWrapper).*(?:[Ll]oad(?:ing)?)", "phase", "loading weights"),
    log_pattern(r"Illegal instruction|does not support (?:AMX|AVX512)|AVX512.* (?:not|un)supported", "error"),
    *SGLANG,
)


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)
