"""Format and parse bytes, tokens, rates and times, and join names. Every other module may import this one."""

import re
from collections.abc import Sequence

_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "B": 1}
_SIZES = {name.lower(): factor for name, factor in {**_DECIMAL, **_BINARY}.items()}
_SIZES |= {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}  # binary, as in memory tools: 768G of RAM is 768 GiB
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([a-zA-Z]*)(/s)?\s*")


def parse_size(text: str) -> int:
    """Parse a size in bytes: "768GiB", "595.1 GB", "32g" or a plain number. Raise ValueError if it is not valid."""
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if not match or (unit and unit not in _SIZES):
        raise ValueError(f"{text!r} is not a size; write it like 768GiB, 595GB or 1.5TiB")
    return round(float(match.group(1).replace("_", "")) * _SIZES.get(unit, 1))


def parse_rate(text: str) -> int:
    """Parse bytes per second: "614GB/s" (the "/s" may be left out)."""
    try:
        return parse_size(text.strip().removesuffix("/s"))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate; write it like 614GB/s") from None


def parse_tokens(text: str) -> int:
    """Parse a number of tokens: "65536", "64k" (binary, as context lengths are named), "1M"."""
    match = re.fullmatch(r"\s*([\d_,]+)\s*([kKmM]?)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a token count; write it like 65536, 64k or 1M")
    count = int(match.group(1).replace("_", "").replace(",", "") or 0)
    return count * {"": 1, "k": 2**10, "m": 2**20}[match.group(2).lower()]


def parse_seconds(text: str) -> float:
    """Parse a time in seconds: "2s", "50ms", "5m", "1h30m" or a plain number."""
    part = r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h)\s*"
    parts = re.sub(r"^\s*(\d+(?:\.\d+)?)\s*$", r"\1s", text)
    if not re.fullmatch(rf"\s*(?:{part})+", parts):
        raise ValueError(f"{text!r} is not a time; write it like 2s, 50ms, 5m or 1h30m")
    return sum(float(amount) * _TIME_UNITS[unit] for amount, unit in re.findall(part, parts))


def _scale(value: float, *units: tuple[float, str]) -> str:
    """Write a value in the first of `units` (size, format) that is not larger than it, else in the last."""
    size, text = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
    return text.format(value / size)


def format_gb(size: float) -> str:
    """Decimal units, as for checkpoints: "595.1 GB", "1.03 TB"."""
    return _scale(size, (1e12, "{:.2f} TB"), (1e9, "{:.1f} GB"), (1e6, "{:.1f} MB"))


def format_gib(size: float) -> str:
    """Binary units, as for GPU memory: "94.97 GiB"."""
    return _scale(size, (2**40, "{:.2f} TiB"), (2**30, "{:.2f} GiB"), (2**20, "{:.1f} MiB"))


def format_count(number: float) -> str:
    """With thousands separators: "180,191"."""
    return f"{number:,.0f}"


def plural(number: float, noun: str) -> str:
    """A number with its noun: "1 request", "1,200 requests"."""
    return f"{number:,.0f} {noun}" + "s" * (number != 1)


def join_names(names: Sequence[str]) -> str:
    """Names as in a sentence: "a", "a and b", "a, b and c"."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def format_streams(number: int | None) -> str:
    """A number of streams: "8 streams", or "any number of streams" for None and 0."""
    return plural(number, "stream") if number else "any number of streams"


def format_params(number: float) -> str:
    """A number of parameters: "1,026.4 B", "416.9 M"."""
    return _scale(number, (1e9, "{:,.1f} B"), (1e6, "{:,.1f} M"))


def format_rate(per_second: float) -> str:
    """Bytes per second: "614 GB/s"."""
    if 1e10 <= per_second < 1e12:
        return f"{per_second / 1e9:.0f} GB/s"
    return _scale(per_second, (1e12, "{:.2f} TB/s"), (1e9, "{:.3g} GB/s"), (1e6, "{:.0f} MB/s"))


def format_tok_s(per_second: float) -> str:
    """Tokens per second: "18.9 tok/s", "1,650 tok/s"."""
    return f"{per_second:,.0f} tok/s" if per_second >= 100 else f"{per_second:.1f} tok/s"


def format_range(low: float, high: float) -> str:
    """Two rates in tokens per second: "16.8 to 24.1", "826 to 1,290"."""
    return " to ".join(format_tok_s(end).removesuffix(" tok/s") for end in (low, high))


def format_seconds(value: float) -> str:
    """A duration: "363 ms", "2.3 s", "4 min 05 s", "2 h 10 min"."""
    if value < 1:
        return f"{value * 1e3:.0f} ms" if value >= 0.001 or value == 0 else f"{value * 1e6:.0f} us"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_percent(share: float) -> str:
    """A share as a percentage: 0.125 is "12.5%"."""
    return f"{share * 100:.1f}%"
