"""Recognise secrets (keys, tokens and passwords) in any text. Recipes that hold one are rejected, reports hide it.

A key that moebox was given has no recognisable pattern: it is remembered when an Endpoint is made, and hidden by value.
A key of 8 characters with more than letters in it, or of 16, occurs in no ordinary text, so it is hidden in everything
that is printed or kept. A shorter one ("local", "1234") may be a word or a number: it is hidden in error messages of
servers only, where it stands by itself. A key under 4 characters is never hidden: it protects nothing, and hiding it
would damage every text.

This module knows nothing about files or reports; every other module may import it.
"""

import functools
import re
from collections.abc import Iterable

HIDDEN = "‹hidden›"
MIN_KEY_CHARS, MIN_MIXED_CHARS, MIN_LONG_CHARS = 4, 8, 16
_NOT_SECRET = ("none", "null", "true", "false", "auto", HIDDEN)
_NEVER = r"\0(?!)"  # matches nothing; texts are searched for its first character at the speed of memory
_known_keys: set[str] = set()  # of this process
_anywhere = _by_itself = re.compile(_NEVER)  # matches keys that are hidden in all texts, and in error messages only

# Patterns of secrets that issuers gave a recognisable prefix, compiled when first needed, which is rare. With each
# pattern stand texts of which one must occur for it to match: most texts are long and contain none of them.
TOKEN_PATTERNS = {
    r"\b(?:sk|pk|rk|ghp|gho|ghu|ghs|ghr|xox[abeoprs]|glpat|nvapi|npm|dckr_pat)[-_][A-Za-z0-9_-]{8,}": (
        *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp", "gho", "ghu", "ghs", "ghr", "xox", "glpat", "nvapi"),
        *("npm", "dckr_pat"),
    ),
    r"\bhf_[A-Za-z0-9]{8,}": ("hf_",),  # the Hub's; --hf-overrides is a flag
    r"\bgithub_pat_[A-Za-z0-9_]{20,}": ("github_pat_",),
    r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{16}\b": (  # AWS access key ids
        *("AKIA", "ASIA", "AGPA", "AIDA", "AROA", "ANPA"),
    ),
    r"\bAIza[A-Za-z0-9_-]{35}": ("AIza",),  # GCP API keys
    r"\bya29\.[A-Za-z0-9._-]{10,}": ("ya29.",),  # GCP OAuth access tokens
    r"\bGOCSPX-[A-Za-z0-9_-]{10,}": ("GOCSPX-",),  # GCP client secrets
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*": ("eyJ",),  # JSON web tokens
    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)": ("PRIVATE KEY-----",),
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)": ("://",),  # user:password in a URL
}
# Texts that are secrets by the name beside them.
_NAMES = (
    r"(?:api|access|secret|private|account)[-_]?key|apikey|pass(?:word|wd|phrase)|pwd|(?:client[-_])?secret"
    r"|(?:(?:access|hf|auth|refresh|id|session|security|bearer)[-_]?)?token|credentials?|signature"
)
# One of these must occur in the lower-case text; none has an i, which Unicode folds in two ways.
_HINTS = ("key", "token", "secret", "pass", "pwd", "cred", "nature", "author", "bearer", "aws")
_QUOTED = ('key"', "key'", 'token"', "token'", "secret", "pass", "pwd", "cred", "nature", "author")
NAMED_SECRET_PATTERNS = {
    r"(?i)\bbearer[\s:=]+[\"']?(?P<value>[A-Za-z0-9._~+/=-]{6,})": ("bearer",),
    r"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|bearer)?\s*(?P<value>[A-Za-z0-9._~+/=-]{6,})": (
        "author",
    ),
    # AWS's names have more words: aws_secret_access_key, aws_session_token
    r"(?i)aws_?(?:secret|session|security)[a-z_]*[\"']?\s*[=:]\s*[\"']?(?P<value>[A-Za-z0-9/+=]{16,})": ("aws",),
    rf"(?i)--(?:[a-z]+-)*(?:{_NAMES})(?:=|\s+)[\"']?(?P<value>[^\s\"',;]{{4,}})": ("--",),
    r"\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)\s*[=:]\s*[\"']?(?P<value>[^\s\"',;]{4,})": _HINTS,
    rf"""(?i)["'][a-z_-]*(?:{_NAMES}|authorization)["']\s*:\s*["'](?P<value>[^"']{{4,}})["']""": _QUOTED,
    rf"""(?i)(?<![\w-])(?:[a-z]+[-_])*(?:{_NAMES})\s*=\s*["']?(?P<value>[^\s"',;&]{{4,}})""": ("=",),
}
# What identifies a machine or its user, in text that leaves the machine.
HOST, USER, ADDRESS, SERIAL = "‹host›", "‹user›", "‹address›", "‹serial›"
COMMON = {"root", "user", "admin", "ubuntu", "debian", "localhost", "main", "node", "runner", "host", "gpu", "docker"}
# Home folders; those of other machines may come with a log or a recipe.
_HOMES = r"(?<![\w.~-])(?:/home/|/Users/|/var/home/)[A-Za-z0-9._-]+|(?<![\w.~/-])/root(?![\w.-])"
_ADDRESS = (
    r"(?<![\d.])(?!127\.|0\.0\.0\.0|255\.)(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.])"
)
_HARDWARE = r"(?i)\b(?:GPU-[0-9a-f]{8}-[0-9a-f-]{27}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2})\b"


def remember_key(key: str | None) -> None:
    """Hide `key` from now on in what servers send and in what is printed or kept."""
    global _anywhere, _by_itself  # for all threads of the process
    key = (key or "").strip()
    if len(key) < MIN_KEY_CHARS or key.lower() in _NOT_SECRET or key in _known_keys:
        return
    _known_keys.add(key)
    long = {key for key in _known_keys if len(key) >= MIN_LONG_CHARS}
    strong = long | {key for key in _known_keys if len(key) >= MIN_MIXED_CHARS and not key.isalpha()}
    _anywhere = re.compile("|".join(map(re.escape, key_spellings(strong))) or _NEVER)
    weak = "|".join(map(re.escape, _known_keys - strong)) or _NEVER
    _by_itself = re.compile(rf"(?<![\w-])(?:{weak})(?![\w-])")


def key_spellings(keys: Iterable[str]) -> list[str]:
    """Return the keys as other programs write them (JSON, HTML, URL, hexadecimal, base64), the longest first.

    Keys that are too short to be hidden are left out.
    """
    import base64  # every command imports this module, and few have a key
    import html
    import json
    from urllib.parse import quote, quote_plus

    spellings: set[str] = set()
    for key in keys:
        if len(key) < MIN_KEY_CHARS:
            continue
        raw = key.encode()
        spellings |= {key, json.dumps(key)[1:-1], html.escape(key), raw.hex()}
        spellings |= {quote(key), quote(key, safe=""), quote_plus(key)}
        for before in range(3):  # in base64 the key may begin at any of three positions within a letter
            text = base64.b64encode(bytes(before) + raw).decode()
            whole = text[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
            spellings |= {whole, whole.replace("+", "-").replace("/", "_")}
    return sorted(spellings, key=len, reverse=True)


def hide_known_keys(text: str) -> str:
    """Hide the keys that moebox was given."""
    return _anywhere.sub(HIDDEN, text)


def hide_in_error(text: str) -> str:
    """Hide the given keys in an error message of a server, short ones too."""
    return _by_itself.sub(HIDDEN, hide_known_keys(text))


def decode_reply(data: bytes | bytearray, status: int = 200) -> str:
    """Decode a server's whole reply without the given keys. To be done before anything is cut: half a key is a leak."""
    text = data.decode("utf-8", "replace")
    return hide_known_keys(text) if status == 200 else hide_in_error(text)


def hide_secrets(text: str) -> str:
    """Hide everything that looks like a key, token or password."""
    text = hide_in_error(text)
    for pattern, marks in TOKEN_PATTERNS.items():
        if any(mark in text for mark in marks):
            text = re.sub(pattern, HIDDEN, text)
    folded = text.casefold()
    if any(hint in folded for hint in _HINTS):
        for pattern, marks in NAMED_SECRET_PATTERNS.items():
            if any(mark in folded for mark in marks):
                text = re.sub(pattern, _hide_value, text)
    return text


def contains_token(text: str) -> bool:
    """True if `text` contains a token that can be recognised by itself."""
    return any(re.search(pattern, text) for pattern in TOKEN_PATTERNS)


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    if value.isdigit() or value.lower() in _NOT_SECRET:  # such as MAX_TOKEN=4096
        return match[0]
    if value.startswith(("$", HIDDEN)):  # the name of a variable
        return match[0]
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return match[0][:start] + HIDDEN + match[0][end:]


def redact_text(text: str) -> str:
    """Replace everything that must not be published: secrets, hosts, users, addresses, serial numbers."""
    text = hide_secrets(text)
    for pattern, stand_in in ((_HARDWARE, SERIAL), (_ADDRESS, ADDRESS), (_HOMES, "~")):
        text = re.sub(pattern, stand_in, text)
    for word, stand_in in _machine_names():
        text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w])", stand_in, text)
    return text


@functools.cache
def _machine_names() -> tuple[tuple[str, str], ...]:
    """Names that identify this machine or user; short or common ones are left, they would damage other text."""
    import getpass  # every command imports this module, and few publish anything
    import socket
    from pathlib import Path

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
