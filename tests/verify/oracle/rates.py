"""Faults by rate: NAME, or NAME@N for one request in N, NAME@N!s for streams only (!w: whole only), ~K for model noise.

With ~K the model answers every Kth prompt wrongly, the same prompt always in the same way. Which requests are broken is
drawn from the name, the request and how often it came before: the same run meets the same faults, whatever else was
served. NAME@N+7 draws others.
"""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from typing import Any

from moebox.phantom.question import ModelReply

from .doses import DOSES
from .faults import FAULTS, Fault
from .fifth import FIFTH
from .fourth import FOURTH
from .hostile import HOSTILE
from .odd import ODD
from .odd_fifth import ODD_FIFTH
from .odd_fourth import ODD_FOURTH
from .odd_seventh import ODD_SEVENTH
from .odd_sixth import ODD_SIXTH
from .odd_third import ODD_THIRD
from .pairs import PAIRS
from .second import SECOND
from .seventh import SEVENTH
from .several import SEVERAL
from .sixth import SIXTH, THOUGHT_OF
from .stores import SOUND_STORES, STORES
from .third import KNOWN, THIRD

RIGHT: dict[str, Fault] = {
    **ODD,
    **ODD_THIRD,
    **ODD_FOURTH,
    **ODD_FIFTH,
    **ODD_SIXTH,
    **ODD_SEVENTH,
    **SOUND_STORES,
}  # odd, and allowed by the documents
BROKEN: dict[str, Fault] = {
    **FAULTS,
    **SECOND,
    **THIRD,
    **KNOWN,
    **FOURTH,
    **FIFTH,
    **SIXTH,
    **THOUGHT_OF,
    **PAIRS,
    **STORES,
    **DOSES,
    **SEVERAL,
    **SEVENTH,
}
ALL: dict[str, Fault] = {**BROKEN, **RIGHT, **HOSTILE}
_NAME = re.compile(r"(?P<name>[^@!~+]+)(?:@(?P<rate>\d+))?(?:!(?P<mode>[sw]))?(?:~(?P<noise>\d+))?(?:\+(?P<draw>\d+))?")
_asked: Counter[bytes] = Counter()


def _parsed(text: str) -> dict[str, str]:
    found = _NAME.fullmatch(text)
    if not found:
        raise KeyError(text)
    return {key: value or "" for key, value in found.groupdict().items()}


def named(text: str) -> Fault:
    """The fault itself, for endpoints where no rate is drawn."""
    return ALL[_parsed(text)["name"]]


def drawn(text: str, body: dict[str, Any]) -> Fault:
    """The fault for one request, or a server that is well this time; with the model's noise."""
    parts = _parsed(text)
    fault = ALL[parts["name"]]
    other = parts["mode"] and (parts["mode"] == "s") != bool(body.get("stream"))
    well = parts["rate"] and _chance(text, body) >= 1 / int(parts["rate"])
    if other or well:
        fault = FAULTS["correct"]
    return _noisy(fault, int(parts["noise"]), body) if parts["noise"] else fault


def _chance(text: str, body: dict[str, Any]) -> float:
    """A number below 1, another one each time that the same is asked."""
    key = hashlib.sha256(f"{text} {json.dumps(body, sort_keys=True)}".encode()).digest()
    _asked[key] += 1
    drawn = hashlib.sha256(key + _asked[key].to_bytes(8)).digest()
    return int.from_bytes(drawn[:6]) / 2**48


def _noisy(fault: Fault, every: int, body: dict[str, Any]) -> Fault:
    key = json.dumps(body.get("messages")).encode()
    if int.from_bytes(hashlib.sha256(key).digest()[:4]) % every:
        return fault

    def confused(reply: ModelReply, request: dict[str, Any]) -> ModelReply:
        bent = fault.reply(reply, request) if fault.reply else reply
        calls = tuple(dataclasses.replace(call, arguments="{}") for call in bent.calls)
        return dataclasses.replace(bent, content="I lost count." if bent.content else "", calls=calls)

    return dataclasses.replace(fault, reply=confused)
