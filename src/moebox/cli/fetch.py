"""`moebox fetch`: download the files that a recipe needs into the cache that engines read, and verify them."""

import functools
import time

from moebox.cli.flags import AsJson, Switch
from moebox.cli.output import print_lines, print_result, stderr_console
from moebox.errors import refuse_out_of_range
from moebox.flows.weights import find_named_files
from moebox.hub.fetch import RETRIES, Fetcher
from moebox.loose import Document
from moebox.units import format_gb, format_rate, format_seconds, plural


def fetch(what: str, *, check: Switch = False, at_once: int = 8, retries: int = RETRIES, json: AsJson = False) -> int:
    """Download what a recipe or a repository needs: shards, tokenizer and settings, or the parts of one GGUF file.

    Partial files are resumed. Each file is compared with the Hub's hash once; damaged ones are fetched again.

    Args:
        what: A recipe (file or name), ORG/REPO[@REVISION], or ORG/REPO[@REVISION]:QUANT for one GGUF file.
        check: Compare all files with the Hub's hashes again, and fetch only those that are damaged or missing.
        at_once: Files to download at the same time.
        retries: Attempts to go on with a file after connections that brought nothing, with longer and longer pauses.
    """
    from rich import progress

    refuse_out_of_range("--at-once", at_once, 1, 64)
    refuse_out_of_range("--retries", retries, 0, 20)
    listing, wanted = find_named_files(what)
    total, started = sum(file.size for file in wanted), time.monotonic()
    # bytes, GB/s and the time left, on a terminal
    columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    left = (progress.TextColumn("ready in"), progress.TimeRemainingColumn())
    console = stderr_console()
    with progress.Progress(*columns, *left, console=console, transient=True, disable=not console.is_terminal) as bars:
        advance = functools.partial(bars.advance, bars.add_task("fetch", total=total))
        fetcher = Fetcher(listing, recheck=check, retries=retries, advance=advance)
        missing = fetcher.missing_bytes(wanted)
        fetched = fetcher.fetch_all(wanted, at_once=at_once)
    took = time.monotonic() - started
    new = [file for file in fetched if not file.was_there]
    document: Document = {"repo": listing.repo, "commit": listing.commit, "folder": str(fetcher.snapshot)}
    document |= {"bytes": total, "files": len(fetched), "fetched": [file.path for file in new]}
    document |= {"seconds": round(took, 3), "intact": [file.path for file in fetched if file.was_there]}
    lines = [f"{listing.repo}: {plural(len(fetched), 'file')}, {format_gb(total)}, every hash is the Hub's"]
    lines += [f"fetched {file.path}" for file in new[:20]] + ([f"and {len(new) - 20} more"] if len(new) > 20 else [])
    if missing and took:
        lines.append(f"{format_gb(missing)} in {format_seconds(took)}: {format_rate(missing / took)}")
    return print_result(json, document, lambda: print_lines([*lines, fetcher.snapshot]))
