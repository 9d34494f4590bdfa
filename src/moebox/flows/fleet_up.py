"""`moebox fleet up`: members from their recipes, a router in front, one endpoint; and all of it down again."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, http
from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint, endpoint_of
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, Outside, suggest
from moebox.files import write_atomic
from moebox.fleet import routers
from moebox.fleet.file import Fleet, Member, RouterSettings, read, recipe_path, served_name
from moebox.serve import preflight, state
from moebox.serve.program import Program, ProgramOrder, stop_all
from moebox.serve.recipes import read_recipe
from moebox.serve.session import Session, launch, prepare
from moebox.serve.stop import stop as stop_instance
from moebox.store import Run

PATIENCE_S = 900.0
ROUTER_S = 180.0  # for a router to be up and to have noticed members that are; LiteLLM imports for most of a minute
ASK_S = 30.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member as it was started or found."""

    name: str
    base_url: str
    engine: str
    context: int
    instance: str = ""  # moebox's own; "" for a url
    key_env: str = ""
    box: str = ""

    @property
    def root(self) -> str:
        """The server itself, above /v1."""
        return self.base_url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """A fleet that was started; kept in the state folder so that ps, verify, bench and down find it."""

    name: str
    file: str
    model: str
    router: RouterSettings
    instance: str  # the router's
    base_url: str
    members: tuple[MemberRecord, ...]
    started: float
    twins: bool = False

    @property
    def context(self) -> int:
        """Tokens that every member takes; 0 when one does not say."""
        return min((member.context for member in self.members), default=0)

    @property
    def engine(self) -> str:
        """The engine behind the router; "" when members differ."""
        kinds = {member.engine for member in self.members}
        return kinds.pop() if len(kinds) == 1 else ""

    def endpoint(self) -> Endpoint:
        """The fleet as clients see it, with what a router hides."""
        key = os.environ.get(self.router.key_env) if self.router.key_env else None
        found = endpoint_of(self.base_url, self.model, key=key, engine=self.engine)
        return replace(found, router=self.router.kind, context=self.context)

    def member_endpoint(self, member: MemberRecord) -> Endpoint:
        """One member, past the router."""
        key = os.environ.get(member.key_env) if member.key_env else None
        return endpoint_of(member.base_url, self.model, key=key, engine=member.engine)


class Running:
    """A fleet that this process started."""

    def __init__(self, record: FleetRecord, members: list[Session | Program], router: Program) -> None:
        self.record, self.members, self.router = record, members, router

    def detach(self) -> None:
        """Let everything go on without us."""
        for part in (*self.members, self.router):
            part.detach()

    def wait(self) -> None:
        """Until the router ends; members that die are told of by `fleet ps`."""
        while self.router.alive:
            time.sleep(0.5)
        raise Outside(f"{self.record.router.kind} ended: {self.router.last_words()}", hint=f"log: {self.router.log}")

    def stop(self) -> None:
        """Router first, then the members; also those that were started again meanwhile."""
        latest = next((one for one in records() if one.name == self.record.name), self.record)
        stop_all([self.router.stop, *(member.stop for member in self.members), lambda: _discard(down(latest))])


# -- records


def fleets_dir() -> Path:
    """Where fleets that run are noted."""
    return state.state_dir() / "fleets"


def save(record: FleetRecord) -> FleetRecord:
    """Note the fleet, whole or not at all."""
    write_atomic(fleets_dir() / f"{record.name}.json", codec.to_json(record))
    return record


def forget(name: str) -> None:
    """The fleet is gone."""
    (fleets_dir() / f"{name}.json").unlink(missing_ok=True)


def records() -> list[FleetRecord]:
    """Fleets that were started, by name."""
    paths = sorted(fleets_dir().glob("*.json")) if fleets_dir().is_dir() else []
    return [codec.decode(FleetRecord, codec.load_json(path), where=str(path)) for path in paths]


def find(name: str) -> FleetRecord:
    """The fleet called so, started from that file, or the only one."""
    known = records()
    path = str(Path(name).resolve()) if name.endswith(".toml") else ""
    found = [one for one in known if not name or name == one.name or path == one.file]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(f"{len(found)} fleets are running: say which", hint=", ".join(one.name for one in found))
    if not known:
        raise Outside("no fleet is running", hint="`moebox fleet up FILE` starts one")
    raise BadInput(f"no fleet called {name!r} is running", hint=suggest(name, [one.name for one in known]))


# -- starting


def interpreter(router: RouterSettings) -> str:
    """What the router is run with; Outside when it is missing or of a version nobody has tried."""
    known = routers.traits()[router.kind]
    missing = Outside(
        f"{router.kind} is not installed here",
        hint=f"pip install '{known.package}=={known.tested}', and name that environment in router.python"
        if known.package
        else f"put {router.kind} on PATH",
    )
    if not known.package:
        found = shutil.which(router.kind)
        if found is None:
            raise missing
        return found
    python = _python(router, missing)
    ask = f"import importlib.metadata as m; print(m.version({known.package!r}))"
    version = preflight.said([python, "-c", ask])
    if not version:
        raise missing
    if not any(version == wanted or version.startswith(f"{wanted}.") for wanted in known.versions):
        raise Outside(
            f"{router.kind} {version} is installed, and moebox knows {', '.join(known.versions)}",
            hint=f"pip install '{known.package}=={known.tested}'",
        )
    return python


def _python(router: RouterSettings, missing: Outside) -> str:
    if router.python:
        path = Path(router.python).expanduser()
        path = path / "bin" / "python" if path.is_dir() else path
        if not path.exists():
            raise BadInput(f"router.python: {path} is not there", hint="a virtual environment, or a Python")
        return str(path)
    script = shutil.which(router.kind)
    if script is None:
        raise missing
    return preflight.interpreter(script)


def up(path: Path, *, twins: bool = False, patience_s: float = PATIENCE_S, tell: Tell = lambda _: None) -> Running:
    """Start every member that has a recipe, then the router; nothing is left when any of it fails."""
    fleet = read(path)
    if any(record.name == fleet.name for record in records()):
        raise BadInput(f"a fleet called {fleet.name} is running already", hint=f"`moebox fleet down {fleet.name}`")
    if not fleet.member:
        raise BadInput(f"{path}: a fleet without members has nothing to start", hint="[[member]] in the fleet file")
    recipes = {one.name: read_recipe(recipe_path(path, one)) for one in fleet.member if one.recipe}
    model = served_name(fleet.member, recipes)
    python = interpreter(fleet.router)
    started: list[Session | Program] = []
    router: Program | None = None
    try:
        found: list[MemberRecord] = []
        for member in fleet.member:
            if member.recipe:
                part = _start_member(fleet, member, recipes[member.name], twins=twins)
                started.append(part)
                found.append(_record(member, recipes[member.name], part))
                tell(f"{member.name}: starting at {part.endpoint.root}")
            else:
                found.append(_found(member, model))
        for part in started:
            wait_ready(part, patience_s)
        for member_record in found:
            tell(f"{member_record.name}: ready")
        router = start_router(fleet.name, fleet.router, model, tuple(found), python)
        record = FleetRecord(
            name=fleet.name,
            file=str(path.resolve()),
            model=model,
            router=replace(fleet.router, port=router.order.port),
            instance=router.instance.id,
            base_url=router.endpoint.base_url,
            members=tuple(found),
            started=time.time(),
            twins=twins,
        )
        return Running(save(record), started, router)
    except BaseException:
        stop_all([*([router.stop] if router else []), *(part.stop for part in started)])
        raise


def _start_member(fleet: Fleet, member: Member, recipe: Recipe, *, twins: bool) -> Session | Program:
    name = f"{fleet.name}-{member.name}"
    recipe = replace(recipe, name=name, listen=replace(recipe.listen, port=0))
    run = Run.create(name)
    if twins:
        return start_twin(recipe, member.box, run, title=name)
    return launch(prepare(deploy(recipe), name=run.id), run)


def start_twin(recipe: Recipe, box: str, run: Run, *, title: str, port: int = 0) -> Program:
    """The member's box as a simulation, under a guard."""
    port = port or preflight.free_port()
    path = run.write("twin.toml", codec.to_toml(recipe))
    argv = (sys.executable, "-m", "moebox", "twin", str(path), "--port", str(port))
    order = ProgramOrder(
        title=title,
        kind="twin",
        argv=(*argv, *(("--box", box) if box else ())),
        endpoint=endpoint_of(f"127.0.0.1:{port}", recipe.served_name, engine="twin"),
        host="127.0.0.1",
        port=port,
    )
    return Program(order, run)


def wait_ready(part: Session | Program, patience_s: float) -> None:
    """Until the member answers."""
    if isinstance(part, Session):
        part.wait_ready(patience_s=patience_s)
    else:
        health = f"{part.endpoint.root}/health"
        part.wait_until(lambda: http.get(health, timeout_s=2.0).ok, patience_s=patience_s)


def _record(member: Member, recipe: Recipe, part: Session | Program) -> MemberRecord:
    return MemberRecord(
        name=member.name,
        base_url=part.endpoint.base_url,
        engine=part.endpoint.engine,
        context=recipe.context,
        instance=part.instance.id,
        key_env=recipe.listen.key_env,
        box=member.box,
    )


def _found(member: Member, model: str) -> MemberRecord:
    """A member that runs already: it must answer, and serve the model."""
    endpoint = endpoint_of(member.url, model)
    key = os.environ.get(member.key_env) if member.key_env else None
    if member.key_env and not key:
        raise BadInput(f"{member.name}: the environment variable {member.key_env} holds no key")
    reply = http.get(f"{endpoint.base_url}/models", headers=replace(endpoint, key=key).headers)
    if not reply.ok:
        raise Outside(f"{member.name}: {member.url} does not answer: {http.error_text(reply.text)}", hint="is it up?")
    listing = reply.json()
    listed = listing.get("data", []) if isinstance(listing, dict) else []
    mine = next((item for item in listed if isinstance(item, dict) and item.get("id") == model), None)
    if mine is None:
        names = ", ".join(str(item.get("id")) for item in listed if isinstance(item, dict)) or "nothing"
        raise BadInput(f"{member.name}: {member.url} serves {names}, the fleet {model}")
    limit = mine.get("max_model_len") or (mine.get("meta") or {}).get("n_ctx")
    return MemberRecord(
        name=member.name,
        base_url=endpoint.base_url,
        engine=member.engine,
        context=member.context or (limit if isinstance(limit, int) else 0),
        key_env=member.key_env,
    )


def start_router(
    name: str, router: RouterSettings, model: str, members: tuple[MemberRecord, ...], python: str
) -> Program:
    """The router in front of `members`; it answers a chat when this returns."""
    port = router.port or preflight.free_port(router.host)
    router = replace(router, port=port, metrics_port=router.metrics_port or preflight.free_port(router.host))
    targets = tuple(routers.Target(name=member.name, root=member.root, key_env=member.key_env) for member in members)
    start = routers.start(router, model, targets)
    run = Run.create(f"{name}-router")
    for file, text in start.files.items():
        run.write(file, text)
    secrets = {variable: os.environ.get(variable, "") for variable in start.key_envs}
    empty = next((variable for variable, value in secrets.items() if not value), "")
    if empty:
        raise BadInput(f"the environment variable {empty} holds no key", hint=f"export {empty}=…")
    argv = start.argv if not routers.traits()[router.kind].package else (python, *start.argv)
    host = "127.0.0.1" if router.host == "0.0.0.0" else router.host  # noqa: S104
    endpoint = endpoint_of(f"{host}:{port}", model, key=secrets.get(router.key_env))
    order = ProgramOrder(
        title=f"{name}-router",
        kind=router.kind,
        argv=argv,
        endpoint=endpoint,
        host=router.host,
        port=port,
        env=start.env,
        secrets=secrets,
        key_env=router.key_env,
        cwd=str(run.path),
        ports=(routers.metrics_port(router),) if routers.traits()[router.kind].package != "litellm" else (),
    )
    program = Program(order, run)
    try:
        program.wait_until(lambda: answers(endpoint), patience_s=ROUTER_S, every_s=0.3)
    except BaseException:
        program.stop()
        raise
    return program


def answers(endpoint: Endpoint) -> bool:
    """One token of a chat comes back."""
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}
    url = f"{endpoint.base_url}/chat/completions"
    return http.post_json(url, body, headers=endpoint.headers, timeout_s=ASK_S).ok


def _discard(_: object) -> None:
    """For a list of things to be done whose results nobody needs."""


# -- listing and stopping


def status(record: FleetRecord) -> list[dict[str, str]]:
    """Router and members, each with what it is and whether it answers now."""
    known = {one.id: one for one in state.instances()}
    rows = []
    router = known.get(record.instance)
    rows.append(
        {
            "name": "router",
            "kind": record.router.kind,
            "url": record.base_url,
            "status": router.status if router else "gone",
        }
    )
    for member in record.members:
        instance = known.get(member.instance)
        endpoint = record.member_endpoint(member)
        well = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=3.0).ok
        told = (instance.status if instance else "gone") if member.instance else "found"
        rows.append(
            {
                "name": member.name,
                "kind": member.engine or "?",
                "url": member.base_url,
                "status": told if well else f"{told}, does not answer",
            }
        )
    return rows


def down(record: FleetRecord) -> list[str]:
    """Stop the router, then every member that moebox started; their names."""
    known = {one.id: one for one in state.instances()}
    stopped = []
    for name, instance in (("router", record.instance), *((one.name, one.instance) for one in record.members)):
        if instance in known:
            stop_instance(known[instance])
            stopped.append(name)
    forget(record.name)
    return stopped
