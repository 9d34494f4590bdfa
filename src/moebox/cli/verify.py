"""`moebox verify`: the ladder against any OpenAI-compatible endpoint."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from moebox.cli import target as targets
from moebox.cli.output import emit, people, talk
from moebox.core.verdict import Ladder, Verdict
from moebox.errors import BadInput
from moebox.units import parse_seconds, parse_tokens, seconds

_MARKS = {"pass": "[green]✓[/]", "fail": "[red]✗[/]", "skip": "[dim]–[/]"}


def verify(
    target: str = "",
    /,
    *,
    model: str = "",
    key_env: str = "",
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    from_: Annotated[str, Parameter(name="--from")] = "",
    context: str = "",
    trials: int = 10,
    parallel: int = 8,
    thinking: Literal["auto", "yes", "no"] = "auto",
    deadline: str = "5m",
    seed: int | None = None,
    keep_going: Annotated[bool, Parameter(negative=())] = False,
    junit: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Make a server prove that it is alive: rung by rung, with the evidence kept.

    Rungs: alive, plain, arithmetic, code, json, streaming, thinking, tools, long-context, concurrency, limits and
    anthropic, in this order.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started; the running one when left out.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        only: Climb these rungs only (comma-separated or repeated).
        from_: Climb from this rung on.
        context: Length of the long text in tokens, like 64k; the server's limit, 16k at most, when left out.
        trials: Tool calls over which schema validity is scored.
        parallel: Requests at once in the concurrency rung.
        thinking: Whether the model must think when asked to; auto takes it as it comes.
        deadline: Longest time for one request.
        seed: Repeat the questions of an earlier ladder; fresh ones otherwise.
        keep_going: Climb on past a rung that makes later ones meaningless.
        junit: Write JUnit XML here too.
        json: Print JSON.
    """
    from moebox.store import Run
    from moebox.verify.ask import Options
    from moebox.verify.junit import junit as to_junit
    from moebox.verify.ladder import choose, document
    from moebox.verify.ladder import verify as climb

    names = [name.strip() for part in only or () for name in part.split(",") if name.strip()]
    choose(names, from_)  # a misspelt rung is told before anything is asked
    if not (1 <= trials <= 1000 and 1 <= parallel <= 1024):
        raise BadInput("--trials is 1 to 1000 and --parallel 1 to 1024")
    try:
        tokens, longest = parse_tokens(context) if context else None, parse_seconds(deadline)
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    options = Options(
        context=tokens, trials=trials, parallel=parallel, thinking=thinking, seed=seed, deadline_s=max(1.0, longest)
    )
    endpoint = targets.endpoint(target, model=model, key_env=key_env)
    run = Run.create(f"verify-{endpoint.model}")
    run.event("verify.begin", url=endpoint.base_url, model=endpoint.model)
    tell = None if json else _tell
    ladder = climb(endpoint, options, only=names, start=from_, keep_going=keep_going, run=run, tell=tell)
    run.event("verify.end", verdict=ladder.verdict, stopped=ladder.stopped)
    if junit:
        _write(junit, to_junit(ladder))
    if json:
        emit({**document(ladder), "run": str(run.path)})
    else:
        _sum_up(ladder, run.path)
    return 0 if ladder.verdict == "pass" else 1


def _tell(rung: Verdict) -> None:
    """One line as each rung is done, and one for each probe that did not pass or has a caution."""
    from rich.markup import escape

    score = f"  {rung.score.passed}/{rung.score.trials}" if rung.score else ""
    note = f"[dim]{seconds(rung.seconds)}{score}[/]" if rung.probes else "[dim]not tried[/]"
    people().print(f"{_MARKS[rung.verdict]} {rung.name:<13} {note}")
    for probe in rung.probes:
        if probe.verdict != "pass" or probe.caution:
            mark = "[yellow]![/]" if probe.caution else _MARKS[probe.verdict]
            people().print(f"    {mark} {probe.name}: {escape(probe.reason)}")


def _sum_up(ladder: Ladder, folder: Path) -> None:
    from rich.markup import escape

    count = {mark: sum(rung.verdict == mark for rung in ladder.rungs) for mark in _MARKS}
    words = ", ".join(f"{number} {mark}" for mark, number in count.items() if number)
    colour = "green" if ladder.verdict == "pass" else "red"
    people().print(f"[{colour}]{ladder.verdict}[/]: {words}")
    if ladder.stopped:
        people().print(escape(ladder.stopped))
    talk().print(f"evidence: {escape(str(folder / 'verdicts'))}", soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"{path}: cannot be written: {problem.strerror}") from None
