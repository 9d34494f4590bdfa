"""Whom a command talks to: a URL, a recipe, or the name of an engine that moebox started."""

import re
from pathlib import Path

from moebox import http
from moebox.cli import flags
from moebox.core import validation
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint, endpoint_from_url
from moebox.core.recipe import Recipe
from moebox.errors import ExternalError, refuse_if
from moebox.stream import sockets

MODEL_HINT = "`--model NAME` says which model is meant"
_ERRNO = re.compile(r"\[Errno -?\d+\] ")  # what Python puts before the system's own words


def find_endpoint(
    target: str = "", *, model: str = "", key_env: str = "", insecure: bool = False, ca_file: str = ""
) -> Endpoint:
    """The endpoint meant; the key is read from the environment variable named, or is one that moebox made.

    `insecure` and `ca_file` say which certificates are trusted while its model's name is asked for.
    """
    found = _endpoint(target, model=model, key_env=key_env)
    if not found.base_url.startswith("https://"):
        flags.refuse_without("an https:// URL", insecure=insecure, ca_file=ca_file)
    if insecure:
        flags.refuse_unused("--insecure accepts any certificate", ca_file=ca_file)
    return found if found.model else _only_model(found, insecure=insecure, ca_file=ca_file)


def is_url(target: str) -> bool:
    """Whether a target is an address, with or without its scheme and port, and no name."""
    return ":" in target or target.startswith("localhost")


def no_answer_error(endpoint: Endpoint, reason: str) -> ExternalError:
    """For a server that gives no answer; `why` as the system says it."""
    hint = http.WRITE_HTTP if http.PLAIN_HTTP in reason else "is the server up?"
    return ExternalError(f"{endpoint.base_url}: {_ERRNO.sub('', reason)}", hint=hint)


def _endpoint(target: str, *, model: str, key_env: str) -> Endpoint:
    if target.endswith(".toml"):
        return _of_recipe(validation.read_recipe(Path(target)), model=model, key_env=key_env)
    if is_url(target):
        return _made(target, model, key_env, "")
    from moebox.serve import state

    found = state.find_instance(target or None)
    return _made(found.base_url, model or found.model, key_env or found.key_env, found.engine)


def _of_recipe(recipe: Recipe, *, model: str, key_env: str) -> Endpoint:
    """Where a recipe listens; a port that was chosen when it started is asked of its engine."""
    if not recipe.listen.port:
        return _endpoint(recipe.name, model=model, key_env=key_env)
    url = f"http://{recipe.listen.host}:{recipe.listen.port}"
    return _made(url, model or recipe.served_name, key_env or recipe.listen.key_env, recipe.engine)


def _made(url: str, model: str, key_env: str, engine: str) -> Endpoint:
    password = "@" in url.rpartition("://")[2].partition("/")[0]
    hint = "leave it out, and name the variable that holds it: --key-env NAME"
    refuse_if(password, "a password in a URL would be written into run folders", hint=hint)
    from moebox.serve.keys import find_key

    key = find_key(key_env, url)
    refuse_if(key_env and not key, f"the environment variable {key_env} holds no key", hint=f"export {key_env}=…")
    return endpoint_from_url(url, model, key=key, engine=engine)


def _only_model(endpoint: Endpoint, *, insecure: bool, ca_file: str) -> Endpoint:
    """The endpoint with the one model it serves; BadInput when that is not clear."""
    names = _served(endpoint, insecure=insecure, ca_file=ca_file)
    several = f"{endpoint.base_url} serves {len(names)} models: {', '.join(names[:6])}"
    refuse_if(len(names) != 1, several, hint=MODEL_HINT)
    return endpoint_from_url(endpoint.base_url, names[0], key=endpoint.key, engine=endpoint.engine)


def _served(endpoint: Endpoint, *, insecure: bool, ca_file: str) -> list[str]:
    """The models that a server lists; Outside where it does not."""
    target = sockets.address_from_url(endpoint.base_url, insecure=insecure, ca_file=ca_file)
    tls = sockets.tls_context(target) if target.tls else None
    reply = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, tls=tls)
    if not reply.status:
        raise no_answer_error(endpoint, reply.text)
    if reply.status in AUTH_STATUSES:
        raise ExternalError(f"{endpoint.base_url}: refused the key ({reply.status})", hint=KEY_HINT)
    try:
        return [str(item["id"]) for item in reply.json()["data"]]
    except (KeyError, TypeError):
        raise ExternalError(f"{endpoint.base_url}/models gives no list of models", hint=MODEL_HINT) from None
