"""How far a server's log-probabilities are from a reference, by kind of text and by depth."""

from collections.abc import Sequence

from moebox.report.bars import draw_ranking
from moebox.report.block import Block, Charts, ReportTable, Section, TableCell, figure_cell, table_columns, titled_chart
from moebox.report.svg import run_colour
from moebox.runs.record import RunRecord

NOTE = (
    "Mean KL divergence in nats with its 95% interval; servers give the most likely tokens only, so it is a lower "
    "bound. Perplexity is the ratio to the reference's."
)
HEADS = ("Texts", "KL, nats", "99th percentile", "Same top token", "Perplexity", "Positions")


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
            cells = [TableCell(text=figures.name, value=figures.name)]
            cells += [TableCell(text=f"{mean.value:.4f}", value=mean.value, aside=interval)]
            cells += [figure_cell(figures.p99_kl.value, digits=3)]
            cells += [TableCell(text=f"{figures.same_top.value:.1%}", value=figures.same_top.value)]
            cells += [figure_cell(ratio.value if ratio else None, digits=3), figure_cell(float(figures.positions))]
            rows.append(tuple(cells))
        caption = f"Against {record.quality.references[judged.nearest]}{record.title_suffix}"
        blocks.append(ReportTable(caption=caption, columns=table_columns(*HEADS), rows=tuple(rows), note=NOTE))
        charts = []
        for title, parts in (("kind of text", judged.by_kind), ("depth in the context", judged.by_depth)):
            heading = f"Divergence by {title}{record.title_suffix}"
            chart = draw_ranking([bars[part.name] for part in parts], label=heading, unit="nats")
            charts.append(titled_chart(heading, chart))
        blocks.append(Charts(charts=tuple(filter(None, charts))))
        sentences.append(f"{record.sentence_prefix}{judged.verdict}.")
    return Section(id="quality", title="Quality", lead=" ".join(sentences), blocks=tuple(blocks))
