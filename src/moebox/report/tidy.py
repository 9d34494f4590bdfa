"""Text that may leave the machine: keys, host names, user names, addresses and serial numbers taken out."""

import functools
import getpass
import re
import socket
from pathlib import Path

HIDDEN = "‹hidden›"
HOST, USER, ADDRESS, SERIAL = "‹host›", "‹user›", "‹address›", "‹serial›"

_SECRETS = (
    re.compile(r"\b(?:sk|pk|hf|ghp|gho|xox[abp]|glpat|nvapi)[-_][A-Za-z0-9_-]{8,}"),  # OpenAI, Hugging Face, GitHub, …
    re.compile(r"(?<=earer )[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"),  # JSON web tokens
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password in a URL
    re.compile(r"--(?:api-key|hf-token|token|password|auth-token)(?:=|\s+)[\"']?(?P<value>[^\s\"',;]{4,})"),
    re.compile(r"\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)\s*[=:]\s*[\"']?(?P<value>[^\s\"',;]{4,})"),
    re.compile(
        r"""(?i)["'](?:api_?key|x-api-key|authorization|password|secret|(?:access_|hf_|auth_)?token)["']\s*:\s*"""
        r"""["'](?P<value>[^"']{4,})["']"""
    ),
)
_ADDRESS = re.compile(
    r"(?<![\d.])(?!127\.|0\.0\.0\.0|255\.)(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.])"
)
_HARDWARE = re.compile(r"\b(?:GPU-[0-9a-f]{8}-[0-9a-f-]{27}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2})\b", re.IGNORECASE)


def hide_keys(text: str) -> str:
    """`text` without keys, tokens and passwords."""
    for pattern in _SECRETS:
        text = pattern.sub(_hide, text)
    return text


def redact(text: str) -> str:
    """`text` without what must not be handed on."""
    text = hide_keys(text)
    text = _HARDWARE.sub(SERIAL, text)
    text = _ADDRESS.sub(ADDRESS, text)
    for word, stand_in in _names():
        text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w])", stand_in, text)
    return text


def _hide(found: re.Match[str]) -> str:
    value = found.groupdict().get("value")
    if value is None:
        return HIDDEN
    if value.isdigit() or value in ("none", "null", "true", "false", HIDDEN):  # MAX_TOKEN=4096 is no secret
        return found[0]
    return found[0].replace(value, HIDDEN)


@functools.cache
def _names() -> tuple[tuple[str, str], ...]:
    """Words that say whose machine this is; short or common ones would hurt more text than they protect."""
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
    common = {
        "",
        "root",
        "user",
        "admin",
        "ubuntu",
        "debian",
        "localhost",
        "main",
        "node",
        "runner",
        "host",
        "gpu",
        "docker",
    }
    return tuple((word, stand_in) for word, stand_in in dict(found).items() if len(word) > 2 and word not in common)
