"""`moebox upgrade`: try another version or setting, switch to it, return from it, or find the version that broke it."""

import dataclasses
import functools
import random
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.flags import AsJson
from moebox.cli.output import print_lines, print_result
from moebox.cli.ps import restore_interrupted
from moebox.cli.signals import interrupt_message

RecipeName = Annotated[str, Parameter(help="A recipe file or name.")]
Change = Annotated[
    str, Parameter(help="ENGINE==VERSION, ENGINE@BUILD, an image or SETTING=VALUE; commas join several to one change.")
]
By = Annotated[
    str, Parameter(help="Judge by these alone: checks or their names, soak, answers, quality=0.02, speed=5%.")
]
Tree = Annotated[str, Parameter(help="Folder or git repository of builds. Default: that of the last build.")]


def upgrade(recipe: RecipeName, to: Change, by: By = "", source: Tree = "", *, json: AsJson = False) -> int:
    """Judge another engine version, build, image or setting against RECIPE's own.

    Known problems come first, then a rehearsal with few layers if the weights are large, then both on the real recipe:
    checks, load with cancelled streams, answers, quality, and speed in turn. A live endpoint of the recipe is stopped
    for that and runs again afterwards, also if moebox is killed. Exit code 1 if the answer is to keep the old one.
    """
    return _try(recipe, to, by, source, switch_to_it=False, json=json)


def apply(recipe: RecipeName, to: Change, by: By = "", source: Tree = "", *, json: AsJson = False) -> int:
    """Judge like `upgrade`, and switch the recipe and its live endpoint if the answer is keep or no difference."""
    return _try(recipe, to, by, source, switch_to_it=True, json=json)


def rollback(recipe: str = "", *, json: AsJson = False) -> int:
    """Return to the recipe, and its live endpoint, before the last applied upgrade.

    Args:
        recipe: Its name or file, if several upgrades are applied.
    """
    from moebox.flows.switch import roll_back

    restore_interrupted()
    gone = roll_back(recipe)
    text = f"{gone.name} is as it was before the upgrade ({gone.file})"
    document = {"name": gone.name, "file": gone.file, "live": gone.live is not None}
    return print_result(json, document, lambda: print_lines([text]))


def bisect(
    recipe: RecipeName, good: str, bad: str, by: By = "", source: Tree = "", between: str = "", *, json: AsJson = False
) -> int:
    """Find the first bad version between a good and a bad one; the same command resumes.

    Args:
        good: ENGINE==VERSION, ENGINE@BUILD or an image.
        bad: The same of a later version.
        between: The versions in between, oldest first, joined by commas. Default: commits, or releases in the index.
    """
    from moebox import detect
    from moebox.flows import recipes
    from moebox.flows.bisect import bisect_versions, issue_text
    from moebox.flows.upgrade import parse_judges

    restore_interrupted()
    judges, old = parse_judges(by), recipes.load_recipe(recipe)
    names = flags.split_names(between)
    with interrupt_message("the same command goes on with this bisection"):
        found = bisect_versions(
            recipe, old, (good, bad), judges, between=names, tree=source, box=detect.load_box(), notify=_notify
        )
    print_result(json, {**codec.to_plain(found), "issue": issue_text(found)}, lambda: print_lines([issue_text(found)]))
    return 0


def _notify(text: str) -> None:
    print_lines([text], stderr=True)


def _try(named: str, to: str, by: str, source: str, *, switch_to_it: bool, json: bool) -> int:
    from moebox import detect
    from moebox.checkpoint import deploy
    from moebox.core.event import UpgradeStep
    from moebox.core.upgrade_result import UPGRADE_FILE
    from moebox.flows import recipes, switch
    from moebox.flows.compare import CompareEffort
    from moebox.flows.upgrade import UpgradeEffort, parse_judges, try_upgrade, upgrade_recipe
    from moebox.serve.order import require_engine
    from moebox.store import Run

    restore_interrupted()
    judges, old, box = parse_judges(by), recipes.load_recipe(named), detect.load_box()
    require_engine(deploy(old))

    @functools.cache
    def begin_run() -> Run:  # with the first news, so that bad arguments leave no folder
        run = Run.create(f"upgrade-{old.name}")
        _notify(f"run: {run.path}")
        return run

    def notify(text: str) -> None:
        begin_run().add_event(UpgradeStep(recipe=named, to=to, text=text))
        _notify(text)

    new, names = upgrade_recipe(old, flags.split_names(to), tree=source, box=box, notify=notify)
    require_engine(deploy(new))
    run = begin_run()
    compare = CompareEffort(rounds=6, most_rounds=24, seed=random.randrange(10**6))
    with (
        interrupt_message(f"the old endpoint is what runs; results so far are in {run.path}"),
        switch.paused_endpoint(named, old, new, run) as journal,
    ):
        effort = UpgradeEffort(compare=compare)
        result = try_upgrade(old, new, names, run, judges=judges, effort=effort, box=box, notify=notify)
        good = result.outcome in ("keep", "no difference")
        applied = switch_to_it and good
        if applied:
            switch.apply_switch(journal)
    result = dataclasses.replace(result, applied=applied, recipe=new)
    run.write_json(UPGRADE_FILE, result)
    document = {**codec.to_plain(result), "headline": result.headline, "run": str(run.path)}
    lines = [
        result.headline,
        f"{result.outcome}: {'; '.join(result.reasons)}",
        *result.notes,
        f"page: {run.path}/upgrade.md",
    ]
    if applied:
        lines.append(f"{old.name} is switched; `moebox upgrade rollback` returns")
    elif switch_to_it:
        lines.append("not switched: the old version is what runs")
    return print_result(json, document, lambda: print_lines(lines), good=good)
