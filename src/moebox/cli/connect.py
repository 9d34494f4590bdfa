"""`moebox connect`: point a client at a live endpoint."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags, target
from moebox.cli.kept_in import NO_MODEL
from moebox.cli.output import emit, talk
from moebox.core.endpoint import Endpoint
from moebox.core.habits import habits_of
from moebox.core.recipe import Recipe
from moebox.serve import connect as connecting
from moebox.serve import state
from moebox.stream.limits import ServedLimits, served_limits
from moebox.units import parse_tokens


def connect(
    client: connecting.Client,
    url: str = "",
    *,
    model: str = "",
    key_env: str = "",
    context: str = "",
    vision: Annotated[bool, Parameter(negative=())] = False,
    write: Annotated[bool, Parameter(negative=())] = False,
    check: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print CLIENT's configuration for a live endpoint, write it, or try it.

    Args:
        client: The client to configure.
        url: The endpoint: a URL, a recipe file, or an engine that `moebox ps` lists; the only one running otherwise.
        model: The name it is served under; asked of the server otherwise.
        key_env: The environment variable that holds the key. The key itself is written nowhere.
        context: Context length to tell the client, such as 64k; asked of the server otherwise.
        vision: Tell the client that it may send images.
        write: Merge into the client's own settings file, keeping everything else in it and a backup.
        check: Make one real call the way this client does.
        json: Print JSON.
    """
    if client not in connecting.TOLD_CONTEXT:
        flags.not_taken(f"{client} has no setting for it", context=context)
    if client not in connecting.TOLD_VISION:
        flags.not_taken(f"{client} sends images without a setting", vision=vision)
    endpoint = target.endpoint(url, model=model, key_env=key_env)
    served = served_limits(endpoint)
    limit, source = _context(context, url, served)
    reached = connecting.Reached(endpoint=endpoint, key_env=key_env or _key_variable(url), context=limit, vision=vision)
    wanted = connecting.settings(client, reached)
    if served.simulation:
        talk().print(NO_MODEL, style="yellow", soft_wrap=True)
    if served.away:
        _say_away(endpoint, served.away, written=bool(write and wanted.path))
    told: dict[str, object] = {"client": client, "base_url": endpoint.base_url, "model": endpoint.model}
    told |= {"context": reached.context, "output": connecting.output_tokens(reached)}
    told |= {"shown": wanted.shown, "path": str(wanted.path) if wanted.path else None, "settings": wanted.changes}
    if write:
        path, backup = connecting.write(wanted)
        told |= {"written": str(path), "backup": str(backup) if backup else None}
        talk().print(f"written: {path}" + (f" (what it was: {backup.name})" if backup else ""), soft_wrap=True)
    elif not json:
        sys.stdout.write(wanted.shown + "\n")
    habits = [f"{habit.does}: {habit.client}" for habit in habits_of(endpoint.engine)]
    told |= {"habits": habits}
    for note in (*filter(None, [source]), *wanted.notes, *habits):
        talk().print(f"note: {note}", markup=False, soft_wrap=True)
    if check:
        from moebox.serve.callcheck import check as call

        seen = call(client, endpoint)
        told["check"] = seen
        talk().print(f"works: {seen.protocol}: {seen.evidence}", markup=False, soft_wrap=True)
    if json:
        emit(told)
    return 0


def _key_variable(url: str) -> str:
    """The variable that a recipe or a running engine names for its key."""
    if url.endswith(".toml"):
        return codec.read_toml(Recipe, Path(url)).listen.key_env
    if target.is_url(url):
        return ""
    return state.find(url or None).key_env


def _say_away(endpoint: Endpoint, why: str, *, written: bool) -> None:
    """A warning that the server does not answer; Outside where a client would be pointed at it."""
    problem = target.not_there(endpoint, why)
    if written:
        problem.hint = "is the server up? Nothing was written"
        raise problem
    talk().print(f"warning: {problem.message}; {problem.hint}", markup=False, soft_wrap=True)


def _context(given: str, url: str, served: ServedLimits) -> tuple[int, str]:
    """What was given, what the server says, what the recipe was planned for, or a modest guess; and a note on it."""
    if given:
        return flags.read("--context", given, parse_tokens), ""
    if served.context:
        return served.context, f"context {served.context:,} ({served.source})"
    missing = "answer, so its context is not known" if served.away else "say its context"
    if url.endswith(".toml"):
        planned = codec.read_toml(Recipe, Path(url)).context
        return planned, f"the server does not {missing}; {planned:,} is the recipe's"
    guess = connecting.MODEST_CONTEXT
    return guess, f"the server does not {missing}; {guess:,} is assumed; `--context` sets it"
