"""What a secret looks like: keys, tokens and passwords in any text. Recipes that hold one are refused, reports lose it.

A key that moebox was given has no form of its own: it is remembered where an Endpoint is made, and taken out by value.
How far that goes depends on the key. One of 8 characters with more than letters in it, or of 16, stands in no honest
text, so it goes from everything that is printed or kept. A shorter one ("local", "1234") is also a word or a number: it
goes from what a server says of an error, where it stands by itself. Under 4 characters it stays: it guards nothing, and
every text would be full of holes.

Nothing here knows files or reports; every other module may import it.
"""

import re
from collections.abc import Iterable, Iterator

HIDDEN = "‹hidden›"
MIN_KEY_CHARS, MIN_MIXED_CHARS, MIN_LONG_CHARS = 4, 8, 16  # characters of a key
_NOT_SECRET = ("none", "null", "true", "false", "auto", HIDDEN)
_NEVER = r"(?!)"  # matches nowhere
_given: set[str] = set()  # keys of this process
_anywhere = _by_itself = re.compile(_NEVER)  # what is hidden of them in all texts, and in those of errors

# Compiled when they are first needed, which most commands never do.
# Texts that are a secret wherever they stand, by the form their issuers gave them; with each pattern what a text must
# hold for it to match, since most texts are long and hold none of it.
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
# Texts whose surroundings say that they are one.
_NAMES = (
    r"(?:api|access|secret|private|account)[-_]?key|apikey|pass(?:word|wd|phrase)|pwd|(?:client[-_])?secret"
    r"|(?:(?:access|hf|auth|refresh|id|session|security|bearer)[-_]?)?token|credentials?|signature"
)
# What a text must hold, in lower case; the letter that Unicode folds in two ways (i) is in none of it.
_HINTS = ("key", "token", "secret", "pass", "pwd", "cred", "nature", "author", "bearer", "aws")
_QUOTED = ('key"', "key'", 'token"', "token'", "secret", "pass", "pwd", "cred", "nature", "author")
NAMED_SECRET_PATTERNS = {
    r"(?i)\bbearer[\s:=]+[\"']?(?P<value>[A-Za-z0-9._~+/=-]{6,})": ("bearer",),
    r"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|bearer)?\s*(?P<value>[A-Za-z0-9._~+/=-]{6,})": (
        "author",
    ),
    # AWS's own names hold more words: aws_secret_access_key, aws_session_token
    r"(?i)aws_?(?:secret|session|security)[a-z_]*[\"']?\s*[=:]\s*[\"']?(?P<value>[A-Za-z0-9/+=]{16,})": ("aws",),
    rf"(?i)--(?:[a-z]+-)*(?:{_NAMES})(?:=|\s+)[\"']?(?P<value>[^\s\"',;]{{4,}})": ("--",),
    r"\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)\s*[=:]\s*[\"']?(?P<value>[^\s\"',;]{4,})": _HINTS,
    rf"""(?i)["'][a-z_-]*(?:{_NAMES}|authorization)["']\s*:\s*["'](?P<value>[^"']{{4,}})["']""": _QUOTED,
    rf"""(?i)(?<![\w-])(?:[a-z]+[-_])*(?:{_NAMES})\s*=\s*["']?(?P<value>[^\s"',;&]{{4,}})""": ("=",),
}


def remember_key(key: str | None) -> None:
    """From now on `key` is taken out of what servers say and of what is printed or kept."""
    global _anywhere, _by_itself  # of the whole process, whoever prints
    key = (key or "").strip()
    if len(key) < MIN_KEY_CHARS or key.lower() in _NOT_SECRET or key in _given:
        return
    _given.add(key)
    strong = set(filter(_is_strong, _given))
    _anywhere = re.compile(_any_of(key_spellings(strong)))
    _by_itself = re.compile(rf"(?<![\w-])(?:{_any_of(_given - strong)})(?![\w-])")


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, texts)) or _NEVER


def key_spellings(keys: Iterable[str]) -> list[str]:
    """`keys` as others write them, the longest first; nothing for those that are too short to be hidden."""
    forms = {form for key in keys if len(key) >= MIN_KEY_CHARS for form in _spellings(key)}
    return sorted(forms, key=len, reverse=True)


def _spellings(key: str) -> set[str]:
    """In JSON, HTML or a URL, in hexadecimal, in base64 wherever it begins there."""
    import html  # every command imports this module, and few have a key
    import json
    from urllib.parse import quote, quote_plus

    raw = key.encode()
    forms = {key, json.dumps(key)[1:-1], html.escape(key), raw.hex(), quote(key), quote(key, safe=""), quote_plus(key)}
    return forms | set(_base64(raw))


def _base64(raw: bytes) -> Iterator[str]:
    """What of `raw` stands in base64 whatever comes before and after it: a byte of it may begin in mid-letter."""
    import base64

    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        whole = text[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


def _is_strong(key: str) -> bool:
    return len(key) >= MIN_LONG_CHARS or (len(key) >= MIN_MIXED_CHARS and not key.isalpha())


def hide_known_keys(text: str) -> str:
    """`text` without the keys that moebox was given."""
    return _anywhere.sub(HIDDEN, text)


def hide_in_error(text: str) -> str:
    """`hide_given` for what a server says of an error, where a key that is also a word goes too."""
    return _by_itself.sub(HIDDEN, hide_known_keys(text))


def decode_reply(data: bytes | bytearray, status: int = 200) -> str:
    """What a server said, whole, before anything is cut from it: half a key is a key's half."""
    text = data.decode("utf-8", "replace")
    return hide_known_keys(text) if status == 200 else hide_in_error(text)


def hide_secrets(text: str) -> str:
    """`text` without keys, tokens and passwords."""
    text = hide_in_error(text)
    for pattern, marks in TOKEN_PATTERNS.items():
        if any(mark in text for mark in marks):
            text = re.sub(pattern, HIDDEN, text)
    folded = text.casefold()
    if any(hint in folded for hint in _HINTS):
        for pattern, marks in NAMED_SECRET_PATTERNS.items():
            if any(mark in folded for mark in marks):
                text = re.sub(pattern, _hide, text)
    return text


def contains_token(text: str) -> bool:
    """Whether `text` holds something that only a secret looks like."""
    return any(re.search(pattern, text) for pattern in TOKEN_PATTERNS)


def _hide(match: re.Match[str]) -> str:
    value = match["value"]
    if value.isdigit() or value.lower() in _NOT_SECRET:  # MAX_TOKEN=4096 is no secret
        return match[0]
    if value.startswith(("$", HIDDEN)):  # the name of a variable
        return match[0]
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return match[0][:start] + HIDDEN + match[0][end:]
