"""Faults by rate: NAME, or NAME@N for one request in N, NAME@N!s for streams only (!w: whole only), ~K for model noise.

With ~K the model answers every Kth prompt wrongly, the same prompt always in the same way.
"""

import dataclasses
import hashlib
import json
import random
import re
from typing import Any

from moebox.phantom.task import Reply

from .faults import FAULTS, Fault
from .hostile import HOSTILE
from .odd import ODD
from .odd_third import ODD_THIRD
from .second import SECOND
from .third import KNOWN, THIRD

ALL: dict[str, Fault] = {**FAULTS, **SECOND, **THIRD, **KNOWN, **ODD, **ODD_THIRD, **HOSTILE}
_NAME = re.compile(r"(?P<name>[^@!~]+)(?:@(?P<rate>\d+))?(?:!(?P<mode>[sw]))?(?:~(?P<noise>\d+))?")


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
    well = parts["rate"] and random.random() >= 1 / int(parts["rate"])
    if other or well:
        fault = FAULTS["correct"]
    return _noisy(fault, int(parts["noise"]), body) if parts["noise"] else fault


def _noisy(fault: Fault, every: int, body: dict[str, Any]) -> Fault:
    key = json.dumps(body.get("messages")).encode()
    if int.from_bytes(hashlib.sha256(key).digest()[:4]) % every:
        return fault

    def confused(reply: Reply, request: dict[str, Any]) -> Reply:
        bent = fault.reply(reply, request) if fault.reply else reply
        calls = tuple(dataclasses.replace(call, arguments="{}") for call in bent.calls)
        return dataclasses.replace(bent, content="I lost count." if bent.content else "", calls=calls)

    return dataclasses.replace(fault, reply=confused)
