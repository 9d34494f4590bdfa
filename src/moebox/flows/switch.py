"""Stop an endpoint for a trial and bring it back; switch it to another recipe and return. A journal survives kill -9.

    STATE/upgrades/NAME.json    the recipes, the phase, and the endpoint that was live
    STATE/upgrades/NAME.log     output of the keeper

Phases: testing (the endpoint may be stopped), switching (file and engine are being exchanged), applied, ended. In the
first two the old endpoint is owed: the keeper, a process that waits for moebox to end, starts it again, and so does the
next moebox command if the keeper was killed too. The lease `upgrade-NAME` shows that a process is at work.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moebox import codec, files
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.flows import service
from moebox.flows.recipes import saved_recipes_dir
from moebox.serve import state
from moebox.serve.agent import port_is_open
from moebox.serve.session import PATIENCE_S, launch_engine, prepare_launch
from moebox.serve.stop import stop_instance
from moebox.store import Run
from moebox.store.run import safe_name

Phase = Literal["testing", "switching", "applied", "ended"]
OWED: tuple[Phase, ...] = ("testing", "switching")
RESTORE_TRIES = 3  # the guard of a killed engine may hold its port for some seconds
RETRY_S = 2.0
KEEPER_S = 900.0  # for which the keeper goes on trying


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchJournal:
    name: str
    phase: Phase = "testing"
    run: str  # folder of the trial
    file: str  # the recipe's file
    before: str | None  # its content; None if there was none
    old: Recipe
    new: Recipe
    live: Recipe | None = None  # as it was served, with its port; None if it was not
    by_unit: bool = False  # systemd serves it
    when: float = 0.0

    @property
    def path(self) -> Path:
        return state.state_dir() / "upgrades" / f"{safe_name(self.name)}.json"


def save_journal(journal: SwitchJournal, **fields: object) -> SwitchJournal:
    journal = replace(journal, when=time.time(), **fields)  # type: ignore[arg-type]
    files.make_private_folder(journal.path.parent)
    files.write_atomic(journal.path, codec.to_json(journal), mode=0o600, sync=True)
    return journal


def list_journals(*phases: Phase, name: str = "") -> list[SwitchJournal]:
    """Journals in these phases, newest first, all or those of a recipe."""
    found = []
    for path in state.state_dir().glob("upgrades/*.json"):
        with contextlib.suppress(BadInput, FileNotFoundError):
            found.append(codec.decode(SwitchJournal, codec.load_json(path), where=str(path)))
    found = [each for each in found if each.phase in phases and name in ("", each.name)]
    return sorted(found, key=lambda journal: -journal.when)


def take_lease(name: str, what: str) -> state.Lease:
    """Lease the upgrades of a recipe. Raise ExternalError if another process is at work on it."""
    return state.Lease(f"upgrade-{safe_name(name)}", f"{what} (process {os.getpid()})")


def live_instances(name: str, *, within: str = "") -> list[state.Instance]:
    """Live engines of a recipe, or those whose run lies in a folder."""
    live = [instance for instance in state.list_instances() if instance.is_alive]
    if within:
        return [each for each in live if Path(each.run).resolve().is_relative_to(Path(within).resolve())]
    return [each for each in live if each.recipe == name]


def served_recipe(instance: state.Instance) -> Recipe:
    return codec.read_toml(Recipe, Path(instance.run) / "recipe.toml")


@contextlib.contextmanager
def paused_endpoint(named: str, old: Recipe, new: Recipe, run: Run) -> Iterator[SwitchJournal]:
    """Stop the live endpoint of a recipe for the length of the block; afterwards it runs again, whatever happened.

    Raise ExternalError if another upgrade of it is under way, or if a terminal or another program keeps the engine.
    """
    recover_upgrades()
    file = Path(named) if named.endswith(".toml") else saved_recipes_dir() / f"{old.name}.toml"
    path, lease = str(file.resolve()), take_lease(old.name, "moebox upgrade")
    serving = live_instances(old.name)
    by_unit = service.control_unit("is-active", old.name)
    keeper: subprocess.Popen[bytes] | None = None
    try:
        if by_unit:
            unit = service.find_unit(old.name)[0]
            text = unit.read_text(encoding="utf-8")
            if path not in text and f" up {old.name} " not in text:
                raise ExternalError(f"{unit.stem} serves another recipe of this name than {file}", hint=f"see {unit}")
        elif attached := next((each for each in serving if not each.detached), None):
            hint = f"end it there, and start it with `moebox up {old.name} --detach`"
            raise ExternalError(f"{attached.id} is served by `moebox up` in another terminal", hint=hint)
        live = served_recipe(serving[0]) if serving else old if by_unit else None
        before = file.read_text(encoding="utf-8") if file.exists() else None
        journal = SwitchJournal(
            name=old.name, run=str(run.path), file=path, before=before, old=old, new=new, live=live, by_unit=by_unit
        )
        keeper = start_keeper(save_journal(journal))
        stop_endpoint(journal)
        if live and port_is_open(live.listen.host, live.listen.port):
            save_journal(journal, phase="ended", live=None)
            text = f"port {live.listen.port} answers again although its engine was stopped: a service restarts it"
            raise ExternalError(text, hint="stop the service for the upgrade, e.g. `systemctl --user stop NAME`")
        yield journal
    finally:
        for pending in list_journals(*OWED, name=old.name):
            restore_endpoint(pending)
        lease.close()
        if keeper:
            keeper.communicate(b"done\n")


def start_keeper(journal: SwitchJournal) -> "subprocess.Popen[bytes]":
    """Start the process that restores the endpoint if this one is killed. It gets this environment: keys are in it."""
    argv = [sys.executable, "-m", "moebox.flows.switch", journal.name]
    with open(journal.path.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


def recover_upgrades(report: Callable[[str], None] = lambda text: None) -> list[str]:
    """Restore the endpoints of upgrades whose process is gone. Return their names, and report what does not start."""
    recovered = []
    for journal in list_journals(*OWED):
        try:
            lease = take_lease(journal.name, "recovery")
        except ExternalError:  # a process is at work on it
            continue
        with contextlib.closing(lease):
            try:
                if list_journals(*OWED, name=journal.name):
                    restore_endpoint(journal)
                    recovered.append(journal.name)
            except MoeboxError as problem:
                report(f"{journal.name} could not be started again after an interrupted upgrade: {problem.message}")
    return recovered


def restore_endpoint(journal: SwitchJournal) -> None:
    """Bring back the old recipe and, if it was live, its engine. Raise ExternalError if it does not start."""
    for instance in live_instances("", within=journal.run):
        stop_instance(instance)
    if journal.phase in ("switching", "applied"):
        stop_endpoint(journal)
        _write_recipe(journal, journal.before)
    if journal.live and not live_instances(journal.name):
        start_endpoint(journal, journal.live)
    save_journal(journal, phase="ended")


def stop_endpoint(journal: SwitchJournal) -> None:
    """Stop the recipe's engines, and the unit that would start one again."""
    if journal.by_unit:
        service.control_unit("stop", journal.name)
    for instance in live_instances(journal.name):
        stop_instance(instance)


def start_endpoint(journal: SwitchJournal, recipe: Recipe) -> None:
    """Start `recipe`, or the unit, which reads the recipe's file. Raise ExternalError if it does not start."""
    if not journal.by_unit:
        start_detached(recipe)
    elif not service.control_unit("start", journal.name):
        unit = service.find_unit(journal.name)[0].stem
        raise ExternalError(f"systemd did not start {unit}", hint=f"`journalctl -u {unit}` shows why")


def apply_switch(journal: SwitchJournal) -> None:
    """Make the new recipe the named one and serve it if the old one was live; on failure the old one comes back."""
    journal = save_journal(journal, phase="switching")
    new, live = journal.new, journal.live
    try:
        _write_recipe(journal, codec.to_toml(new))
        if live:
            stop_endpoint(journal)
            start_endpoint(journal, replace(new, listen=live.listen))
        if live and not port_is_open(live.listen.host, live.listen.port):
            raise ExternalError(f"{new.engine} {new.engine_version} ended as soon as {journal.name} was switched to it")
    except BaseException:
        restore_endpoint(journal)
        raise
    save_journal(journal, phase="applied")


def roll_back(name: str = "") -> SwitchJournal:
    """Return to the recipe before the last applied upgrade, of the recipe with this name or file if one is given."""
    file = str(Path(name).resolve())
    applied = [journal for journal in list_journals("applied") if name in ("", journal.name) or file == journal.file]
    refuse_if(not applied, f"no applied upgrade{f' of {name}' if name else ''} to return from")
    hint = ", ".join(each.name for each in applied)
    refuse_if(len(applied) > 1 and not name, "several upgrades are applied: name one", hint=hint)
    journal, live = applied[0], None
    with contextlib.closing(take_lease(journal.name, "rollback")):
        if serving := live_instances(journal.name):
            live = replace(journal.live or journal.old, listen=served_recipe(serving[0]).listen)
        restore_endpoint(save_journal(journal, phase="switching", live=live))
    return journal


def start_detached(recipe: Recipe) -> state.Instance:
    """Start an engine that stays. Try again if its port is still held by the engine that it follows."""
    for left in reversed(range(RESTORE_TRIES)):
        try:
            run = Run.create(recipe.name)
            with launch_engine(prepare_launch(deploy(recipe), name=run.id), run) as session:
                session.wait_ready(patience_s=PATIENCE_S)
                session.detach()
            return session.instance
        except MoeboxError:
            if not left:
                raise
            time.sleep(RETRY_S)
    raise AssertionError("the last try raises")


def restart_instance(url: str) -> Callable[[], None]:
    """Return a function that stops and starts the engine at `url`. Raise BadInput unless it can be started again."""
    found = next((each for each in state.list_instances() if each.base_url == url and each.is_alive), None)
    if found is None or not found.detached:
        hint = "start it with `moebox up RECIPE --detach`"
        raise BadInput(f"{url} cannot be restarted: it is not a detached engine of moebox", hint=hint)
    recipe = served_recipe(found)

    def restart() -> None:
        for instance in [each for each in state.list_instances() if each.base_url == url]:
            stop_instance(instance)
        start_detached(recipe)

    return restart


def _write_recipe(journal: SwitchJournal, text: str | None) -> None:
    """Write the recipe's file, or remove it if there was none."""
    path = Path(journal.file)
    if text is None:
        path.unlink(missing_ok=True)
    else:
        files.make_private_folder(path.parent) if path.parent == saved_recipes_dir() else None
        files.write_atomic(path, text, sync=True)


if __name__ == "__main__":  # the keeper: moebox ended without "done" if it was killed
    is_owed = b"done" not in sys.stdin.buffer.read()
    until = time.monotonic() + KEEPER_S
    while is_owed and time.monotonic() < until:  # the killed engine may hold its port and its memory for a while
        print("restored:", *recover_upgrades(print), flush=True)
        is_owed = bool(list_journals(*OWED, name=sys.argv[1]))
        time.sleep(RETRY_S)
