"""`moebox connect`: point a client at a live endpoint."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags, target
from moebox.cli.kept_in import warn_simulation
from moebox.cli.output import print_json, stderr_console
from moebox.core.endpoint import Endpoint
from moebox.core.quirks import engine_quirks
from moebox.core.recipe import Recipe
from moebox.serve import connect as connecting
from moebox.serve import state
from moebox.serve.keys import TWIN_KEY
from moebox.stream.limits import ServedLimits, served_limits
from moebox.units import parse_tokens

if TYPE_CHECKING:
    from moebox.serve.callcheck import EndpointCall


def connect(
    client: connecting.ClientName,
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
    if client not in connecting.CLIENTS_WITH_CONTEXT:
        flags.refuse_unused(f"{client} has no setting for it", context=context)
    if client not in connecting.CLIENTS_WITH_VISION:
        flags.refuse_unused(f"{client} sends images without a setting", vision=vision)
    endpoint = target.find_endpoint(url, model=model, key_env=key_env)
    served = served_limits(endpoint)
    limit, source = _context(context, url, served)
    variable = key_env or _key_variable(url)
    if endpoint.key and not variable:
        variable = TWIN_KEY
        source = (*source, f"{TWIN_KEY} is to hold the key that `moebox twin` printed")
    reached = connecting.LiveModel(endpoint=endpoint, key_env=variable, context=limit, vision=vision)
    wanted = connecting.client_settings(client, reached)
    warn_simulation(served.simulation)
    if served.problem:
        _say_away(endpoint, served.problem, written=bool(write and wanted.path))
    told = _told(client, reached, wanted)
    if write:
        told |= _written(wanted)
    elif not json:
        sys.stdout.write(wanted.text + "\n")
    habits = [f"{habit.does}: {habit.client}" for habit in engine_quirks(endpoint.engine)]
    told["habits"] = habits
    for note in (*source, *wanted.notes, *habits):
        stderr_console().print(f"note: {note}", markup=False, soft_wrap=True)
    if check:
        told["check"] = _called(client, endpoint)
    if json:
        print_json(told)
    return 0


def _told(
    client: connecting.ClientName, reached: connecting.LiveModel, wanted: connecting.ClientSettings
) -> dict[str, object]:
    """The settings under the keys that scripts rely on."""
    return {
        "client": client,
        "base_url": reached.endpoint.base_url,
        "model": reached.endpoint.model,
        "context": reached.context,
        "output": connecting.max_output_tokens(reached),
        "shown": wanted.text,
        "path": wanted.path,
        "settings": wanted.changes,
    }


def _written(wanted: connecting.ClientSettings) -> dict[str, object]:
    """The client's settings file, and the copy of what it was."""
    path, backup = connecting.write_settings(wanted)
    stderr_console().print(f"written: {path}" + (f" (what it was: {backup.name})" if backup else ""), soft_wrap=True)
    return {"written": path, "backup": backup}


def _called(client: connecting.ClientName, endpoint: Endpoint) -> "EndpointCall":
    """One real call as the client makes it."""
    from moebox.serve.callcheck import call_as_client

    seen = call_as_client(client, endpoint)
    stderr_console().print(f"works: {seen.protocol}: {seen.evidence}", markup=False, soft_wrap=True)
    return seen


def _key_variable(url: str) -> str:
    """The variable that a recipe or a running engine names for its key."""
    if url.endswith(".toml"):
        return codec.read_toml(Recipe, Path(url)).listen.key_env
    if target.is_url(url):
        return ""
    return state.find_instance(url or None).key_env


def _say_away(endpoint: Endpoint, why: str, *, written: bool) -> None:
    """A warning that the server does not answer; Outside where a client would be pointed at it."""
    problem = target.no_answer_error(endpoint, why)
    if written:
        problem.hint = "is the server up? Nothing was written"
        raise problem
    stderr_console().print(f"warning: {problem.message}; {problem.hint}", markup=False, soft_wrap=True)


def _context(given: str, url: str, served: ServedLimits) -> tuple[int, tuple[str, ...]]:
    """What was given, what the server says, what the recipe was planned for, or a modest guess; and notes on it."""
    if given:
        return flags.parse_value("--context", given, parse_tokens), ()
    if served.context:
        return served.context, (f"context {served.context:,} ({served.source})",)
    missing = "answer, so its context is not known" if served.problem else "say its context"
    planned = codec.read_toml(Recipe, Path(url)).context if url.endswith(".toml") else 0
    if planned:
        return planned, (f"the server does not {missing}; {planned:,} is the recipe's",)
    guess = connecting.DEFAULT_CONTEXT
    return guess, (f"the server does not {missing}; {guess:,} is assumed; `--context` sets it",)
