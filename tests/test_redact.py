"""Secrets are hidden wherever they stand, and texts that cannot contain one are skipped quickly."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import redact

NAMES = [
    "api_key",
    "Key",
    "to\u212aen",
    "pa\u017fsword",
    "\u0130d_token",
    "s\u0131gnature",
    "Credential",
    "PWD",
    "aws_session",
]
NAMES += ["Authorization", "bearer", "TOKEN", "--", "=", ":", " ", '"', "'", "abcdef99", "_", "-", "\n"]
TOKENS = [
    "sk",
    "ghp",
    "github_pat_",
    "xoxb",
    "npm",
    "dckr_pat",
    "hf_",
    "AKIA",
    "AIza",
    "ya29.",
    "GOCSPX",
    "eyJ",
    "://",
    "@",
]
TOKENS += ["ABCDEFGH12345678", "-----BEGIN PRIVATE KEY-----", "-----BEGIN", ".", "/"]


@given(st.lists(st.sampled_from(NAMES + TOKENS) | st.text(max_size=4), max_size=12).map("".join))
def test_a_skipped_text_contains_no_secret(text: str):
    """What decides whether the slower patterns are tried never hides a match from them."""
    everything = text
    for pattern in redact.TOKEN_PATTERNS:
        everything = re.sub(pattern, redact.HIDDEN, everything)
    for pattern in redact.NAMED_SECRET_PATTERNS:
        everything = re.sub(pattern, redact._hide_value, everything)

    assert redact.hide_secrets(text) == everything


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456",
        "--api-key abcdef123456",
        "OPENAI_API_KEY=abcdef123456",
        '{"hf_token": "abcdef123456"}',
        "aws_secret_access_key=abcdef1234567890abcd",
        "to\u212aen=abcdef123456",
    ],
)
def test_a_named_secret_is_hidden(text: str):
    hidden = redact.hide_secrets(text)

    assert "abcdef" not in hidden
    assert redact.HIDDEN in hidden
