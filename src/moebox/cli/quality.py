"""`moebox quality`: how far a server's model is from a reference, by log-probabilities."""

from pathlib import Path
from typing import TYPE_CHECKING

from moebox import api
from moebox.cli.flags import AsJson, Names
from moebox.cli.output import check_writable, exit_code, print_result, stderr_console, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.cli.target import create_run, find_endpoint

if TYPE_CHECKING:
    from moebox.quality.measure import QualityResult


def quality(
    target: str = "",
    /,
    *,
    reference: Names = (),
    save: Path | None = None,
    text: Path | None = None,
    model: str = "",
    key_env: str = "",
    json: AsJson = False,
) -> int:
    """Measure how far a server's next-token probabilities are from a reference: is this quant, kernel or cache worse?

    Texts that no model has learnt, prose, code, tool calls and other languages are scored, not generated. Several
    references of one model show how much healthy servers differ: a difference inside that is no difference.
    Exit code 1 if the server is farther away.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started. Default: the running one.
        reference: A file that --save wrote, or a run of `moebox quality`. Can be repeated.
        save: Write the log-probabilities of this server to a file, as a reference for others.
        text: Score this text file too.
        model: The served model name. Default: the only one that the server lists.
        key_env: The environment variable that holds the key.
    """
    from moebox import codec
    from moebox.files import write_atomic
    from moebox.quality.reference import read_reference
    from moebox.quality.texts import read_user_text
    from moebox.store import Run

    check_writable(save)
    paths = map(Path, reference)  # a file, or the name of a run
    references = [read_reference(each if each.exists() or each.suffix else Run.open(str(each)).path) for each in paths]
    own_text = read_user_text(text) if text else None
    endpoint = find_endpoint(target, model=model, key_env=key_env)
    run = create_run("quality", endpoint)
    with interrupt_message("nothing was kept"), stderr_console().status("scoring …") as status:
        result, content = api.quality(
            endpoint,
            references=references,
            own_text=own_text,
            run=run,
            on_progress=lambda done, total: status.update(f"scoring text {done + 1} of {total}"),
        )
    if save:
        write_atomic(save, content)
    document = {**codec.to_document(result), "run": str(run.path), "saved": str(save or "")}
    print_result(json, document, lambda: _print_result(result, run.path, save))
    return exit_code(not (result.judged and result.judged.different))


def _print_result(result: "QualityResult", folder: Path, save: Path | None) -> None:
    """Print the figures by kind of text and by depth, the bounds, and the verdict."""
    from rich.markup import escape
    from rich.table import Table

    from moebox.quality.judge import format_nats

    out = stdout_console()
    judged = result.judged
    if judged:
        out.print(escape(f"reference: {result.references[judged.nearest]}"), soft_wrap=True)
        heads = ("", "KL in nats (95%)", "99th pct", "same top", "perplexity", "positions")
        table = Table(*heads, box=None, pad_edge=False)
        for row in (judged.figures, *judged.by_kind, *judged.by_depth):
            mean, ratio = row.mean_kl, row.perplexity_ratio
            interval = f"{format_nats(mean.value)} ({format_nats(mean.low)}-{format_nats(mean.high)})"
            share = f"{row.same_top.value:.1%}"
            cells = (interval, format_nats(row.p99_kl.value), share, f"x{ratio.value:.3f}" if ratio else "")
            table.add_row(row.name, *cells, f"{row.positions:,}")
        out.print(table)
        most = format_nats(judged.figures.mean_kl_most)
        out.print(f"at least {format_nats(judged.figures.mean_kl.value)} nats, at most {most} with the unknown tokens")
        out.print(escape(judged.verdict), soft_wrap=True)
    else:
        out.print(f"{result.positions:,} positions scored; `--reference` compares them with another server's")
    stderr_console().print(escape(f"reference: {save or folder}"), soft_wrap=True)
