"""`moebox verify`: the ladder against any OpenAI-compatible endpoint."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags, kept_in
from moebox.cli import target as targets
from moebox.cli.output import check_writable, exit_code, print_result, write_file
from moebox.cli.signals import interrupt_message
from moebox.errors import refuse_if, refuse_out_of_range

if TYPE_CHECKING:
    from moebox.verify.options import VerifyEffort, VerifyOptions

Expectation = Literal["auto", "yes", "no"]
# Flags that only some checks look at.
FLAG_CHECKS: dict[str, tuple[str, ...]] = {
    "context": ("long-context", "limits"),
    "parallel": ("concurrency", "errors"),
    "thinking": ("thinking",),
    "vision": ("vision",),
}


def refuse_unused_flags(chosen: Collection[str], **values: object) -> None:
    """BadInput for flags of checks that are not among the chosen ones."""
    for name, value in values.items():
        if not set(FLAG_CHECKS[name]) & set(chosen):
            flags.refuse_without(f"the check {' or '.join(FLAG_CHECKS[name])}", **{name: value})


def verify(
    target: str = "",
    /,
    *,
    model: str = "",
    key_env: str = "",
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    from_: Annotated[str, Parameter(name="--from")] = "",
    quick: Annotated[bool, Parameter(negative=())] = False,
    thorough: Annotated[bool, Parameter(negative=())] = False,
    context: str = "",
    trials: int | None = None,
    parallel: int | None = None,
    thinking: Expectation | None = None,
    vision: Expectation | None = None,
    deadline: str = "5m",
    time: str = "",
    seed: int | None = None,
    keep_going: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    junit: Path | None = None,
    run: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check that a server works, from its first answer to agents' long conversations: every slip is counted.

    pass: no fault was seen. warn: faults were seen, too few to be sure that they matter, or something that will
    surprise clients. fail: faults at a rate that breaks agents. docs/ladder.md lists the checks and how sure they are.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started; the running one when left out.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        only: Only these checks (comma-separated or repeated).
        from_: Begin with this check.
        quick: 4 trials of each kind of request: finds what always breaks, in a third of the time.
        thorough: 36 trials of each kind: finds what breaks once in ten, almost surely.
        context: Length of the long text in tokens, like 64k; 16k when left out, and the server's limit where cheap.
        trials: Trials of each kind of request, 12 when left out; a slip buys up to three times as many.
        parallel: Requests at once in the checks concurrency and errors; 8 when left out.
        thinking: Whether the model must think when asked to; auto (when left out) accepts both.
        vision: Whether the model must read pictures; auto (when left out) accepts both.
        deadline: Timeout of one request.
        time: Longest time for all checks together; 30m when left out (10m quick, 2h thorough).
        seed: Repeat the questions of an earlier run; fresh ones otherwise.
        keep_going: Go on past a failure that makes later checks meaningless.
        strict: Exit code 1 for warnings too.
        junit: Write JUnit XML here too.
        run: Keep the evidence in this run, such as that of the engine's launch; in one of its own when left out.
        json: Print JSON.
    """
    from moebox.cli.verify_view import VerifyView
    from moebox.core.event import VerifyBegan, VerifyEnded
    from moebox.verify.junit import to_junit_xml as to_junit
    from moebox.verify.options import CHECK_NAMES
    from moebox.verify.runner import results_document, select_checks
    from moebox.verify.runner import run_checks as climb

    names = flags.split_names(*(only or ()))
    chosen = tuple(
        rung.name for rung in select_checks(names, from_)
    )  # a misspelt check is named before anything is asked
    refuse_unused_flags(chosen, context=context, parallel=parallel, thinking=thinking, vision=vision)
    if trials is not None and time:
        flags.refuse_unused("--trials and --time say how hard to look", quick=quick, thorough=thorough)
    refuse_out_of_range("--trials", trials, 1, 1000)
    refuse_out_of_range("--parallel", parallel, 1, 1024)
    options = _options(
        _effort(quick, thorough),
        context=context,
        trials=trials,
        parallel=parallel,
        thinking=thinking,
        vision=vision,
        seed=seed,
        deadline=deadline,
        time=time,
    )
    check_writable(junit)
    endpoint = targets.find_endpoint(target, model=model, key_env=key_env)
    kept = kept_in.open_run(run, endpoint) if run else kept_in.create_run("verify", endpoint)
    with interrupt_message(f"the checks that were done are in {kept.path}"), VerifyView(quiet=json) as view:
        kept.add_event(VerifyBegan(url=endpoint.base_url, model=endpoint.model, checks=chosen, of=len(CHECK_NAMES)))
        tell = None if json else view.print_check
        ladder = climb(
            endpoint,
            options,
            only=names,
            start=from_,
            keep_going=keep_going,
            run=kept,
            on_check=tell,
            on_progress=view.show_progress,
        )
    kept.add_event(VerifyEnded(verdict=ladder.verdict, stopped=ladder.stopped))
    if junit:
        write_file(junit, to_junit(ladder))
    print_result(
        json, {**results_document(ladder), "run": str(kept.path)}, lambda: view.print_summary(ladder, kept.path)
    )
    return exit_code(ladder.verdict == "pass" if strict else ladder.has_passed)


def _effort(quick: bool, thorough: bool) -> "VerifyEffort":
    refuse_if(quick and thorough, "--quick and --thorough exclude each other")
    if quick:
        return "quick"
    return "thorough" if thorough else "default"


def _options(
    effort: "VerifyEffort",
    *,
    context: str,
    trials: int | None,
    parallel: int | None,
    thinking: Expectation | None,
    vision: Expectation | None,
    seed: int | None,
    deadline: str,
    time: str,
) -> "VerifyOptions":
    """How hard to look: as the effort has it, where a flag does not say."""
    from moebox.verify.options import TIME_S, TRIALS, VerifyOptions

    return VerifyOptions(
        context=flags.parse_token_count("--context", context or None),
        trials=TRIALS[effort] if trials is None else trials,
        parallel=parallel or 8,
        thinking=thinking or "auto",
        vision=vision or "auto",
        seed=seed,
        deadline_s=max(1.0, flags.parse_duration("--deadline", deadline)),
        time_s=max(1.0, flags.parse_duration("--time", time) if time else TIME_S[effort]),
    )
