"""Records of running fleets in the state folder, for ps, verify, bench and down."""

from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import BadInput, ExternalError, suggest_names
from moebox.files import write_atomic
from moebox.fleet.file import RouterSettings
from moebox.serve import state
from moebox.serve.keys import find_key


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


def forget_fleet(name: str) -> None:
    (fleets_dir() / f"{name}.json").unlink(missing_ok=True)


def list_fleets() -> list[FleetRecord]:
    paths = sorted(fleets_dir().glob("*.json")) if fleets_dir().is_dir() else []
    return [codec.decode(FleetRecord, codec.load_json(path), where=str(path)) for path in paths]


def find_fleet(name: str) -> FleetRecord:
    """Find a fleet by its name or file, or the only one if `name` is empty."""
    known = list_fleets()
    if not known:
        raise ExternalError("no fleet is running", hint="`moebox fleet up FILE` starts one")
    matching = [fleet for fleet in known if fleet.matches_name(name)]
    if not matching:
        hint = suggest_names(name, [fleet.name for fleet in known])
        raise BadInput(f"no fleet called {name!r} is running", hint=hint)
    if len(matching) > 1:
        hint = ", ".join(fleet.name for fleet in matching)
        raise BadInput(f"{len(matching)} fleets are running: name one", hint=hint)
    return matching[0]
