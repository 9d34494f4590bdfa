"""Why an engine failed, from its log, while it streams or afterwards.

An engine that dies prints hundreds of lines; the first failure is the cause and the last traceback merely its
echo. Memory stays bounded however long the log is: one finding per symptom, one line at a time.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from moebox.core.symptom import Finding, Symptom, symptoms
from moebox.doctor.literals import required_words
from moebox.errors import BadInput
from moebox.escape import printable_line

MAX_LINE_CHARS = 16_384  # characters of a line that are looked at; a line of base64 image is longer and says nothing
BLOCK_BYTES = 1 << 20
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
# What a line contains that can be either of these.
_MAYBE: tuple[str, ...] = ("Error", "error", "ERROR", "Exception", "OutOfResources", "Fatal", "fatal", "FATAL")
_MAYBE += ("GGML_ASSERT", "terminate", "Segm", "ERR [")
TOGETHER = 3  # lines from one marked error to the next that belong to one failure; a message may have a few of its own

WatchedSymptom = tuple[Symptom, re.Pattern[str], tuple[str, ...]]  # with words, digits taken out, that a match contains


class LogSearch:
    """Reads a log piece by piece and remembers what it means."""

    def __init__(self, *, engine: str = "") -> None:
        self.findings: dict[str, Finding] = {}  # by symptom, in order of first sight
        self.counts: dict[str, int] = {}
        self.lines = 0
        self.exception = ""  # the first one that is not an echo
        self.exception_line = 0
        self.complaint = ""  # the last line that looks like one; of errors that stand together the first
        self._complained = 0  # the line of the last one
        self._tail = b""
        self._unfinished = ""  # the symptom whose next line is awaited
        self._dull: set[bytes] = set()  # shapes of lines that mean nothing
        # A line that matches is evidence enough: only another engine's symptoms are left out.
        self._watched = [watched for watched in _gated() if watched[0].applies.covers_engine(engine)]

    def feed(self, data: bytes) -> list[Finding]:
        """Take the next piece; what is newly found in its complete lines."""
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > 4 * MAX_LINE_CHARS:
            data, cut = data[:MAX_LINE_CHARS] + b"\n", MAX_LINE_CHARS + 1  # a line without end: its beginning will do
        self._tail = data[cut:]
        return self._block(data[: cut - 1]) if cut else []

    def finish(self) -> list[Finding]:
        """The last line may lack its end."""
        rest, self._tail = self._tail, b""
        return self._block(rest) if rest else []

    @property
    def cause(self) -> Finding | None:
        """The first known failure, which brought the others about."""
        return next((finding for finding in self.findings.values() if finding.severity == "fatal"), None)

    @property
    def unknown_failure(self) -> str:
        """What the log itself gives as reason, where no symptom is known for it."""
        return self.exception or self.complaint

    def _block(self, data: bytes) -> list[Finding]:
        """Lines alike but for their digits are judged once; a flood of them costs next to nothing."""
        fresh: list[Finding] = []
        for line, shape in zip(data.split(b"\n"), data.translate(None, DIGITS).split(b"\n"), strict=True):
            self.lines += 1
            if self._unfinished and line.strip():
                self._finish(line)
            if shape not in self._dull:
                fresh += self._judged(line, shape)
        return fresh

    def _judged(self, line: bytes, shape: bytes) -> list[Finding]:
        """What a line newly tells; its shape is remembered where it tells nothing."""
        parts = line.split(b"\r")  # progress bars return the carriage and go on in the same line
        told = [findings for part in parts if (findings := self._part(part)) is not None]
        if not told and len(shape) < MAX_LINE_CHARS:
            self._remember(shape)
        return [*chain.from_iterable(told)]

    def _part(self, part: bytes) -> list[Finding] | None:
        """What a line newly tells; None when no line of its shape can tell anything."""
        words = part[:MAX_LINE_CHARS].translate(None, DIGITS).decode("utf-8", "replace")
        candidates = [watched for watched in self._watched if _contains(words, watched[2])]
        if candidates or _contains(words, _MAYBE) or words.lstrip(". ").startswith("E "):
            return self._line(part[:MAX_LINE_CHARS].decode("utf-8", "replace"), candidates)
        return None

    def _remember(self, shape: bytes) -> None:
        if len(self._dull) >= MAX_SHAPES:
            self._dull.clear()
        self._dull.add(shape)

    def _line(self, line: str, candidates: list[WatchedSymptom]) -> list[Finding]:
        self._trouble(line)
        for symptom, pattern, _ in candidates:
            match = pattern.search(line)
            if match:
                return self._met(symptom, match, line)
        return []

    def _met(self, symptom: Symptom, match: re.Match[str], line: str) -> list[Finding]:
        """One more line with this symptom; new where it is the first."""
        self.counts[symptom.id] = self.counts.get(symptom.id, 0) + 1
        if symptom.id in self.findings:
            return []
        self.findings[symptom.id] = make_finding(symptom, match, line, self.lines)
        self._unfinished = symptom.id if symptom.next_line else ""
        return [self.findings[symptom.id]]

    def _finish(self, line: bytes) -> None:
        """The line after a finding that belongs to it."""
        text = PREFIX.sub("", line[:MAX_LINE_CHARS].decode("utf-8", "replace")).strip()[:300]
        before = self.findings[self._unfinished]
        self.findings[self._unfinished] = dataclasses.replace(before, cause=f"{before.cause} {text}")
        self._unfinished = ""

    def _trouble(self, line: str) -> None:
        match = EXCEPTION.match(line)
        if match and not self.exception and not ECHO.search(line):
            self.exception, self.exception_line = match.group("what")[:500], self.lines
        elif not match and COMPLAINT.search(line):
            self._complain(line)

    def _complain(self, line: str) -> None:
        follows = self.complaint and self.lines - self._complained <= TOGETHER
        if not (follows and MARKED.match(line)):
            self.complaint = line.strip()[:500]
        self._complained = self.lines


def _contains(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)


@functools.cache
def _gated() -> tuple[WatchedSymptom, ...]:
    """Every symptom that a log shows, with its pattern and the words without which it cannot match."""
    no_digits = str.maketrans("", "", "0123456789")
    return tuple(
        (
            symptom,
            re.compile(symptom.pattern),
            tuple(word.translate(no_digits) for word in required_words(symptom.pattern)),
        )
        for symptom in symptoms()
        if symptom.pattern
    )


def make_finding(symptom: Symptom, match: re.Match[str], line: str, number: int) -> Finding:
    """The symptom as seen on this line."""
    return Finding(
        symptom=symptom.id,
        area=symptom.area,
        severity=symptom.severity,
        line=number,
        text=line.strip()[:500],
        cause=symptom.cause,
        remedy=symptom.remedy,
        change=symptom.recipe_changes(match),
        source=symptom.source,
    )


def search_file(path: Path, *, engine: str = "") -> LogSearch:
    """Search a whole log file; "-" is standard input."""
    import sys

    found = LogSearch(engine=engine)
    if str(path) == "-":
        _read(found, sys.stdin.buffer)
    else:
        feed_file(found, path)
    found.finish()
    return found


def feed_file(found: LogSearch, path: Path) -> None:
    """Feed a file to a search, a block at a time."""
    try:
        with open(path, "rb") as file:
            _read(found, file)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def _read(found: LogSearch, stream: BinaryIO) -> None:
    while data := stream.read(BLOCK_BYTES):
        found.feed(data)


def known_causes(errors: Iterable[str]) -> list[str]:
    """What is known of errors like these, once each."""
    found = search_pieces(f"{printable_line(error)}\n".encode() for error in errors)
    return [f"{finding.cause} Remedy: {finding.remedy}" for finding in found.findings.values()]


def is_transient(error: str) -> bool:
    """Whether an engine is known to give this error now and then, and to serve on."""
    found = search_pieces([f"{printable_line(error)}\n".encode()]).findings.values()
    return bool(found) and all(finding.severity == "warning" for finding in found)


def search_pieces(pieces: Iterable[bytes], *, engine: str = "") -> LogSearch:
    """Search pieces of a log, in order."""
    found = LogSearch(engine=engine)
    for piece in pieces:
        found.feed(piece)
    found.finish()
    return found
