"""Lines of threads that no symptom was written for: the cause that `doctor logs` names is the right one."""

import csv
import re
from pathlib import Path

import pytest

from moebox.core.symptom import symptoms
from moebox.doctor.logs import known_causes, required_words, search_pieces

FILE = Path(__file__).parent / "unseen_lines.csv"
with FILE.open(encoding="utf-8", newline="") as file:
    LINES = [*csv.DictReader(file, delimiter=";", quoting=csv.QUOTE_NONE)]
RECORDED: tuple[str, ...] = ()  # batches that nothing was written for yet


@pytest.mark.parametrize(
    "row",
    [row for row in LINES if row["batch"] not in RECORDED],
    ids=lambda row: row["url"].removeprefix("https://github.com/"),
)
def test_a_line_of_a_thread_has_a_known_cause(row: dict[str, str]) -> None:
    """The cause has a word of what the thread found out."""
    search = search_pieces([f"{row['line']}\n".encode()])
    finding = search.cause or next(iter(search.findings.values()))
    assert re.search(row["words"], finding.cause, re.IGNORECASE), finding


@pytest.mark.parametrize(
    "symptom", [one for one in symptoms() if one.pattern and one.kind != "words"], ids=lambda one: one.id
)
def test_a_pattern_has_a_word_that_lines_are_searched_for(symptom: object) -> None:
    """Each alternative of a pattern has a plain word of five letters; a pattern without one is never tried."""
    assert required_words(symptom.pattern)  # type: ignore[attr-defined]


def test_a_narrower_symptom_is_the_cause_though_a_family_came_first() -> None:
    """A failed check above a full disk is not the cause."""
    log = b"PermissionError: [Errno 13] cannot save\nOSError: [Errno 28] No space left on device\n"
    search = search_pieces([log])
    assert next(iter(search.findings)) == "general-permission"
    assert search.cause is not None
    assert not search.cause.symptom.startswith("general-")


def test_an_unknown_exception_names_the_part_and_the_time_by_its_traceback() -> None:
    """The innermost frame of a known part counts; a message that is known itself keeps its own cause."""
    frames = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/vllm/v1/worker/gpu_worker.py", line 300, in determine_available_memory',
        '  File "/usr/lib/python3/vllm/model_executor/layers/fused_moe/layer.py", line 30, in forward',
        '  File "/usr/lib/python3/torch/_ops.py", line 30, in __call__',
    ]
    unknown, known = (
        search_pieces(["\n".join([*frames, message]).encode()]).cause
        for message in ("RuntimeError: frobnication failed", "RuntimeError: CUDA error: misaligned address")
    )
    assert unknown is not None
    assert unknown.symptom == "frame-experts"
    assert "after the weights were loaded (likely, not certain" in unknown.cause
    assert known is not None
    assert known.symptom == "gpu-illegal-access"


def test_an_unknown_error_is_explained_by_its_words() -> None:
    """As likely, not certain; not if a server went on for long after it, and not for the reply to a request."""
    error = b"RuntimeError: the router of experts is upset\n"
    cause = search_pieces([error]).cause
    assert cause is not None
    assert cause.symptom == "words-experts"
    assert "likely, not certain" in cause.cause
    assert not known_causes([error.decode()])
    assert search_pieces([b"a fatal flux of experts\n", b"a token\n" * 100]).cause is None


def test_a_refusal_names_what_the_feature_exists_with() -> None:
    """The cause has the words of the line itself."""
    cause = search_pieces([b"ValueError: Warp drives are only supported on Hopper GPUs with coolant.\n"]).cause
    assert cause is not None
    assert "exists only with Hopper GPUs with coolant" in cause.cause
