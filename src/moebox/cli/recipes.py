"""`moebox recipes`: the recipes that can be started by name or file, and how each did."""

from moebox.cli.flags import AsJson
from moebox.cli.output import print_lines, print_result, stdout_console
from moebox.escape import clip_text

SCREEN_ROWS = 15  # recipes on a terminal of 24 lines, beside headings and the prompt
TITLES = {"saved": "saved by you", "run": "of runs, newest first", "shipped": "shipped"}


def recipes(*, json: AsJson = False) -> int:
    """List the recipes that `moebox up` starts: saved ones, those of runs, and shipped ones.

    Each with its model, engine and box, and how the last run of that name ended. JSON has all of them, with paths.
    """
    from moebox.flows.recipes import list_recipes

    rows = list_recipes()

    def show() -> None:
        others = [row for row in rows if row.source != "run"]
        of_runs = [row for row in rows if row.source == "run"]
        room = max(SCREEN_ROWS - len(others), 1)
        width, name_width = stdout_console().width, max(len(row.name) for row in rows)
        source = ""
        for row in (row for row in rows if row not in of_runs[room:]):
            facts = row.about if not row.engine else ", ".join(filter(None, (row.model, row.engine, row.box)))
            result = row.result or "not run"
            left = max(width - name_width - len(result) - 6, 12)  # the result is at the right edge
            print_lines([f"{TITLES[row.source]}:"] * (row.source != source))
            print_lines([f"  {row.name:<{name_width}}  {clip_text(facts, left):<{left}}  {result}"])
            source = row.source
        print_lines([f"{len(of_runs) - room} older ones of runs: --json"] * (len(of_runs) > room))
        print_lines(["\nstart one: moebox up NAME; change one: moebox up NAME --set context=32k"])

    return print_result(json, {"recipes": rows}, show)
