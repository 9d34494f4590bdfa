"""Whether replies are correct: each check's verdict, its probes and the evidence to unfold.

And how far a server's log-probabilities are from a reference, by kind of text and by depth.
"""

import json
from collections.abc import Sequence

from moebox.assess.assessment import Tone
from moebox.assess.format import join_names, unique_names
from moebox.core.verdict import CheckVerdict, Mark, Probe
from moebox.redact import hide_secrets
from moebox.report.block import Block, CustomBlock, ReportChart, Section, chart_blocks
from moebox.report.charts import draw_ranking
from moebox.report.svg import run_colour
from moebox.report.table import TableCell, figure_cell, table_blocks, text_cell
from moebox.runs.record import RunRecord

TONES: dict[Mark, Tone] = {"pass": "good", "fail": "bad", "skip": "quiet", "warn": "warn"}
SIGNS: dict[Mark, str] = {"pass": "✓ pass", "fail": "✗ fail", "skip": "– skipped", "warn": "! warning"}
MAX_PIECES, MAX_FAILED_PIECES = 2, 12  # pieces of evidence shown for a probe; more for one that failed
MAX_EVIDENCE_CHARS = 4_000  # of one piece; the file in the run folder has all of it
QUALITY_NOTE = (
    "Mean KL divergence in nats with its 95% interval; servers give the most likely tokens only, so it is a lower "
    "bound. Perplexity is the ratio to the reference's."
)
QUALITY_HEADS = ("Texts", "KL, nats", "99th percentile", "Same top token", "Perplexity", "Positions")


def checks_section(records: Sequence[RunRecord]) -> Section:
    """A table of checks by run if there are several runs, then each run's checks."""
    checked = [record for record in records if record.all_checks]
    blocks: list[Block] = []
    if len(checked) > 1:
        marks = [{check.name: check.verdict for check in record.all_checks} for record in checked]
        rows = []
        for name in unique_names(name for table in marks for name in table):
            found = [table.get(name) for table in marks]
            rows.append((name, *(text_cell(SIGNS[mark], tone=TONES[mark]) if mark else "" for mark in found)))
        heads = ("Check", *(record.label for record in checked))
        blocks += table_blocks(heads, rows, text=range(len(heads)), sortable=False)
    for index, record in enumerate(records):
        if checks := record.all_checks:
            data = {"name": record.page_label, "colour": run_colour(index), "checks": checks, "signs": SIGNS}
            blocks.append(CustomBlock("checks", data))
    lead = " ".join(record.sentence_prefix + checks_sentence(record) for record in checked)
    return Section(id="checks", title="Does it answer right", lead=lead, blocks=blocks)


def checks_sentence(record: RunRecord) -> str:
    """ "15 of 17 checks passed; warnings: json and tools; vision failed."."""
    parts = {"; known quirks of the engine: {}": record.warned_names(known=True)}
    parts |= {"; warnings: {}": record.warned_names(known=False), "; {} failed": record.check_names("fail")}
    found = (text.format(join_names(names)) for text, names in parts.items() if names)
    return f"{record.check_count_text}{''.join(found)}."


def check_evidence(check: CheckVerdict) -> list[tuple[str, str]]:
    """The texts about a whole check that there are, with titles."""
    causes = ", ".join(f"{cause.part} {cause.share:.0%}" for cause in check.causes)
    found = check.reproduction
    command = f"{found.command_line(max_chars=MAX_EVIDENCE_CHARS)}\n# in the run folder: {found.file}" if found else ""
    texts = (("evidence", check.evidence), ("likely cause", causes), ("reproduce", command))
    return [(title, limit_text(text)) for title, text in texts if text]


def probe_evidence(probe: Probe) -> list[tuple[str, str]]:
    """Requests and replies with titles, as many as a page can hold; the run folder keeps the others."""
    max_pieces = MAX_FAILED_PIECES if probe.verdict == "fail" else MAX_PIECES
    pieces: list[tuple[str, object]] = []
    for number, exchange in enumerate(probe.evidence, 1):
        if exchange.request not in (None, "", [], {}):
            pieces.append((f"{number}: {exchange.method} {exchange.url}", exchange.request))
        after = f" after {exchange.seconds:.2f} s" if exchange.seconds else ""
        pieces.append((f"{number}: {exchange.error or f'status {exchange.status}{after}'}", exchange.response))
    texts = [(title, limit_text(value)) for title, value in pieces[:max_pieces]]
    more = len(pieces) - max_pieces
    return texts if more <= 0 else [*texts, ("and more", f"{more} more pieces of evidence in the run folder")]


def limit_text(value: object) -> str:
    """A value as text without keys, cut if it is too long for a page."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    text = hide_secrets(text)
    if len(text) <= MAX_EVIDENCE_CHARS:
        return text
    return f"{text[:MAX_EVIDENCE_CHARS]}\n… {len(text) - MAX_EVIDENCE_CHARS:,} more characters in the run folder"


def quality_section(records: Sequence[RunRecord]) -> Section:
    """Figures and pictures of each run with a quality result that was judged."""
    blocks: list[Block] = []
    sentences = []
    for place, record in enumerate(records):
        judged = record.quality.judged if record.quality else None
        if record.quality is None or judged is None:
            continue
        rows, bars = [], {}
        for figures in (judged.figures, *judged.by_kind, *judged.by_depth):
            mean, ratio = figures.mean_kl, figures.perplexity_ratio
            interval = f"{mean.low:.4f} to {mean.high:.4f}"
            bars[figures.name] = (figures.name, run_colour(place), mean.value, interval)
            row = (
                figures.name,
                TableCell(text=f"{mean.value:.4f}", value=mean.value, aside=interval),
                figure_cell(figures.p99_kl.value, digits=3),
                TableCell(text=f"{figures.same_top.value:.1%}", value=figures.same_top.value),
                figure_cell(ratio.value if ratio else None, digits=3),
                figures.positions,
            )
            rows.append(row)
        caption = f"Against {record.quality.references[judged.nearest]}{record.title_suffix}"
        blocks += table_blocks(QUALITY_HEADS, rows, caption=caption, note=QUALITY_NOTE)
        charts = []
        for title, parts in (("kind of text", judged.by_kind), ("depth in the context", judged.by_depth)):
            heading = f"Divergence by {title}{record.title_suffix}"
            svg = draw_ranking([bars[part.name] for part in parts], label=heading, unit="nats")
            charts.append(ReportChart(title=heading, svg=svg))
        blocks += chart_blocks(charts)
        sentences.append(f"{record.sentence_prefix}{judged.verdict}.")
    return Section(id="quality", title="Quality", lead=" ".join(sentences), blocks=blocks)
