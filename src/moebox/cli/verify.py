"""`moebox verify` and `moebox quality`: correctness checks of any OpenAI-compatible endpoint, and how far its model is
from a reference by log-probabilities.
"""

import time as clock
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from moebox import api, codec
from moebox.cli import flags, output
from moebox.cli.display import VERDICT_MARKS, LiveDisplay, make_grid, make_table
from moebox.cli.flags import AsJson, KeyEnv, Names, ServedModel, Settings, Switch, Target
from moebox.cli.output import Part, View, print_lines, print_note, print_parts, print_result, stderr_console
from moebox.cli.signals import interrupt_message
from moebox.cli.target import create_run, find_endpoint, open_run
from moebox.core.setting import Effort, apply_settings
from moebox.core.verdict import CheckResults, CheckVerdict, Failure
from moebox.errors import refuse_if
from moebox.escape import one_line
from moebox.files import write_atomic
from moebox.quality.judge import format_nats
from moebox.quality.measure import QualityResult
from moebox.quality.reference import read_reference
from moebox.quality.texts import read_user_text
from moebox.store import Run
from moebox.units import format_seconds, plural
from moebox.verify.options import LEFT_OUT, TIME_S, TRIALS, VerifyOptions, VerifySettings
from moebox.verify.runner import CheckProgress, results_document, select_checks, to_junit_xml
from moebox.verify.statistics import describe_failure

T = TypeVar("T", bound=VerifyOptions)
# Settings that only some checks use.
FLAG_CHECKS: dict[str, tuple[str, ...]] = {
    "context": ("long-context", "limits"),
    "parallel": ("concurrency", "errors", "cache"),
    **dict.fromkeys(("conversations", "prefix_tokens", "cache_tokens"), ("cache",)),
    "thinking": ("thinking",),
    "vision": ("vision",),
}
PROGRESS_S = 20.0  # between lines of progress without a terminal


def verify(
    target: Target = "",
    /,
    *,
    model: ServedModel = "",
    key_env: KeyEnv = "",
    only: Names = (),
    from_: Annotated[str, Parameter(name="--from")] = "",
    effort: Effort = "normal",
    context: str = "",
    settings: Settings = (),
    restart: Switch = False,
    junit: Path | None = None,
    run: str = "",
    json: AsJson = False,
) -> int:
    """Check that a server works, from its first answer to agents' long conversations; every failure is counted.

    pass: no failure was seen. warn: failures were seen, but too few to be sure that they matter, or something that will
    surprise clients. fail: failures at a rate that breaks agents. docs/checks.md lists the checks and their certainty.

    Args:
        only: Only these checks (comma-separated or repeated).
        from_: Begin with this check.
        effort: quick makes 4 trials of the usual requests, one of others, and leaves out the dearest probes, which it
            names; normal makes 8 of the usual ones; thorough 48 of larger designs, which finds what breaks once in ten
            almost surely.
        context: Length of the long text in tokens, like 64k. Default: 16k, and the server's limit if that is quick.
        settings: Another option, repeatable: trials=20 of each kind, parallel=8 requests at once, thinking=yes or
            vision=no if the model must or must not, deadline_s=5m of one request, time_s=30m of all checks, seed=1 for
            the questions of an earlier run, keep_going=true after a failure that makes later checks meaningless,
            strict=true for exit code 1 after warnings too; conversations=64 of prefix_tokens=4000 that fill the cache
            and come back, cache_tokens=500000 if the cache and its tiers hold so many.
        restart: Restart the engine before the conversations of the check `cache` come back: what its KV store on disk
            returns must be theirs. For engines of `moebox up --detach`.
        junit: Write JUnit XML to this file too.
        run: Keep the evidence in this run, such as the one of the engine's launch. Default: a new run.
    """
    names = flags.split_names(*only)
    chosen = tuple(check.name for check in select_checks(names, from_))
    options = parse_options(VerifySettings, effort, context, settings, chosen)
    refuse_if(restart and "cache" not in chosen, "--restart needs the check cache", hint="leave it out")
    output.check_writable(junit)
    endpoint = find_endpoint(target, model=model, key_env=key_env)
    kept = open_run(run, endpoint) if run else create_run("verify", endpoint)
    text, view = f"the finished checks are in {kept.path}", VerifyView(kept.path, quiet=json)
    with interrupt_message(text, [kept]), view:
        results = api.verify(
            endpoint,
            options=options,
            only=names,
            start=from_,
            keep_going=options.keep_going,
            run=kept,
            on_check=None if json else view.print_check,
            on_progress=view.show_progress,
            restart=restart,
        )
    if junit:
        output.write_file(junit, to_junit_xml(results))
    document = {**results_document(results), "run": str(kept.path)}
    good = results.verdict == "pass" if options.strict else results.has_passed
    return print_result(json, document, lambda: view.print_summary(results, options.trials), good=good)


def parse_options(kind: type[T], effort: Effort, context: str, settings: Sequence[str], chosen: Collection[str]) -> T:
    """Return the options of a verification. Raise BadInput for those of checks that are not chosen."""
    usual = kind(trials=TRIALS[effort], time_s=TIME_S[effort], brief=effort == "quick")
    tokens = flags.parse_token_count("--context", context or None)
    options = apply_settings(replace(usual, context=tokens), settings)
    options.validate()
    for name, checks in FLAG_CHECKS.items():
        unused = getattr(options, name) != getattr(usual, name) and set(checks).isdisjoint(chosen)
        refuse_if(unused, f"{name} needs the check {' or '.join(checks)}", hint="leave it out")
    return options


class VerifyView(LiveDisplay):
    """Shows the running check, each check when it is done, and a summary."""

    def __init__(self, folder: Path, *, quiet: bool = False) -> None:
        self.folder, self.quiet = folder, quiet  # folder of the run
        self.progress, self.last = "first request …", clock.monotonic()

    def __rich__(self) -> View:
        return make_grid([(self.spinner, self.progress)])

    def show_progress(self, progress: CheckProgress) -> None:
        """Show "tools: streamed, 7 of 12 · 133 requests · 41 s · about 35 s left"."""
        trial = f", {progress.trial} of {progress.trials}" if progress.trials else ""
        left = progress.seconds_left
        left_text = "" if left is None else f" · about {format_seconds(left)} left"
        sent = f"{plural(progress.requests, 'request')} · {format_seconds(progress.seconds)}"
        self.progress = f"{progress.check}: {progress.probe}{trial} · {sent}{left_text}"
        if not self.live and clock.monotonic() - self.last > PROGRESS_S:
            self.last = clock.monotonic()
            print_note((f"  … {self.progress}", "dim"))

    def print_check(self, verdict: CheckVerdict) -> None:
        """Print a line for a finished check, one for each probe that did not pass, and the failures that decided."""
        self.last = clock.monotonic()
        requests = sum(probe.requests for probe in verdict.probes)
        note = f"{format_seconds(verdict.seconds)}, {plural(requests, 'request')}" if requests else "not tried"
        left_out = [probe.name for probe in verdict.probes if probe.reason == LEFT_OUT]
        note += f"; left out: {', '.join(left_out)}" if left_out else ""
        parts: list[Part] = [[VERDICT_MARKS[verdict.verdict], f" {verdict.name:<13} ", (note, "dim")]]
        wrong = (probe for probe in verdict.probes if probe.verdict != "pass" and probe.reason != LEFT_OUT)
        parts += [["    ", VERDICT_MARKS[each.verdict], f" {each.name}: {one_line(each.reason)}"] for each in wrong]
        parts += [(f"    known quirk of {quirk}", "dim") for quirk in verdict.quirks]
        if verdict.causes:
            causes = ", ".join(f"{cause.part} {cause.share:.0%}" for cause in verdict.causes)
            reason = verdict.causes[0].because
            parts.append(f"    likely cause: {causes}{f' ({reason})' * bool(reason)}")
        print_parts(*parts)
        if found := verdict.reproduction:
            again = f"failed {found.failed} of {found.times} times when sent again" if found.times else "not sent again"
            print_lines([f"    reproduce ({again}): {found.command_line(str(self.folder))}"])
        shown = verdict.verdict == "pass" or any(probe.verdict == verdict.verdict for probe in verdict.probes)
        failures = () if shown else verdict.slips
        print_parts(*_failure_lines(failure for failure in failures if failure.verdict == verdict.verdict))

    def print_summary(self, results: CheckResults, trials: int) -> None:
        """Print the failures over all checks, the verdict with its counts, and what so many trials can miss."""
        if failures := [failure for failure in results.slips if failure.seen]:
            print_parts("\nFailures over all checks:", *_failure_lines(failures))
        count: Counter[str] = Counter(verdict.verdict for verdict in results.rungs)
        counts = [f"{count['pass']} of {len(results.rungs) - count['skip']} checks passed"]
        words = {"warn": "with warnings", "fail": "failed", "skip": "skipped"}
        counts += [f"{count[verdict]} {text}" for verdict, text in words.items() if count[verdict]]
        effort = f"{plural(results.requests, 'request')} in {format_seconds(results.seconds)}"
        verdict = (results.verdict, VERDICT_MARKS[results.verdict][1])
        print_lines([[verdict, f": {', '.join(counts)}; {effort}"]])
        seen = ", ".join(f"1 of {rate} with {1 - (1 - 1 / rate) ** trials:.0%}" for rate in (3, 10, 30))
        power = f"{plural(trials, 'trial')} of the usual requests, fewer of others, show a fault in {seen}"
        if any(probe.reason == LEFT_OUT for verdict in results.rungs for probe in verdict.probes):
            power += "; none in what was left out"
        print_parts(*map(one_line, (*results.notes, results.stopped or power)))
        print_note(f"evidence: {self.folder / 'verdicts'}")


def _failure_lines(failures: Iterable[Failure]) -> Iterator[Part]:
    """Yield each kind of failure, what it means, and an example."""
    for failure in failures:
        yield ["    ", VERDICT_MARKS[failure.verdict], f" {failure.kind}: {describe_failure(failure)}"]
        yield (f"      {one_line(failure.example, 140)}", "dim")


def quality(
    target: Target = "",
    /,
    *,
    reference: Names = (),
    save: Path | None = None,
    text: Path | None = None,
    model: ServedModel = "",
    key_env: KeyEnv = "",
    json: AsJson = False,
) -> int:
    """Measure how far a server's next-token probabilities are from a reference: is this quant, kernel or cache worse?

    Texts that no model has learnt, prose, code, tool calls and other languages are scored, not generated. Several
    references of one model show how much healthy servers differ: a difference inside that is no difference.
    Exit code 1 if the server is farther away.

    Args:
        reference: A file that --save wrote, or a run of `moebox quality`. Can be repeated.
        save: Write the log-probabilities of this server to a file, as a reference for others.
        text: Score this text file too.
    """
    output.check_writable(save)
    paths = map(Path, reference)  # a file, or the name of a run
    references = [read_reference(each if each.exists() or each.suffix else Run.open(str(each)).path) for each in paths]
    own_text = read_user_text(text) if text else None
    endpoint = find_endpoint(target, model=model, key_env=key_env)
    run = create_run("quality", endpoint)
    with interrupt_message("nothing was kept", [run]), stderr_console().status("scoring …") as status:
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
    good = not (result.judged and result.judged.different)
    return print_result(json, document, lambda: _print_result(result, save or run.path), good=good)


def _print_result(result: QualityResult, reference: Path) -> None:
    """Print the figures by kind of text and by depth, the bounds, and the verdict."""
    if judged := result.judged:
        rows = []
        for row in (judged.figures, *judged.by_kind, *judged.by_depth):
            mean, ratio = row.mean_kl, row.perplexity_ratio
            interval = f"{format_nats(mean.value)} ({format_nats(mean.low)}-{format_nats(mean.high)})"
            share = f"{row.same_top.value:.1%}"
            cells = (interval, format_nats(row.p99_kl.value), share, f"x{ratio.value:.3f}" if ratio else "")
            rows.append((row.name, *cells, f"{row.positions:,}"))
        print_lines([f"reference: {result.references[judged.nearest]}"])
        heads = ("", "KL in nats (95%)", "99th pct", "same top", "perplexity", "positions")
        least, most = (format_nats(nats) for nats in (judged.figures.mean_kl.value, judged.figures.mean_kl_most))
        bounds = f"at least {least} nats, at most {most} with the unknown tokens"
        print_parts(make_table(heads, rows, left_columns=("",)), bounds)
        print_lines([judged.verdict])
    else:
        print_parts(f"{result.positions:,} positions scored; `--reference` compares them with another server's")
    print_note(f"reference: {reference}")
