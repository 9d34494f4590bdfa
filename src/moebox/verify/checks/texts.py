"""Texts that must come back unchanged: characters outside ASCII, blanks and marks, in answers, arguments and JSON."""

import html
import itertools
import json
import re
import unicodedata
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from moebox.core import catalogue
from moebox.loose import get_path
from moebox.phantom import vocabulary
from moebox.verify.checks.turns import chat_or_skip, user_turn
from moebox.verify.session import ProbeSkipped, ProbeWarning, Settings
from moebox.verify.trials import CheckSession
from moebox.verify.violations import parse_json_or

_TEXTS = catalogue.load_table("check_requests")["texts"]
TEXTS, EXACT = (tuple[str, ...](json.loads(_TEXTS[key])) for key in ("repeated", "exact"))
# Added to texts without such: characters of three and four bytes, which a tokenizer splits, and marks of a page.
WIDE = "東🦜 <b> & c"
MORE_TEXTS = 1
JSON_MARKS = re.compile(r'[\n\\"]|🦜🚀')  # that a writer of JSON has to escape, or may
WIDE_LETTER = re.compile("[\u0800-\U0010ffff]")
LAYOUT = tuple(text for text in TEXTS if "\n" in text or "  " in text)  # a blank or a line end matters
_MODES = {False: "whole", True: "streamed"}


# Changes that servers make and models do not: by code, by code pages, and by patterns.
_CHANGES: dict[str, Callable[[str], str]] = {
    **{f"normalised ({form})": partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "everything beyond the basic plane lost": lambda text: "".join(c for c in text if ord(c) < 0x10000),
    "JSON escapes left in the text": lambda text: "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text),
    "HTML entities left in the text": html.escape,
    "percent escapes left in the text": quote,
    "accents lost": lambda text: "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c)),
    "reversed": lambda text: text[::-1],
    "lower case": str.lower,
    "upper case": str.upper,
    "escapes read once more": lambda text: text.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\u00e9", "é"),
    "line ends and tabs read once more": lambda text: text.replace(r"\n", "\n").replace(r"\t", "\t"),
    **{row["name"]: partial(re.sub, row["pattern"], row["by"]) for row in _TEXTS["rewrite"]},
    "white space made one blank": lambda text: " ".join(text.split()),
    "marks escaped for pages": partial(html.escape, quote=False),
    "straightened marks": lambda text: text.translate(str.maketrans("“”–…", '""-.')),
    **{
        row["name"]: lambda text, row=row: text.encode(row["write"], row["errors"]).decode(row["read"], "replace")  # type: ignore[misc]
        for row in _TEXTS["code_page"]
    },
}


def garbling(want: str, got: str) -> str:
    """Describe the change that a server made to `want`, or return ""."""
    received = got.strip()
    if received == want.strip():
        return ""
    for name, change in _CHANGES.items():
        changed = change(want)
        if changed != want and changed.strip() == received:
            return f"{want!r} came back as {received!r}: {name}"
    # Halves of characters in a text that is right otherwise; a model may stop in one after other words
    at = 0
    for part in received.split("\ufffd"):
        found = want.find(part, at)
        if found < 0:
            return ""
        at = found + len(part)
    return f"{want!r} came back as {received!r}: half characters" if "\ufffd" in received else ""


def _draw_texts(session: CheckSession) -> list[str]:
    """All texts, some of them with few trials, or all several times with many."""
    wanted = session.options.trial_share(1.5)
    return session.rng.sample(TEXTS, min(len(TEXTS), wanted)) * max(1, wanted // len(TEXTS))


async def probe_characters(session: CheckSession) -> str:
    """Text outside ASCII comes back unchanged."""
    copied, unread = 0, ""
    texts = _draw_texts(session)
    for number, text in session.track(texts):
        first = number % 2 == 1
        received = {first: await _repeat(session, text, first)}
        if text in LAYOUT or text not in received[first]:  # streams lose blanks and line ends in other places
            received[not first] = await _repeat(session, text, not first)
        garbled = False
        for stream, got in received.items():
            reason = garbling(text, got)
            if not reason and text not in got and text in received.get(not stream, ""):
                reason = f"{text!r} came back as {got[:60]!r} {_MODES[stream]}, and unchanged {_MODES[not stream]}"
            session.failures.add("unicode", reason, stream=stream)
            garbled = garbled or bool(reason)
        same = any(text in got for got in received.values())
        copied += same
        if not (same or garbled or unread):
            unread = f"{text!r} became {next(iter(received.values()))[:60]!r}"
    if not copied and unread:
        raise ProbeSkipped(f"model, not server: it cannot copy such text ({unread})")
    return f"{copied} of {len(texts)} texts copied" + (f"; {unread}" if unread else "")


async def _repeat(session: CheckSession, text: str, stream: bool) -> str:
    """Ask the model to repeat a text and return the answer."""
    request = session.chat_request([user_turn(f"Repeat after me: {text}")], max_tokens=128, stream=stream)
    return session.read_answer(await session.post_dictated(request, text), allow_marks=True).content


def _force_city(text: str, where: str) -> tuple[str, Settings]:
    """A question and the settings that allow one city only: in JSON, or in the arguments of a tool."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [text]}}, "required": ["city"]}
    if where == "JSON":
        wanted = {"name": "record", "strict": True, "schema": schema | {"additionalProperties": False}}
        settings: Settings = {"response_format": {"type": "json_schema", "json_schema": wanted}}
        return "Reply with a JSON object with the key city. There is one city only.", settings
    function = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": schema}
    settings = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return "What is the weather in the only city that there is?", settings


async def probe_forced_characters(session: CheckSession, *, where: str) -> str | ProbeWarning:
    """Texts that are the only value of their schema come back unchanged; judged if schemas are enforced at all."""
    requests = _choose_requests(session, where)
    kept, changed = 0, ""
    for number, (text, stream) in session.track(requests):
        ask, settings = _force_city(text, where)
        answer = await chat_or_skip(session, [user_turn(ask)], stream=stream, **settings)
        written = answer.content if where == "JSON" else "".join(call.arguments for call in answer.calls[:1])
        if answer.finish_reason == "length":
            written = ""  # an answer that was cut shows nothing
        value = get_path(parse_json_or(written), "city")
        garbled = garbling(text, value) if isinstance(value, str) else ""
        session.failures.add("unicode", garbled, stream=stream)
        kept += value == text
        if written and value != text and not garbled and not changed:
            shown = value if isinstance(value, str) else written[:120]
            changed = f"{text!r} came as {shown!r}, although the schema allows nothing else"
        if number == 1 and not kept:
            raise ProbeSkipped(f"the server does not enforce a schema with one allowed value in {where}: not judged")
    return ProbeWarning(changed) if changed and kept >= len(requests) / 2 else f"{kept} of {len(requests)} texts kept"


def _choose_requests(session: CheckSession, where: str) -> list[tuple[str, bool]]:
    """Texts, and whether each is streamed."""
    plain = vocabulary.invent_word(session.rng)  # a word that no server garbles shows whether schemas are enforced
    drawn = [] if session.options.brief else _draw_texts(session)
    if session.options.effort != "thorough":  # what a writer of JSON has to escape, and some others
        others = itertools.islice(itertools.filterfalse(JSON_MARKS.search, drawn), MORE_TEXTS * (where == "arguments"))
        drawn = [*filter(JSON_MARKS.search, drawn), *others]
    texts = [plain, *(text if WIDE_LETTER.search(text) else f"{text} {WIDE}" for text in drawn), *EXACT]
    exact = EXACT[:1] if where == "arguments" and not session.options.brief else ()
    both = (plain, *exact) if session.options.effort != "thorough" else texts
    requests: list[tuple[str, bool]] = []
    for number, text in enumerate(texts):  # what is streamed in arguments comes whole in JSON
        modes = (True, False) if text in both else ((number % 2 == 0) == (where == "JSON"),)
        requests += itertools.product((text,), modes)
    return requests
