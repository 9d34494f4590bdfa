"""Redaction of text that leaves the machine: keys, host names, user names, addresses, serial numbers."""

import functools
import getpass
import re
import socket
from pathlib import Path

from moebox.redact import hide_secrets

HOST, USER, ADDRESS, SERIAL = "‹host›", "‹user›", "‹address›", "‹serial›"

COMMON = {"root", "user", "admin", "ubuntu", "debian", "localhost", "main", "node", "runner", "host", "gpu", "docker"}

# Home folders; those of other machines may come with a log or a recipe.
_HOMES = re.compile(r"(?<![\w.~-])(?:/home/|/Users/|/var/home/)[A-Za-z0-9._-]+|(?<![\w.~/-])/root(?![\w.-])")
_ADDRESS = re.compile(
    r"(?<![\d.])(?!127\.|0\.0\.0\.0|255\.)(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.])"
)
_HARDWARE = re.compile(r"\b(?:GPU-[0-9a-f]{8}-[0-9a-f-]{27}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2})\b", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Replace everything that must not be published."""
    text = hide_secrets(text)
    text = _HARDWARE.sub(SERIAL, text)
    text = _ADDRESS.sub(ADDRESS, text)
    text = _HOMES.sub("~", text)
    for word, stand_in in _machine_names():
        text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w])", stand_in, text)
    return text


@functools.cache
def _machine_names() -> tuple[tuple[str, str], ...]:
    """Names that identify this machine or user; short or common ones are left, they would damage other text."""
    host = socket.gethostname()
    found = [(host, HOST), (host.partition(".")[0], HOST)]
    try:
        user = getpass.getuser()
        home = str(Path.home())
    except (KeyError, OSError, RuntimeError):
        user, home = "", ""
    if home.count("/") >= 2:
        found.insert(0, (home, "~"))
    found.append((user, USER))
    return tuple((word, stand_in) for word, stand_in in dict(found).items() if len(word) > 2 and word not in COMMON)
