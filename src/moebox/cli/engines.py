"""`moebox engines` and `moebox upgrade`: versions of engines."""

import contextlib
import dataclasses
import random
import re
import shlex
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import AsJson
from moebox.cli.output import confirm, print_lines, print_note, print_parts, print_result
from moebox.cli.ps import restore_interrupted
from moebox.cli.signals import WORDS, interrupt_message
from moebox.core.engine_source import parse_source
from moebox.core.recipe import Recipe
from moebox.core.versions import same_version
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.serve import installs
from moebox.units import format_gb, plural

RecipeName = Annotated[str, Parameter(help="A recipe file or name.")]
Change = Annotated[
    str, Parameter(help="ENGINE==VERSION, ENGINE@BUILD, an image or SETTING=VALUE; commas join several to one change.")
]
By = Annotated[
    str, Parameter(help="Judge by these alone: checks or their names, soak, answers, quality=0.02, speed=5%.")
]
Tree = Annotated[str, Parameter(help="Folder or git repository of builds. Default: that of the last build.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=())]
HEADS = ("engine", "kind", "size", "where", "used by")


def engines(*, json: AsJson = False) -> int:
    """List versions of engines on this machine, and the recipes and live engines that use them."""
    installs.remove_stale_parts()
    rows = [*installs.list_installs(), *installs.find_unmanaged()]
    users = {id(row): [*installs.live_users(row), *_recipes_using(row)] for row in rows}
    document = {
        "engines": [{**codec.to_plain(row), "name": row.name, "used_by": users[id(row)]} for row in rows],
        "folder": installs.engines_dir(),
    }

    def show() -> None:
        lines = []
        for row in rows:
            kind = row.kind if row.managed else f"{row.kind} ({row.tool})"
            name = row.name if row.managed else f"{row.engine} {row.version}".rstrip()
            where = re.sub(r"(@sha256:\w{12})\w+", r"\1…", row.image) or ("moebox" if row.managed else row.path)
            size = format_gb(row.bytes) if row.bytes else "–"
            lines.append((name, kind, size, where or "–", ", ".join(users[id(row)]) or "–"))
        table = make_table(HEADS, lines, left_columns=HEADS[:2], wrapped=HEADS[3:])
        print_parts(table if rows else "no engine is installed: `moebox engines install vllm==VERSION`")

    return print_result(json, document, show)


def install(engine: str = "", source: str = "", image: str = "", *, json: AsJson = False) -> int:
    """Install a version beside those that are there: an environment of its own, a build, or an image by digest.

    Recipes that name the version in `engine_version` use it from then on. Packages come from the index that pip, uv or
    /etc/moebox.toml name.

    Args:
        engine: ENGINE==VERSION for a Python package, ENGINE@COMMIT for a build from source.
        source: The source tree of a build: a folder, a git repository or its URL. Default: that of the last build.
        image: Pull this container image with docker or podman.
    """
    from moebox.serve.install import install_engine

    hint = "moebox engines install vllm==0.32.0, llama.cpp@b11669 or --image NAME"
    refuse_if(not engine and not image, "which version?", hint=hint)
    done = install_engine(parse_source(engine, image=image), tree=source, notify=print_note)
    text = f'{done.name} is installed; a recipe uses it with engine_version = "{done.version}"'
    return print_result(json, {**codec.to_plain(done), "name": done.name}, lambda: print_lines([text]))


def remove(name: str, *, json: AsJson = False) -> int:
    """Remove a version that moebox installed, and free its disk.

    Args:
        name: The version as `moebox engines` shows it: ENGINE==VERSION, ENGINE@BUILD or an image.
    """
    gone = installs.remove_install(name)
    left = _recipes_using(gone)
    lines = [f"{gone.name} is removed, {format_gb(gone.bytes)} are free again"]
    lines += [f"warning: the recipe {recipe} still names it" for recipe in left]
    return print_result(json, {"removed": gone.name, "bytes": gone.bytes, "recipes": left}, lambda: print_lines(lines))


def _recipes_using(row: installs.InstalledEngine) -> list[str]:
    """Return the saved recipes that name the version; `moebox up` reports those that cannot be read."""
    from moebox.flows.recipes import saved_recipes

    found = []
    for name, path in saved_recipes().items():
        with contextlib.suppress(BadInput):
            recipe = codec.read_toml(Recipe, path)
            wanted = recipe.engine_version if recipe.engine == row.engine else ""
            found += [name] if wanted and same_version(wanted, row.version) else []
    return found


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
    recipe: RecipeName,
    good: str,
    bad: str,
    by: By = "",
    source: Tree = "",
    between: str = "",
    *,
    yes: Yes = False,
    json: AsJson = False,
) -> int:
    """Find the first bad version between a good and a bad one; the same command resumes.

    Args:
        good: ENGINE==VERSION, ENGINE@BUILD or an image.
        bad: The same of a later version.
        between: The versions in between, oldest first, joined by commas. Default: commits, or releases in the index.
        yes: Install versions without a question.
    """
    from moebox import detect
    from moebox.flows import recipes
    from moebox.flows.bisect import bisect_versions, issue_text, open_journal, plan_bisection, planned_installs
    from moebox.flows.upgrade import parse_judges

    restore_interrupted()
    judges, old, box = parse_judges(by), recipes.load_recipe(recipe), detect.load_box()
    state = plan_bisection(old, (good, *flags.split_names(between), bad), judges, tree=source, box=box)
    if (wanted := planned_installs(state)) and not yes and not confirm(f"install {wanted}?"):
        print_note("nothing is installed")
        return 1
    run, state = open_journal(state)
    print_note(f"run: {run.path}; {plural(len(state.candidates), 'version')}")
    with interrupt_message("the same command goes on with this bisection", [run]):
        found = bisect_versions(recipe, old, run, state, box=box, notify=print_note)
    issue = issue_text(found)
    return print_result(json, {**codec.to_plain(found), "issue": issue}, lambda: print_lines([issue]))


def _try(named: str, to: str, by: str, source: str, *, switch_to_it: bool, json: bool) -> int:
    from moebox import detect
    from moebox.checkpoint import deploy
    from moebox.core.event import UpgradeStep
    from moebox.core.upgrade_result import UPGRADE_FILE
    from moebox.flows import recipes, switch
    from moebox.flows.upgrade import UpgradeEffort, parse_judges, try_upgrade, upgrade_recipe
    from moebox.serve.order import require_engine
    from moebox.store import Run

    restore_interrupted()
    judges, old, box = parse_judges(by), recipes.load_recipe(named), detect.load_box()
    require_engine(deploy(old))
    if problem := deploy(old).engine.hardware_problem(box.gpus, deploy(old).model):
        raise ExternalError(f"{problem}; nothing is installed", hint="the machine that serves the recipe can try it")
    begun: list[Run] = []  # with the first news, so that bad arguments leave no folder

    def notify(text: str) -> None:
        if not begun:
            begun.append(Run.create(f"upgrade-{old.name}"))
            print_note(f"run: {begun[0].path}")
        begun[0].add_event(UpgradeStep(recipe=named, to=to, text=text, command=shlex.join(WORDS.get())))
        print_note(text)

    usual = UpgradeEffort(judges=judges)
    effort = dataclasses.replace(usual, compare=dataclasses.replace(usual.compare, seed=random.randrange(10**6)))
    with interrupt_message("the old version is what runs; the same command tries the new one anew", begun):
        new, names = upgrade_recipe(old, flags.split_names(to), tree=source, notify=notify)
        require_engine(deploy(new))
        notify(f"{names[0]} → {names[1]}")
        run = begun[0]
        with switch.paused_endpoint(named, old, new, run) as journal:
            result = try_upgrade(old, new, names, run, effort, box, notify)
            good = result.outcome in ("keep", "no difference")
            applied = switch_to_it and good
            if applied:
                switch.apply_switch(journal)
    result = dataclasses.replace(result, applied=applied, recipe=new)
    run.write_json(UPGRADE_FILE, result)
    document = {**codec.to_plain(result), "headline": result.headline, "run": str(run.path)}
    reasons = "; ".join(result.reasons)
    lines = [result.headline, f"{result.outcome}: {reasons}", *result.notes, f"page: {run.path}/upgrade.md"]
    lines += [f"{old.name} is switched; `moebox upgrade rollback` returns"] * applied
    lines += ["not switched: the old version is what runs"] * (switch_to_it > applied)
    return print_result(json, document, lambda: print_lines(lines), good=good)
