"""`moebox compare`: two recipes, or two servers, side by side and with judgement."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli.output import emit, people, talk
from moebox.errors import BadInput
from moebox.units import percent, seconds, tok_s

if TYPE_CHECKING:
    from moebox.flows.compare import Comparison, Side
    from moebox.store import Run


def compare(
    a: str,
    b: str,
    /,
    *,
    concurrency: Annotated[list[str] | None, Parameter(negative=())] = None,
    questions: int = 30,
    rounds: int = 5,
    model: str = "",
    key_env: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Ask two servers the same at temperature 0 and measure both: does B say the same, as right, and faster?

    Recipes are started one after the other and stopped again; URLs are taken as they are. Gains come with an
    interval, and "no difference seen" is an answer. Exit code 1 when B answers worse than A.

    Args:
        a: A recipe, or the URL of a running server.
        b: The same; B is judged against A.
        concurrency: Streams side by side, like 1,4,16.
        questions: Questions asked of both.
        rounds: Measurements at each concurrency.
        model: The served name, where a URL serves several.
        key_env: The environment variable that holds the key of a URL.
        json: Print JSON.
    """
    from moebox.flows.compare import compare as judged
    from moebox.store import Run

    try:
        streams = [int(word) for part in concurrency or ["1", "4"] for word in part.split(",") if word.strip()]
    except ValueError:
        raise BadInput(f"--concurrency {','.join(concurrency or ())}: write it like 1,4,16") from None
    if not streams or not all(1 <= number <= 256 for number in streams):
        raise BadInput("--concurrency is 1 to 256, like 1,4,16")
    if not (2 <= rounds <= 100 and 1 <= questions <= 1000):
        raise BadInput("--rounds is 2 to 100 and --questions 1 to 1000")
    run = Run.create("compare")
    talk().print(f"run: {run.path}", soft_wrap=True)
    sides = []
    for name, target in (("A", a), ("B", b)):
        talk().print(f"{name}: {target} …", markup=False)
        sides.append(_side(name, target, run, streams, questions, rounds, model, key_env))
    found = judged(*sides)
    run.write_json("compare.json", {"comparison": found, "sides": sides})
    if json:
        from moebox import codec

        emit({**codec.plain(found), "run": str(run.path)})
    else:
        _show(found)
    return 0 if found.as_good else 1


def _side(
    name: str, target: str, run: "Run", streams: list[int], questions: int, rounds: int, model: str, key_env: str
) -> "Side":
    from moebox import codec
    from moebox.cli import target as targets
    from moebox.core.recipe import Recipe
    from moebox.flows.compare import ask_side, start_side

    if target.endswith(".toml"):
        recipe = codec.read_toml(Recipe, Path(target))
        return start_side(name, recipe, run, concurrency=streams, questions=questions, rounds=rounds)
    endpoint = targets.endpoint(target, model=model, key_env=key_env)
    return ask_side(name, endpoint, concurrency=streams, questions=questions, rounds=rounds)


def _show(found: "Comparison") -> None:
    """What both said, how fast, and the verdict."""
    from rich.markup import escape
    from rich.table import Table

    answers = found.answers
    table = Table(box=None, pad_edge=False)
    for title in ("", "A", "B", ""):
        table.add_column(title, justify="left")
    for what, left, right in (
        ("right answers", answers.right_a, answers.right_b),
        ("valid JSON", answers.json_a, answers.json_b),
        ("valid tool calls", answers.tools_a, answers.tools_b),
    ):
        table.add_row(what, f"{left.passed} of {left.trials}", f"{right.passed} of {right.trials}", "")
    if found.acceptance_a is not None or found.acceptance_b is not None:
        shown = ["" if share is None else percent(share) for share in (found.acceptance_a, found.acceptance_b)]
        table.add_row("guesses accepted", *shown, "")
    for row in found.gains:
        speeds = (tok_s(row.a_tok_s), tok_s(row.b_tok_s))
        table.add_row(f"{row.concurrency} streams", *speeds, escape(str(row.gain or "")))
        table.add_row("  first token", seconds(row.a_ttft_ms / 1e3), seconds(row.b_ttft_ms / 1e3), "")
    people().print(table)
    for one in answers.divergences[:3]:
        people().print(escape(f"{one.family}: parts at {one.unit} {one.at}: {one.a!r} / {one.b!r}"))
    people().print(escape(found.verdict))
