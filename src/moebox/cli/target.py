"""The endpoint that a command uses (a URL, a recipe or a running engine), and the run that keeps its results."""

import os
import re
from dataclasses import replace
from pathlib import Path

from moebox import http
from moebox.cli.output import print_note
from moebox.core import validation
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint, endpoint_from_url, faster_than_forecast
from moebox.errors import BadInput, ExternalError, UnknownName, refuse_if
from moebox.escape import one_line
from moebox.serve import state
from moebox.store import Run
from moebox.stream import sockets
from moebox.stream.limits import served_limits

MODEL_HINT = "name the model with `--model NAME`"
_ERRNO = re.compile(r"\[Errno -?\d+\] ")  # Python's prefix to the system's error text


def find_endpoint(
    target: str = "", *, model: str = "", key_env: str = "", insecure: bool = False, ca_file: str = ""
) -> Endpoint:
    """Find the endpoint; its key comes from the variable `key_env` or is one that moebox made.

    `insecure` and `ca_file` set which certificates are trusted while the server's models are listed.
    """
    engine = log = ""
    if target.endswith(".toml"):
        recipe = validation.read_recipe(Path(target))
        target, engine = recipe.name, recipe.engine
        if recipe.listen.port:  # otherwise the engine chose one when it started
            target = f"http://{recipe.listen.host}:{recipe.listen.port}"
            model, key_env = model or recipe.served_name, key_env or recipe.listen.key_env
    if not is_url(target):
        try:
            found = state.find_instance(target or None)
        except UnknownName as problem:
            raise BadInput(f"{target!r} is not a URL, a recipe file or a running engine", hint=problem.hint) from None
        log = str(Path(found.run) / "engine.log")
        target, engine = found.base_url, found.engine
        model, key_env = model or found.model, key_env or found.key_env
    password = "@" in target.rpartition("://")[2].partition("/")[0]
    hint = "remove it, and name the variable that holds it: --key-env NAME"
    refuse_if(password, "a password in a URL would be written into run folders", hint=hint)
    key = state.find_key(key_env, target)
    refuse_if(key_env and not key, f"the environment variable {key_env} holds no key", hint=f"export {key_env}=…")
    key_env = key_env if key_env in os.environ else ""
    endpoint = replace(endpoint_from_url(target, model, key=key, engine=engine), log=log, key_env=key_env)
    if not endpoint.base_url.startswith("https://"):
        refuse_if(insecure or ca_file, "endpoint.insecure and endpoint.ca_file need an https:// URL")
    refuse_if(insecure and ca_file, "endpoint.insecure accepts any certificate: it does not take endpoint.ca_file")
    if endpoint.model:
        return endpoint
    names = _list_models(endpoint, insecure=insecure, ca_file=ca_file)
    several = f"{endpoint.base_url} serves {len(names)} models: {', '.join(names[:6]) or 'its list is empty'}"
    refuse_if(len(names) != 1, several, hint=MODEL_HINT)
    return replace(endpoint, model=names[0])


def is_url(target: str) -> bool:
    """Return whether a target is an address, with or without scheme and port, and not a name."""
    return ":" in target or target.startswith("localhost")


def no_answer_error(endpoint: Endpoint, reason: str) -> ExternalError:
    """Return the error for a server that does not answer; `reason` is the system's text."""
    unknown = "not known" in reason or "resolution" in reason
    hint = "is the host's name right?" if unknown else "is the server up?"
    hint = http.WRITE_HTTP if http.PLAIN_HTTP in reason else http.TRUST_HINT if "CERTIFICATE" in reason else hint
    return ExternalError(f"{endpoint.base_url}: {_ERRNO.sub('', reason)}", hint=hint)


def _list_models(endpoint: Endpoint, *, insecure: bool, ca_file: str) -> list[str]:
    tls = sockets.tls_context(sockets.address_from_url(endpoint.base_url, insecure=insecure, ca_file=ca_file))
    reply = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, tls=tls)
    if not reply.status:
        raise no_answer_error(endpoint, reply.text)
    if "`moebox ui`" in reply.text:
        text = f"{endpoint.base_url} is moebox's page, not an OpenAI-compatible server"
        raise ExternalError(text, hint="`moebox ps` lists the engines with their addresses")
    if reply.status in AUTH_STATUSES:
        refusal = "refused the key" if endpoint.key else "requires a key"
        raise ExternalError(f"{endpoint.base_url}: {refusal} ({reply.status})", hint=KEY_HINT)
    if reply.status == 503:  # llama-server while it loads; proxies without a live server
        raise ExternalError(f"{endpoint.base_url}/models: {reply.error}", hint="is it still loading its model?")
    try:
        return [str(item["id"]) for item in reply.json()["data"]]
    except (KeyError, TypeError):
        text = f"{endpoint.base_url}/models does not list models ({one_line(reply.error, 100)})"
        raise ExternalError(f"{text}: is this an OpenAI-compatible server?", hint=MODEL_HINT) from None


def warn_simulation(simulation: str) -> None:
    """Print what the header of a simulation means; nothing if there is none."""
    if simulation:
        meaning = faster_than_forecast(simulation) or "its speed is a forecast, and its text means nothing"
        print_note((f"this endpoint is a simulation: {meaning}", "yellow"))


def create_run(kind: str, endpoint: Endpoint) -> Run:
    """Create a run for the results, marked if the endpoint is a simulation."""
    simulation = served_limits(endpoint).simulation
    warn_simulation(simulation)
    return Run.create(f"{kind}-{endpoint.model}", simulation=bool(simulation))


def open_run(name: str, endpoint: Endpoint) -> Run:
    """Open the run called `name`; BadInput if it is of another model, or another moebox process works on it."""
    from moebox.runs.listing import summarize_run

    run = Run.open(name)
    summary = summarize_run(run)
    text = f"{run.id} is about {summary.model}, and {endpoint.base_url} serves {endpoint.model}"
    refuse_if(summary.model not in ("", endpoint.model), text, hint="without --run the results get a new run")
    working = run.is_locked and summary.unfinished_part and run.read_pipeline()  # a running engine holds the lock too
    text = f"`moebox run` is working on {run.id}: {summary.unfinished_part}"
    refuse_if(working, text, hint="leave --run out, or wait until it has ended")
    shared = Run.open_shared(name)
    mixed = served_limits(endpoint).simulation and not summary.simulation
    refuse_if(mixed, f"{run.id} is of a real engine, and {endpoint.base_url} is a simulation")
    return shared
