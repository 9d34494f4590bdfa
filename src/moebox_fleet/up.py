"""`moebox fleet up`: start the members and a router in front of them; list and stop them.

Records of running fleets are kept in the state folder, for ps, verify, bench and down.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, http, loose
from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, ExternalError, refuse_if, suggest_names
from moebox.files import write_atomic
from moebox.flows.recipes import load_recipe
from moebox.serve import preflight, state
from moebox.serve.session import EngineSession, launch_engine, prepare_launch
from moebox.serve.state import TWIN_KEY, find_key, keep_key, make_key
from moebox.serve.stop import stop_instance as stop_instance
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox_fleet import routers
from moebox_fleet.file import Member, RouterSettings, read_fleet, recipe_path, served_name
from moebox_fleet.program import GuardedProgram, ProgramConfig, stop_all


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    name: str
    base_url: str
    engine: str
    context: int
    instance: str = ""  # "" for a url
    key_env: str = ""
    box: str = ""

    @property
    def root(self) -> str:
        """The server's URL without /v1."""
        return self.base_url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    name: str
    file: str
    model: str
    router: RouterSettings
    instance: str  # the router's
    base_url: str
    members: tuple[MemberRecord, ...]
    started: float
    twins: bool = False

    def matches_name(self, name: str) -> bool:
        """Whether `name` is its name, the file it was started from, or empty."""
        file = str(Path(name).resolve()) if name.endswith(".toml") else ""
        return name in ("", self.name) or file == self.file

    @property
    def context(self) -> int:
        """The shortest context of its members; 0 if one is unknown."""
        return min((member.context for member in self.members), default=0)

    @property
    def engine(self) -> str:
        """The engine of its members, or "" if they differ."""
        kinds = {member.engine for member in self.members}
        return kinds.pop() if len(kinds) == 1 else ""

    def key(self, variable: str) -> str | None:
        """The key in a variable, or the one that moebox made for the servers of this fleet that use it."""
        parts = ((self.router.key_env, self.base_url), *((each.key_env, each.base_url) for each in self.members))
        return next(filter(None, (find_key(variable, url) for named, url in parts if named == variable)), None)

    def endpoint(self) -> Endpoint:
        """The router's endpoint, with the members' engine and context."""
        key = self.key(self.router.key_env)
        found = endpoint_from_url(self.base_url, self.model, key=key, engine=self.engine)
        return replace(found, router=self.router.kind, context=self.context)

    def member_endpoint(self, member: MemberRecord) -> Endpoint:
        key = self.key(member.key_env)
        return endpoint_from_url(member.base_url, self.model, key=key, engine=member.engine)


def fleets_dir() -> Path:
    return state.state_dir() / "fleets"


def save_fleet(record: FleetRecord) -> FleetRecord:
    write_atomic(fleets_dir() / f"{record.name}.json", codec.to_json(record))
    return record


def list_fleets() -> list[FleetRecord]:
    paths = sorted(fleets_dir().glob("*.json"))
    return [codec.decode(FleetRecord, codec.load_json(path), where=str(path)) for path in paths]


def find_fleet(name: str) -> FleetRecord:
    """Find a fleet by its name or file, or the only one if `name` is empty."""
    known = list_fleets()
    if not known:
        raise ExternalError("no fleet is running", hint="`moebox fleet up FILE` starts one")
    matching = [fleet for fleet in known if fleet.matches_name(name)]
    hint = suggest_names(name, [fleet.name for fleet in known])
    refuse_if(not matching, f"no fleet called {name!r} is running", hint=hint)
    hint = ", ".join(fleet.name for fleet in matching)
    refuse_if(len(matching) > 1, f"{len(matching)} fleets are running: name one", hint=hint)
    return matching[0]


PATIENCE_S = 900.0
ROUTER_S = 180.0  # for a router to start and find its members; LiteLLM imports for most of a minute
ASK_S = 30.0
StartedMember = EngineSession | GuardedProgram


class RunningFleet:
    def __init__(self, record: FleetRecord, members: list[StartedMember], router: GuardedProgram) -> None:
        self.record, self.members, self.router = record, members, router

    def detach(self) -> None:
        """Keep everything running after this process ends."""
        for part in (*self.members, self.router):
            part.detach()

    def wait(self) -> None:
        """Wait until the router ends and raise ExternalError."""
        while self.router.is_alive:
            time.sleep(0.5)
        text = f"{self.record.router.kind} ended: {self.router.last_log_line()}"
        raise ExternalError(text, hint=f"log: {self.router.log}")

    def stop(self) -> None:
        """Stop the router, then the members, including those that were restarted."""
        latest = next((fleet for fleet in list_fleets() if fleet.name == self.record.name), self.record)
        stop_all([self.router.stop, *(member.stop for member in self.members), lambda: stop_fleet(latest)])


def find_router_program(router: RouterSettings) -> str:
    """The Python that runs the router. Raise ExternalError if it is missing or untested."""
    known = routers.router_traits()[router.kind]
    install = f"pip install '{known.package}=={known.tested}'"
    hint = f"{install}, and name that environment in router.python"
    missing = ExternalError(f"{router.kind} is not installed here", hint=hint)
    if router.python:
        path = Path(router.python).expanduser()
        path = path / "bin" / "python" if path.is_dir() else path
        refuse_if(not path.exists(), f"router.python: {path} not found", hint="a virtual environment, or a Python")
        python = str(path)
    else:
        script = shutil.which(router.kind)
        if script is None:
            raise missing
        python = preflight.find_interpreter(script)
    version = preflight.command_output(preflight.version_command(python, known.package))
    if not version:
        raise missing
    if not any(f"{version}.".startswith(f"{wanted}.") for wanted in known.versions):
        text = f"{router.kind} {version} is installed, and moebox knows {', '.join(known.versions)}"
        raise ExternalError(text, hint=install)
    return python


def start_fleet(
    path: Path, *, twins: bool = False, patience_s: float = PATIENCE_S, notify: Notify = lambda _: None
) -> RunningFleet:
    """Start every member that has a recipe, then the router. Stop everything if any of it fails."""
    fleet = read_fleet(path)
    if any(record.name == fleet.name for record in list_fleets()):
        raise BadInput(f"a fleet called {fleet.name} is running already", hint=f"`moebox fleet down {fleet.name}`")
    hint = "[[member]] in the fleet file"
    refuse_if(not fleet.member, f"{path}: a fleet without members has nothing to start", hint=hint)
    if twins:  # routers that pass on the client's key need the same key for all members
        fleet = replace(fleet, router=replace(fleet.router, key_env=fleet.router.key_env or TWIN_KEY))
    recipes = {member.name: load_recipe(recipe_path(path, member)) for member in fleet.member if member.recipe}
    model = served_name(fleet.member, recipes)
    python = find_router_program(fleet.router)
    key = os.environ.get(TWIN_KEY) or make_key()  # for twins whose recipe names none
    started: list[StartedMember] = []
    stops: list[Callable[[], object]] = []  # the router's first
    try:
        members: list[MemberRecord] = []
        for member in fleet.member:
            if not member.recipe:
                members.append(_find_member(member, model))
                continue
            recipe = recipes[member.name]
            if twins and not recipe.listen.key_env:
                recipe = replace(recipe, listen=replace(recipe.listen, key_env=fleet.router.key_env))
            name = f"{fleet.name}-{member.name}"
            part = start_member(name, replace(recipe.with_port(0), name=name), member.box, twins=twins, key=key)
            started.append(part)
            stops.append(part.stop)
            member_record = MemberRecord(
                name=member.name,
                base_url=part.endpoint.base_url,
                engine=part.endpoint.engine,
                context=recipe.context,
                instance=part.instance.id,
                key_env=recipe.listen.key_env,
                box=member.box,
            )
            members.append(member_record)
            notify(f"{member.name}: starting at {part.endpoint.server_url}")
        for part in started:
            wait_for_member(part, patience_s)
        for ready in members:
            notify(f"{ready.name}: ready")
        router = start_router(fleet.name, fleet.router, model, members, python)
        stops.insert(0, router.stop)
        record = FleetRecord(
            name=fleet.name,
            file=str(path.resolve()),
            model=model,
            router=replace(fleet.router, port=router.config.port),
            instance=router.instance.id,
            base_url=router.endpoint.base_url,
            members=tuple(members),
            started=time.time(),
            twins=twins,
        )
        return RunningFleet(save_fleet(record), started, router)
    except BaseException:
        stop_all(stops)
        raise


def start_member(name: str, recipe: Recipe, box: str, *, twins: bool, key: str = "", port: int = 0) -> StartedMember:
    """Start a member in its own run folder. A twin listens on `port`, an engine on the recipe's port.

    The variable that the recipe names holds a twin's key; `key` is used if that is TWIN_KEY.
    """
    run = Run.create(name)
    if not twins:
        return launch_engine(prepare_launch(deploy(recipe), name=run.id), run)
    port = port or preflight.find_free_port()
    path = run.write_file("twin.toml", codec.to_toml(recipe))
    variable = recipe.listen.key_env
    key = key if variable == TWIN_KEY else _require_key(variable, name)
    argv = (sys.executable, "-m", "moebox", "twin", str(path), "--port", str(port), "--key-env", variable)
    config = ProgramConfig(
        title=name,
        kind="twin",
        argv=(*argv, *(("--box", box) if box else ())),
        endpoint=endpoint_from_url(f"127.0.0.1:{port}", recipe.served_name, key=key, engine="twin"),
        host="127.0.0.1",
        port=port,
        secrets={variable: key},
        key_env=variable,
    )
    return _store_key(GuardedProgram(config, run))


def _store_key(program: GuardedProgram) -> GuardedProgram:
    """Store the program's key for this user's other commands, if moebox made it."""
    if program.config.key_env == TWIN_KEY:
        try:
            keep_key(program.config.port, program.config.secrets[TWIN_KEY], pid=program.guard.pid)
        except BaseException:
            program.stop()
            raise
    return program


def wait_for_member(part: StartedMember, patience_s: float) -> None:
    if isinstance(part, EngineSession):
        part.wait_ready(patience_s=patience_s)
    else:
        health = f"{part.endpoint.server_url}/health"
        part.wait_until_ready(lambda: http.get(health, timeout_s=2.0).ok, patience_s=patience_s)


def _find_member(member: Member, model: str) -> MemberRecord:
    """The record of a member that runs already. Raise unless it answers and serves the model."""
    key = _require_key(member.key_env, member.name) if member.key_env else None
    endpoint = endpoint_from_url(member.url, model, key=key)
    reply = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers)
    if not reply.ok:
        problem = http.error_text(reply.text)
        raise ExternalError(f"{member.name}: {member.url} does not answer: {problem}", hint="is it up?")
    served = {loose.get_text(row, "id"): row for row in loose.get_objects(reply.json(), "data")}
    names = ", ".join(served) or "nothing"
    refuse_if(model not in served, f"{member.name}: {member.url} serves {names}, the fleet {model}")
    context = member.context or int(loose.get_number(served[model], "max_model_len", "meta.n_ctx") or 0)
    return MemberRecord(
        name=member.name, base_url=endpoint.base_url, engine=member.engine, context=context, key_env=member.key_env
    )


def _require_key(variable: str, owner: str, url: str = "") -> str:
    """The key in an environment variable, or the one that moebox made for the server at `url`."""
    key = find_key(variable, url)
    if not key:
        raise BadInput(f"{owner}: the environment variable {variable} holds no key", hint=f"export {variable}=…")
    return key


def start_router(
    name: str, router: RouterSettings, model: str, members: Sequence[MemberRecord], python: str
) -> GuardedProgram:
    """Start the router in front of `members`, and wait until it answers a chat."""
    port = router.port or preflight.find_free_port(router.host)
    router = replace(router, port=port, metrics_port=router.metrics_port or preflight.find_free_port(router.host))
    made = router.key_env if router.key_env == TWIN_KEY else ""  # members without a key get it too
    router_members = tuple(
        routers.RouterMember(name=member.name, root=member.root, key_env=member.key_env or made) for member in members
    )
    start = routers.router_start(router, model, router_members)
    run = Run.create(f"{name}-router")
    for file, text in start.files.items():
        run.write_file(file, text)
    addresses = {member.key_env: member.base_url for member in members}
    secrets = {
        variable: _require_key(variable, router.kind, addresses.get(variable, "")) for variable in start.key_envs
    }
    package = routers.router_traits()[router.kind].package
    host = "127.0.0.1" if router.host == "0.0.0.0" else router.host  # noqa: S104
    config = ProgramConfig(
        title=f"{name}-router",
        kind=router.kind,
        argv=(python, *start.argv) if package else start.argv,
        endpoint=endpoint_from_url(f"{host}:{router.port}", model, key=secrets.get(router.key_env)),
        host=router.host,
        port=router.port,
        env=start.env,
        secrets=secrets,
        key_env=router.key_env,
        ports=() if package == "litellm" else (routers.metrics_port(router),),
        cwd=str(run.path),
    )
    program = _store_key(GuardedProgram(config, run))
    program.wait_until_ready(lambda: answers_chat(config.endpoint), patience_s=ROUTER_S, every_s=0.3)
    return program


def answers_chat(endpoint: Endpoint) -> bool:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}
    url = f"{endpoint.base_url}/chat/completions"
    return http.post_json(url, body, headers=endpoint.headers, timeout_s=ASK_S).ok


def fleet_status(record: FleetRecord) -> list[dict[str, str]]:
    """The kind, URL and status of the router and of each member."""
    known = {instance.id: instance.status for instance in state.list_instances()}
    status = known.get(record.instance, "gone")
    rows = [{"name": "router", "kind": record.router.kind, "url": record.base_url, "status": status}]
    for member in record.members:
        endpoint = record.member_endpoint(member)
        status = known.get(member.instance, "gone") if member.instance else "found"
        if not http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=3.0).ok:
            status += ", does not answer"
        rows.append({"name": member.name, "kind": member.engine or "?", "url": member.base_url, "status": status})
    return rows


def stop_fleet(record: FleetRecord) -> list[str]:
    """Stop the router, then every member that moebox started. Return their names."""
    known = state.instances_by_id()
    stopped = []
    for name, instance in (("router", record.instance), *((member.name, member.instance) for member in record.members)):
        if instance in known:
            stop_instance(known[instance])
            stopped.append(name)
    (fleets_dir() / f"{record.name}.json").unlink(missing_ok=True)
    return stopped
