"""What a secret looks like: keys, tokens and passwords in any text. Recipes that hold one are refused, reports lose it.

Nothing here knows files or reports; every other module may import it.
"""

import re

HIDDEN = "‹hidden›"
_NOT_SECRET = ("none", "null", "true", "false", "auto", HIDDEN)

# Texts that are a secret wherever they stand, by the form their issuers gave them; with each pattern what a text must
# hold for it to match, since most texts are long and hold none of it.
TOKENS = {
    re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghu|ghs|ghr|xox[abeoprs]|glpat|nvapi|npm|dckr_pat)[-_][A-Za-z0-9_-]{8,}"): (
        *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp", "gho", "ghu", "ghs", "ghr", "xox", "glpat", "nvapi"),
        *("npm", "dckr_pat"),
    ),
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"): ("hf_",),  # the Hub's; --hf-overrides is a flag
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"): ("github_pat_",),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{16}\b"): (  # AWS access key ids
        *("AKIA", "ASIA", "AGPA", "AIDA", "AROA", "ANPA"),
    ),
    re.compile(r"\bAIza[A-Za-z0-9_-]{35}"): ("AIza",),  # GCP API keys
    re.compile(r"\bya29\.[A-Za-z0-9._-]{10,}"): ("ya29.",),  # GCP OAuth access tokens
    re.compile(r"\bGOCSPX-[A-Za-z0-9_-]{10,}"): ("GOCSPX-",),  # GCP client secrets
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"): ("eyJ",),  # JSON web tokens
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL): (
        "PRIVATE KEY-----",
    ),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"): ("://",),  # user:password in a URL
}
# Texts whose surroundings say that they are one.
_NAMES = (
    r"(?:api|access|secret|private|account)[-_]?key|apikey|pass(?:word|wd|phrase)|pwd|(?:client[-_])?secret"
    r"|(?:(?:access|hf|auth|refresh|id|session|security|bearer)[-_]?)?token|credentials?|signature"
)
# What a text must hold, in lower case; the letter that Unicode folds in two ways (i) is in none of it.
_HINTS = ("key", "token", "secret", "pass", "pwd", "cred", "nature", "author", "bearer", "aws")
_QUOTED = ('key"', "key'", 'token"', "token'", "secret", "pass", "pwd", "cred", "nature", "author")
NAMED = {
    re.compile(r"(?i)\bbearer[\s:=]+[\"']?(?P<value>[A-Za-z0-9._~+/=-]{6,})"): ("bearer",),
    re.compile(
        r"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|bearer)?\s*(?P<value>[A-Za-z0-9._~+/=-]{6,})"
    ): ("author",),
    # AWS's own names hold more words: aws_secret_access_key, aws_session_token
    re.compile(r"(?i)aws_?(?:secret|session|security)[a-z_]*[\"']?\s*[=:]\s*[\"']?(?P<value>[A-Za-z0-9/+=]{16,})"): (
        "aws",
    ),
    re.compile(rf"(?i)--(?:[a-z]+-)*(?:{_NAMES})(?:=|\s+)[\"']?(?P<value>[^\s\"',;]{{4,}})"): ("--",),
    re.compile(
        r"\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)\s*[=:]\s*[\"']?(?P<value>[^\s\"',;]{4,})"
    ): _HINTS,
    re.compile(rf"""(?i)["'][a-z_-]*(?:{_NAMES}|authorization)["']\s*:\s*["'](?P<value>[^"']{{4,}})["']"""): _QUOTED,
    re.compile(rf"""(?i)(?<![\w-])(?:[a-z]+[-_])*(?:{_NAMES})\s*=\s*["']?(?P<value>[^\s"',;&]{{4,}})"""): ("=",),
}


def hide_keys(text: str) -> str:
    """`text` without keys, tokens and passwords."""
    for pattern, marks in TOKENS.items():
        if any(mark in text for mark in marks):
            text = pattern.sub(HIDDEN, text)
    folded = text.casefold()
    if any(hint in folded for hint in _HINTS):
        for pattern, marks in NAMED.items():
            if any(mark in folded for mark in marks):
                text = pattern.sub(_hide, text)
    return text


def holds_token(text: str) -> bool:
    """Whether `text` holds something that only a secret looks like."""
    return any(pattern.search(text) for pattern in TOKENS)


def _hide(match: re.Match[str]) -> str:
    value = match["value"]
    if value.isdigit() or value.lower() in _NOT_SECRET:  # MAX_TOKEN=4096 is no secret
        return match[0]
    if value.startswith(("$", HIDDEN)):  # the name of a variable
        return match[0]
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return match[0][:start] + HIDDEN + match[0][end:]
