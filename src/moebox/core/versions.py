"""Versions of engines as people and packages write them: which is newer, which are the same, which lie in a range."""

import functools
import operator
import re

from moebox.errors import refuse_if

SIGNS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
_SUFFIX = re.compile(r"[-_.]?(rc|alpha|beta|post|dev)[-_.]?(\d+)")
_SPELLING = {"rc": "rc", "alpha": "a", "beta": "b", "post": ".post", "dev": ".dev"}


@functools.lru_cache(maxsize=4096)
def canonical_version(text: str) -> str:
    """A release as package indexes write it: v0.5.15-RC1 is 0.5.15rc1, and an image's 0.5.15-cu130 is 0.5.15.

    Builds have a small b; branches, commits and dates stay as they are.
    """
    if re.fullmatch(r"B\d+", text):
        return text.lower()
    if not re.match(r"v?\d+\.\d", text, re.IGNORECASE):
        return text
    release, plus, local = text.lower().removeprefix("v").partition("+")
    release = _SUFFIX.sub(lambda found: _SPELLING[found[1]] + found[2], release)
    return f"{release.partition('-')[0]}{plus}{local}"


def same_version(wanted: str, here: str) -> bool:
    """Whether an installed version is the wanted one: "0.32" also means 0.32.0, and 0.32.0 also 0.32.0+cu129."""
    want, have = canonical_version(wanted), canonical_version(here)
    return have in (want, f"b{want}") or re.fullmatch(rf"{re.escape(want)}(\.\d+)*(\+.*)?", have) is not None


def is_commit(version: str) -> bool:
    return re.fullmatch(r"(?!b\d+$)[0-9a-f]{7,40}", version.lower()) is not None


@functools.lru_cache(maxsize=4096)
def version_numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that sort: 0.5.12.post1 is (0, 5, 12, 1), an rc its release; a branch or commit has none."""
    version = canonical_version(version).lower()
    if is_commit(version) or not re.match(r"[vb]?\d", version):
        return ()
    text = re.split(r"^v?0\.1\.dev|rc|dev|(?<=\d)[ab]\d|\+", version, maxsplit=1)[0]
    return tuple(map(int, re.findall(r"\d+", text)))


@functools.lru_cache(maxsize=4096)
def _counted(version: str) -> tuple[str, tuple[int, ...]]:
    """How a version is counted, as a build (b9840), a date (2026-08) or by numbers, and these: 0.32 is 0.32.0."""
    kind = "build" if re.match(r"[bB]\d", version) else "date" if re.match(r"20\d\d-", version) else "number"
    return kind, (*version_numbers(version), 0, 0, 0, 0, 0, 0, 0, 0)[:8]


def are_comparable(version: str, other: str) -> bool:
    """Whether both have numbers of one kind: builds, dates or releases."""
    return bool(version_numbers(version) and version_numbers(other)) and _counted(version)[0] == _counted(other)[0]


@functools.lru_cache(maxsize=1024)
def _parse_range(wanted: str) -> tuple[tuple[str, str], ...]:
    if ".." in wanted:
        low, high = wanted.split("..")
        return tuple((sign, text) for sign, text in ((">=", low), ("<=", high)) if text)
    bounds = re.findall(r"\s*(<=|>=|==|<|>)\s*([^\s,]+)", wanted)
    refuse_if(not bounds, f"support.toml: {wanted!r} is not a version range", hint='e.g. versions = ">=0.25,<0.27"')
    return tuple(bounds)


@functools.lru_cache(maxsize=4096)
def in_versions(version: str, wanted: str) -> bool:
    """Whether a version is in ">=0.25,<0.27", "b9840..b10260" or "2026-07-15.."; in no bounded range if unknown."""
    mine = _counted(version)
    return not wanted or all(
        are_comparable(version, limit) and SIGNS[sign](mine, _counted(limit)) for sign, limit in _parse_range(wanted)
    )


@functools.lru_cache(maxsize=4096)
def version_in_range(version: str, wanted: str) -> bool:
    """True if a version lies in ">=0.24,<0.28". An unknown version counts as the newest: it meets no upper bound."""
    if all(are_comparable(version, limit) for _, limit in _parse_range(wanted)):
        return in_versions(version, wanted)
    return all(sign in (">", ">=") for sign, _ in _parse_range(wanted))
