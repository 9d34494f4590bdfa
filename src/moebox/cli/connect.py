"""`moebox connect`: point a client at a live endpoint."""

import sys
from pathlib import Path

from moebox import codec
from moebox.cli import flags
from moebox.cli.flags import AsJson, Switch
from moebox.cli.output import print_json, print_lines, print_note
from moebox.cli.target import find_endpoint, is_url, no_answer_error, warn_simulation
from moebox.core.quirks import engine_quirks
from moebox.core.recipe import Recipe
from moebox.escape import escape_invisible
from moebox.loose import Document
from moebox.serve import connect as connecting
from moebox.serve import state
from moebox.serve.state import TWIN_KEY
from moebox.stream.limits import ServedLimits, served_limits
from moebox.units import parse_tokens


def connect(
    client: connecting.ClientName,
    url: str = "",
    *,
    model: str = "",
    key_env: str = "",
    context: str = "",
    vision: Switch = False,
    write: Switch = False,
    check: Switch = False,
    json: AsJson = False,
) -> int:
    """Print CLIENT's configuration for a live endpoint, write it, or try it.

    Args:
        client: The client to configure.
        url: The endpoint: a URL, a recipe file, or an engine that `moebox ps` lists. Default: the only running one.
        model: The served model name. Default: what the server lists.
        key_env: The environment variable that holds the key. The key itself is written nowhere.
        context: Context length to configure, such as 64k. Default: what the server reports.
        vision: Configure the client to send images.
        write: Merge into the client's own settings file; everything else in it is kept, and a backup is made.
        check: Make one real call the way this client does.
    """
    if client not in connecting.CLIENTS_WITH_CONTEXT:
        flags.refuse_unused(f"{client} has no setting for it", context=context)
    if client not in connecting.CLIENTS_WITH_VISION:
        flags.refuse_unused(f"{client} sends images without a setting", vision=vision)
    endpoint = find_endpoint(url, model=model, key_env=key_env)
    recipe = codec.read_toml(Recipe, Path(url)) if url.endswith(".toml") else None
    served = served_limits(endpoint)
    limit, notes = _find_context(context, recipe, served)
    if served.models and endpoint.model not in served.models:
        listed = ", ".join(f"`{name}`" for name in served.models[:6])
        notes.append(f"the server lists {listed} and may refuse `{endpoint.model}`")
    variable = key_env or (recipe.listen.key_env if recipe else "")
    if not variable and recipe is None and not is_url(url):
        variable = state.find_instance(url or None).key_env
    if endpoint.key and not variable:
        variable = TWIN_KEY
        notes.append(f"set {TWIN_KEY} to the key that `moebox twin` printed")
    live = connecting.LiveModel(endpoint=endpoint, key_env=variable, context=limit, vision=vision)
    settings = connecting.client_settings(client, live)
    warn_simulation(served.simulation)
    if served.problem:
        problem = no_answer_error(endpoint, served.problem)
        if write and settings.path:
            problem.hint = "is the server up? Nothing was written"
            raise problem
        print_note(f"warning: {problem.message}; {problem.hint}")
    document: Document = {"client": client, "base_url": endpoint.base_url, "model": endpoint.model, "context": limit}
    document |= {"output": connecting.max_output_tokens(live), "shown": settings.text, "path": settings.path}
    document["settings"] = settings.changes
    if write:
        path, backup = connecting.write_settings(settings)
        print_note(f"wrote {path}" + (f" (backup: {backup.name})" if backup else ""))
        document |= {"written": path, "backup": backup}
    elif not json:
        sys.stdout.write(escape_invisible(settings.text) + "\n")
    quirks = {f"{quirk.does}: {quirk.client}": quirk.check for quirk in engine_quirks(endpoint.engine)}
    document["quirks"] = list(quirks)
    unused = {"anthropic", "responses"} - {connecting.OTHER_API.get(client)}
    used = (text for text, check in quirks.items() if check not in unused)
    print_lines((f"note: {note}" for note in (*notes, *settings.notes, *used)), stderr=True)
    if check:
        call = connecting.call_as_client(client, endpoint)
        print_note(f"works: {call.protocol}: {call.evidence}")
        document["check"] = call
    if json:
        print_json(document)
    return 0


def _find_context(given: str, recipe: Recipe | None, served: ServedLimits) -> tuple[int, list[str]]:
    """Return the context that was given, that the server reports, that the recipe has, or a small one; with notes."""
    if given:
        tokens = flags.parse_value("--context", given, parse_tokens)
        beyond = served.context and tokens > served.context
        return tokens, [f"the server refuses more than {served.context:,} tokens ({served.source})"] if beyond else []
    if served.context:
        return served.context, [f"context {served.context:,} ({served.source})"]
    missing = "answer, so its context is not known" if served.problem else "report its context"
    if recipe and recipe.context:
        return recipe.context, [f"the server does not {missing}; {recipe.context:,} is the recipe's"]
    assumed = connecting.DEFAULT_CONTEXT
    return assumed, [f"the server does not {missing}; {assumed:,} is assumed; `--context` sets it"]
