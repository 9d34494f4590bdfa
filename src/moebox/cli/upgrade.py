"""`moebox upgrade`: try another version or setting, switch to it, return from it, or find the version that broke it."""

import random
from typing import TYPE_CHECKING

from moebox import codec
from moebox.cli import flags
from moebox.cli.flags import AsJson, Names, Switch
from moebox.cli.output import exit_code, print_lines, print_result
from moebox.cli.ps import restore_interrupted
from moebox.cli.signals import interrupt_message
from moebox.errors import refuse_if

if TYPE_CHECKING:
    from moebox.core.box import Box
    from moebox.core.recipe import Recipe
    from moebox.flows.upgrade import Judges


def upgrade(
    recipe: str = "",
    *,
    to: Names = None,
    apply: Switch = False,
    rollback: Switch = False,
    bisect: tuple[str, str] | None = None,
    by: str = "",
    source: str = "",
    json: AsJson = False,
) -> int:
    """Judge another engine version, build, image or setting against RECIPE's own, and switch to it if it is as good.

    Known problems come first, then a rehearsal with few layers if the weights are large, then both on the real recipe:
    checks, load with cancelled streams, answers, and speed in turn. A live endpoint of the recipe is stopped for that
    and runs again afterwards, also if moebox is killed. Exit code 1 if the answer is to keep the old one.

    Args:
        recipe: A recipe file or name.
        to: ENGINE==VERSION, ENGINE@BUILD, an image, or SETTING=VALUE; several are one change. With --bisect, the
            versions in between, oldest first.
        apply: Switch the recipe and its live endpoint if the answer is keep or no difference.
        rollback: Return to the recipe before the last applied upgrade.
        bisect: Find the first bad version between a good and a bad one.
        by: Judge only by these: checks, names of checks, soak, answers, quality, speed or speed=5%.
        source: The source tree of builds: a folder or a git repository.
    """
    from moebox import detect
    from moebox.flows import recipes, switch
    from moebox.flows.upgrade import parse_judges

    restore_interrupted()
    if rollback:
        flags.refuse_unused("--rollback returns", to=to, apply=apply, bisect=bisect, by=by, source=source)
        gone = switch.roll_back(recipe)
        text = f"{gone.name} is as it was before the upgrade ({gone.file})"
        print_result(
            json, {"name": gone.name, "file": gone.file, "live": gone.live is not None}, lambda: print_lines([text])
        )
        return 0
    refuse_if(not recipe, "which recipe?", hint="moebox upgrade RECIPE --to vllm==0.32.0")
    refuse_if(not to and not bisect, "what to try?", hint="--to VERSION, or --bisect GOOD BAD")
    judges, old, box = parse_judges(by), recipes.load_recipe(recipe), detect.load_box()
    if bisect:
        flags.refuse_unused("--bisect tries versions one by one", apply=apply)
        return _bisect(recipe, old, bisect, to or [], judges, source, box, json=json)
    return _try(recipe, old, to or [], judges, source, box, apply=apply, json=json)


def _try(
    named: str, old: "Recipe", to: list[str], judges: "Judges", source: str, box: "Box", *, apply: bool, json: bool
) -> int:
    from moebox.checkpoint import deploy
    from moebox.flows import switch
    from moebox.flows.compare import CompareEffort
    from moebox.flows.upgrade import UPGRADE_FILE, UpgradeEffort, try_upgrade, upgrade_recipe
    from moebox.serve.order import require_engine
    from moebox.store import Run

    def notify(text: str) -> None:
        print_lines([text], stderr=True)

    require_engine(deploy(old))
    new, names = upgrade_recipe(old, to, tree=source, box=box, notify=notify)
    require_engine(deploy(new))
    run = Run.create(f"upgrade-{old.name}")
    notify(f"run: {run.path}")
    compare = CompareEffort(rounds=6, most_rounds=24, seed=random.randrange(10**6))
    with (
        interrupt_message(f"the old endpoint is what runs; results so far are in {run.path}"),
        switch.paused_endpoint(named, old, new, run) as journal,
    ):
        effort = UpgradeEffort(compare=compare)
        result = try_upgrade(old, new, names, run, judges=judges, effort=effort, box=box, notify=notify)
        good = result.outcome in ("keep", "no difference")
        applied = apply and good
        if applied:
            switch.apply_switch(journal)
    run.write_json(UPGRADE_FILE, {**codec.to_plain(result), "applied": applied, "recipe": codec.to_plain(new)})
    document = {**codec.to_plain(result), "headline": result.headline, "applied": applied, "run": str(run.path)}
    lines = [
        result.headline,
        f"{result.outcome}: {'; '.join(result.reasons)}",
        *result.notes,
        f"page: {run.path}/upgrade.md",
    ]
    if applied:
        lines.append(f"{old.name} is switched; `moebox upgrade {named} --rollback` returns")
    elif apply:
        lines.append("not switched: the old version is what runs")
    print_result(json, document, lambda: print_lines(lines))
    return exit_code(good)


def _bisect(
    named: str,
    old: "Recipe",
    ends: tuple[str, str],
    between: list[str],
    judges: "Judges",
    source: str,
    box: "Box",
    *,
    json: bool,
) -> int:
    from moebox.flows.bisect import bisect_versions, issue_text

    def notify(text: str) -> None:
        print_lines([text], stderr=True)

    with interrupt_message("the same command goes on with this bisection"):
        found = bisect_versions(named, old, ends, judges, between=between, tree=source, box=box, notify=notify)
    document = {**codec.to_plain(found), "issue": issue_text(found)}
    print_result(json, document, lambda: print_lines([issue_text(found)]))
    return 0
