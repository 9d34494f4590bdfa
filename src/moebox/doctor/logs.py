"""Find out from an engine's log why it failed, while the log is written or afterwards.

An engine that dies prints hundreds of lines; the first failure is the cause, and the last traceback only follows from
it. Memory stays bounded for logs of any length: one finding per symptom, one line at a time.
"""

import contextlib
import difflib
import functools
import re
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from moebox.core.catalogue import load_table
from moebox.core.recipe import Recipe
from moebox.core.symptom import Finding, Symptom, choose_remedy, symptoms, xid_of_line
from moebox.errors import BadInput
from moebox.escape import printable_line

MAX_PAIRS = 20  # of name=value in a line: more are an engine's settings, whose names are no sign of a failure
MAX_LINE_CHARS = 16_384  # the rest of a line is ignored; a longer one is an encoded image or the like
BLOCK_BYTES = 1 << 20
CATCH_ALL = "general-internal-error"  # an exception that shows no more than that the engine's own code failed
KILLED = "general-killed"  # expected of a server that stops
ANY_XID = "gpu-xid"  # the symptom of every Xid that has no row of its own
MAX_SHAPES = 20_000  # kinds of lines remembered; a log has hundreds
DIGITS = b"0123456789"
PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:\[[^\]]*\] )?(?:[A-Z]+ [^\]]*\] )?")
# An exception as Python prints it, behind the prefixes of vLLM ("(Worker_TP0 pid=1) ERROR 11-15 02:04:02 [x.py:9] ")
# and SGLang ("[2026-11-15 02:04:02 TP0] ").
EXCEPTION = re.compile(
    r"^(?:\([^)]*\) )?(?:\[[^\]]*\] )?(?:ERROR [^\]]*\] )?"
    r"(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|OutOfResources|Interrupt|Exit)\b(?::.*)?)$"
)
# An error by its level, as llama.cpp writes it ("0.00.003.883 E srv init: ").
MARKED = re.compile(r"^(?:[0-9.]+ )?E (?=\S)")
# By that, by the level of ik_llama.cpp (" ERR [  load_model] ") or by its words.
COMPLAINT = re.compile(
    rf"{MARKED.pattern}|(?:^|\s)ERR \[|"
    r"(?:^|\s)(?:[Ee]rror|ERROR|[Ff]atal|FATAL|GGML_ASSERT|terminate called|Segmentation fault)\b"
)
ECHO = re.compile(r"Engine core initialization failed|EngineDeadError|CancelledError|SystemExit|KeyboardInterrupt")
# One of these is in every line that EXCEPTION or COMPLAINT match.
_ERROR_WORDS: tuple[str, ...] = ("Error", "error", "ERROR", "Exception", "OutOfResources", "Fatal", "fatal", "FATAL")
_ERROR_WORDS += ("GGML_ASSERT", "terminate", "Segm", "ERR [")
LAST_LINES = 20  # after the error of an engine that dies; llama.cpp writes five, a Python traceback of exit handlers 20
TOGETHER = 3  # lines between two marked errors of one failure; a message may span a few lines

WatchedSymptom = tuple[Symptom, tuple[str, ...]]  # with words, without digits, of which one must occur

# Words that a line must contain for a pattern to match it. They are searched first, because that is fast: a gigabyte
# of log is searched for a hundred patterns, and nearly all of it contains none of their words.
MIN_WORD_CHARS = 5  # shorter words are in every log
HIDDEN = 0xF0000  # characters for private use, beyond those of any pattern


class LogSearch:
    """Reads a log piece by piece and keeps what it means."""

    def __init__(self, *, engine: str = "", recipe: Recipe | None = None) -> None:
        """Look for symptoms of `engine`; a remedy that its `recipe` already has gives way to the next best."""
        self._recipe = recipe
        self.findings: dict[str, Finding] = {}  # by symptom, in order of appearance
        self.counts: dict[str, int] = {}
        self.lines = 0
        self.exception = ""  # the first one that is not a consequence of another
        self.exception_line = 0
        self.complaint = ""  # the last error line; of errors that belong together the first
        self._complaint_line = 0  # of the last error line
        self.served_line = 0  # the last one of a server that serves: it survived what is above, if no lost GPU
        self.survived = ""  # an error above that line
        self._stopped_line = -LAST_LINES  # the last one of a server that stops
        self._ignored_until = 0  # an exception up to this line is one that Python ignored
        self._tail = b""
        self._awaiting = ""  # the symptom whose next line belongs to it
        self._dull: dict[bytes, bool] = {}  # shapes of lines that mean nothing -> whether a server may print them
        self._frames: deque[str] = deque(maxlen=60)  # the last of tracebacks
        self.frames: tuple[str, ...] = ()  # before the exception
        # A matching line is evidence enough, so only symptoms of other engines are left out.
        self._watched = [watched for watched in _watched_symptoms() if watched[0].applies.covers_engine(engine)]
        self._engines = {engine} - {""}  # that the user or else the log names
        self._engine_names = {} if engine else _line_patterns("engine_names")
        self._settings: dict[str, float] = {}  # recipe path -> the first value in the log
        self._words = tuple({word: None for _, words in self._watched for word in words})

    def feed(self, data: bytes) -> list[Finding]:
        """Take the next piece and return the new findings in its complete lines."""
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        if len(self._tail) > 4 * MAX_LINE_CHARS:
            self._tail = self._tail[:MAX_LINE_CHARS]  # a line without end: keep its beginning
        return self._search_lines(data[: cut - 1]) if cut else []

    def finish(self, *, is_log: bool = True) -> list[Finding]:
        """Search the last line, which may not have ended, and explain an error of a log that no symptom does."""
        rest, self._tail = self._tail, b""
        fresh = self._search_lines(rest) if rest else []
        died = any(each.area == "echo" and each.line > self.served_line for each in self.findings.values())
        if died and not self.cause and self.exception_line <= self.served_line:
            self.served_line = 0  # replies that were begun while the engine died
        if 0 < self.exception_line <= self.served_line:
            self.survived, self.exception, self.exception_line, self.frames = self.exception, "", 0, ()
        if 0 < self._complaint_line <= self.served_line:
            self.survived, self.complaint, self._complaint_line = self.survived or self.complaint, "", 0
        return [*fresh, *self._explain_error(by_words=is_log)]

    @property
    def cause(self) -> Finding | None:
        """The first known failure that no server survived; a family of failures only if nothing narrower is known."""
        fatal = [finding for finding in self.findings.values() if finding.severity == "fatal"]
        fatal = [finding for finding in fatal if finding.line > self.served_line or xid_of_line(finding.text)]
        first = next((finding for finding in fatal if finding.area != "general"), fatal[0] if fatal else None)
        narrower = {symptom.id for symptom, _ in self._watched if first and symptom.narrows == first.symptom}
        return next((finding for finding in fatal if finding.symptom in narrower), first)

    @property
    def unknown_failure(self) -> str:
        """The log's own error message, for failures without a known symptom."""
        return self.exception or self.complaint

    @property
    def ends_with_error(self) -> bool:
        """True if an error is among the last lines: a server that went on after one wrote more."""
        return bool(self.complaint) and self.lines - self._complaint_line <= LAST_LINES

    def _search_lines(self, data: bytes) -> list[Finding]:
        """Search complete lines. Lines that differ only in digits are searched once, so that a flood costs little."""
        fresh: list[Finding] = []
        patterns = _line_patterns("lines")
        for line, shape in zip(data.split(b"\n"), data.translate(None, DIGITS).split(b"\n"), strict=True):
            self.lines += 1
            if self._awaiting and line.strip():
                text = PREFIX.sub("", line[:MAX_LINE_CHARS].decode("utf-8", "replace")).strip()[:300]
                before = self.findings[self._awaiting]
                self.findings[self._awaiting] = structs.replace(before, cause=f"{before.cause} {text}")
                self._awaiting = ""
            if shape not in self._dull:
                line = patterns["request"].split(line, maxsplit=1)[0]  # users and models write anything
                parts = [self._search_part(part[:MAX_LINE_CHARS]) for part in line.split(b"\r")]  # of progress bars
                fresh += [finding for part in parts for finding in part or ()]
                if len(self._dull) >= MAX_SHAPES:
                    self._dull.clear()
                if parts.count(None) == len(parts) and len(shape) < MAX_LINE_CHARS:
                    self._dull[shape] = bool(patterns["may_serve"].search(line))
            if self._dull.get(shape, True):
                self.served_line = self.lines if patterns["served"].search(line) else self.served_line
                self._stopped_line = self.lines if patterns["stopped"].search(line) else self._stopped_line
        return fresh

    def _search_part(self, part: bytes) -> list[Finding] | None:
        """Return the new findings of a line, or None if no line of its shape can mean anything."""
        words = part.translate(None, DIGITS).decode("utf-8", "replace")
        found = {word for word in self._words if word in words}
        candidates = [watched for watched in self._watched if not found.isdisjoint(watched[1])] if found else []
        is_error = any(word in words for word in _ERROR_WORDS) or words.lstrip(". ").startswith("E ")
        if 'File "' in words:
            self._frames.append(words)
        self._engines |= {name for name, pattern in self._engine_names.items() if pattern.search(part)}
        settings = ((path, pattern.search(part)) for path, pattern in _line_patterns("logged_settings").items())
        self._settings = {path: float(match[1]) for path, match in settings if match} | self._settings
        if not candidates and not is_error:
            return None
        line = part.decode("utf-8", "replace")
        if "Exception ignored " in line:  # Python prints it below and goes on
            self._ignored_until = self.lines + LAST_LINES
        elif self.lines <= self._ignored_until and EXCEPTION.match(line):
            self._ignored_until = 0
            return []
        lists_settings = line.count("=") > MAX_PAIRS
        if not lists_settings:
            self._note_error(line)
        for symptom, _ in candidates:
            engines = symptom.applies.engine if self._engines or symptom.ambiguous else ()
            if (lists_settings and symptom.severity == "fatal") or (engines and self._engines.isdisjoint(engines)):
                continue
            if symptom.id == KILLED and self.lines - self._stopped_line < LAST_LINES:
                continue
            match = re.search(symptom.pattern, line)  # compiled here: few of the patterns are ever needed
            if not match:
                continue
            finding = make_finding(symptom.adapt(self._recipe, self._settings), match, line, self.lines, self._recipe)
            self.counts[finding.symptom] = self.counts.get(finding.symptom, 0) + 1
            known = self.findings.get(finding.symptom)
            if known and (known.severity != "fatal" or known.line > self.served_line):
                return []
            self.findings.pop(finding.symptom, None)  # the server survived it before
            self.findings[finding.symptom] = finding
            self._awaiting = finding.symptom if symptom.next_line else ""
            return [] if known else [finding]
        return []

    def _explain_error(self, *, by_words: bool) -> list[Finding]:
        """The part of the engine that an unknown error is of: by the innermost frame of one, or by its words."""
        if any(each.line == self.exception_line and each.symptom != CATCH_ALL for each in self.findings.values()):
            return []
        texts = [("frame", frame) for frame in self.frames[::-1]]
        if by_words and self.cause is None and (self.exception or self.ends_with_error):
            texts += [("words", self.exception.partition(":")[2]), ("words", self.complaint)]
        for kind, text in texts:
            for symptom in symptoms():
                if symptom.kind == kind and (match := re.search(symptom.pattern, text)):
                    line, frames = self.exception_line or self._complaint_line, "\n".join(self.frames)
                    phases = load_table("symptoms_general")["phase"]
                    phase = next((f", {row['text']}" for row in phases if re.search(row["pattern"], frames)), "")
                    finding = make_finding(symptom, match, self.unknown_failure, line, self._recipe)
                    cause = f"{symptom.cause}{phase} (likely, not certain: the message itself is not known)."
                    self.findings[symptom.id] = structs.replace(finding, cause=cause)
                    self.counts[symptom.id] = 1
                    return [self.findings[symptom.id]]
        return []

    def _note_error(self, line: str) -> None:
        match = EXCEPTION.match(line)
        if match and self.exception_line <= self.served_line and not ECHO.search(line):
            self.exception, self.exception_line = match.group("what")[:500], self.lines
            self.frames = tuple(self._frames)
        elif not match and " WARNING " not in line and COMPLAINT.search(line):
            follows = self.complaint and self.lines - self._complaint_line <= TOGETHER
            if not (follows and MARKED.match(line)):
                self.complaint = line.strip()[:500]
            self._complaint_line = self.lines


@functools.cache
def _line_patterns(table: str) -> dict[str, re.Pattern[bytes]]:
    """Patterns for lines that are not failures."""
    return {name: re.compile(words.encode()) for name, words in load_table("symptoms_general")[table].items()}


@functools.cache
def _watched_symptoms() -> tuple[WatchedSymptom, ...]:
    no_digits = str.maketrans("", "", "0123456789")
    return tuple(
        (symptom, tuple(word.translate(no_digits) for word in required_words(symptom.pattern)))
        for symptom in symptoms()
        if symptom.pattern and symptom.kind not in ("frame", "words")
    )


def required_words(pattern: str) -> tuple[str, ...]:
    """Return one word for each alternative of the pattern that it needs to match; empty if one needs none."""
    flat = re.sub(r"\\(\W)", lambda mark: chr(HIDDEN + ord(mark[1])), pattern)  # escaped marks are plain characters
    flat = re.sub(r"\[\^?\]?[^\]]*\]|\\.", "\0", flat)  # classes of characters
    while "(" in flat:
        flat = re.sub(r"\([^()]*\)", "\0", flat)  # groups, the innermost first
    flat = re.sub(r".(?:[?*]|\{[^}]*\})", "\0", flat)  # what may be missing
    longest = [max(re.split(r"[\0.^$+]", part), key=len) for part in flat.split("|")]
    words = ["".join(chr(ord(mark) % HIDDEN) for mark in word) for word in longest]
    return tuple(words) if all(len(word) >= MIN_WORD_CHARS for word in words) else ()


def make_finding(
    symptom: Symptom, match: re.Match[str], line: str, number: int, recipe: Recipe | None = None
) -> Finding:
    """The symptom as seen on this line; a line with an Xid also gets what NVIDIA's table has of it."""
    remedy, change = choose_remedy(
        recipe,
        remedy=symptom.remedy,
        change=symptom.recipe_changes(match),
        versions=symptom.applies.versions,
        area=symptom.area,
    )
    if symptom.misspelt:  # the nearest of the listed names: with another number it is another model's
        listed = re.findall(r"[\w.-]+", match["listed"] or "")
        same = [name for name in listed if re.sub(r"\D", "", name) == re.sub(r"\D", "", match["given"])]
        for near in difflib.get_close_matches(match["given"].lower(), same, 1, 0.75):
            remedy, change = f"use {near}, which the line lists; for another parser {remedy}", {symptom.misspelt: near}
    finding = Finding(
        symptom=symptom.id,
        area=symptom.area,
        severity=symptom.severity,
        line=number,
        text=line.strip()[:500],
        cause=re.sub(r"\{(\w+)\}", lambda name: match[name[1]].strip(), symptom.cause),
        remedy=remedy,
        change=change,
        source=symptom.source,
    )
    if not (known := xid_of_line(line)):
        return finding
    if symptom.id != ANY_XID:
        return structs.replace(finding, cause=replace(known, meaning=finding.cause).cause)
    return structs.replace(
        finding,
        symptom=f"{ANY_XID}-{known.number}",
        severity=known.severity,
        cause=known.cause,
        remedy=known.action,
        source=known.source,
    )


def search_file(path: Path, *, engine: str = "") -> LogSearch:
    search = LogSearch(engine=engine)
    feed_file(search, path)
    search.finish()
    return search


def feed_file(search: LogSearch, path: Path) -> None:
    """Search a whole log file; "-" is standard input."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if str(path) == "-" else open(path, "rb") as file:
            while data := file.read(BLOCK_BYTES):
                search.feed(data)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def search_pieces(pieces: Iterable[bytes], *, engine: str = "", is_log: bool = True) -> LogSearch:
    search = LogSearch(engine=engine)
    for piece in pieces:
        search.feed(piece)
    search.finish(is_log=is_log)
    return search


def known_causes(errors: Iterable[str]) -> list[str]:
    search = search_pieces((f"{printable_line(error)}\n".encode() for error in errors), is_log=False)
    return [f"{finding.cause} Remedy: {finding.remedy}" for finding in search.findings.values()]


def is_transient(error: str) -> bool:
    """True if engines are known to return this error occasionally and keep serving."""
    findings = search_pieces([f"{printable_line(error)}\n".encode()], is_log=False).findings.values()
    return bool(findings) and all(finding.severity == "warning" for finding in findings)
