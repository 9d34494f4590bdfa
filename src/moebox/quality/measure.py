"""Score a server on the texts, keep the scores as a reference, and judge them against other references."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moebox import __version__
from moebox.core.endpoint import Endpoint
from moebox.errors import refuse_if
from moebox.quality.judge import QualityVerdict, judge_quality
from moebox.quality.reader import Progress, describe_server, read_texts
from moebox.quality.reference import FILE_NAME, Reference, ReferenceFacts, read_reference, reference_bytes
from moebox.quality.texts import QualityText, corpus_hash, standard_texts
from moebox.quality.wire import tokenizer_hash
from moebox.store import Run

RESULT_FILE = "quality.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """What was measured on one server, and the verdict against the references, if there are any."""

    about: ReferenceFacts
    positions: int
    references: tuple[str, ...] = ()
    judged: QualityVerdict | None = None


def measure_quality(
    endpoint: Endpoint,
    references: Sequence[Reference] = (),
    own_text: QualityText | None = None,
    *,
    limit: float | None = None,
    before: Reference | None = None,
    run: Run | None = None,
    on_progress: Progress | None = None,
) -> tuple[QualityResult, bytes]:
    """Return the result and the content of a reference file. Raise BadInput if the references do not fit each other.

    With `before`, another server's readings, `limit` is about how much farther from the reference this one is.
    """
    texts = (*standard_texts(), *([own_text] if own_text else []))
    corpus = corpus_hash(texts)
    for reference in (*references, *([before] if before else [])):
        hint = "references hold for one version of the corpus, and for one --text"
        refuse_if(reference.about.corpus != corpus, f"{reference.title}: made with other texts", hint=hint)
        both, theirs = f"{references[0].title} and {reference.title}", {each.name: each for each in reference.readings}
        shared = [(mine, theirs[mine.name]) for mine in references[0].readings if mine.name in theirs]
        refuse_if(not shared, f"{both}: no text in common")
        for mine, other in shared:
            same = all(a == b for a, b in zip(mine.tokens, other.tokens, strict=False))
            refuse_if(not same, f"{both}: another tokenizer: {mine.name!r} has other tokens")
    readings = read_texts(endpoint, texts, references[0].readings if references else (), on_progress)
    facts = ReferenceFacts(
        model=endpoint.model,
        corpus=corpus,
        tokenizer=tokenizer_hash(readings),
        moebox=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        **describe_server(endpoint),
    )
    judged = None
    if references:
        earlier = before.readings if before else None
        judged = judge_quality([each.readings for each in references], readings, limit=limit, before=earlier)
    result = QualityResult(
        about=facts,
        positions=sum(len(reading.positions) for reading in readings),
        references=tuple(reference.title for reference in references),
        judged=judged,
    )
    content = reference_bytes(facts, readings)
    if run:
        run.write_json(RESULT_FILE, result)
        run.write_file(FILE_NAME, content)
    return result, content


class QualityGate:
    """Scores servers one after another; each may be farther from a reference than the first one by a limit only.

    Without a reference file, the first server is the reference.
    """

    def __init__(self, limit: float, *, reference: str = "", before: Path | None = None) -> None:
        self.limit = limit
        self.reference = read_reference(Path(reference)) if reference else None
        self.before = read_reference(before) if before else None

    def judge(self, endpoint: Endpoint, run: Run) -> QualityVerdict | None:
        """Score a server and keep the result in `run`; None for the first one."""
        before, reference = self.before, self.reference or self.before
        if before is None or reference is None:
            measure_quality(endpoint, [reference] if reference else [], run=run)
            self.before = read_reference(run.path)
            return None
        earlier = before if self.reference else None
        return measure_quality(endpoint, [reference], limit=self.limit, before=earlier, run=run)[0].judged
