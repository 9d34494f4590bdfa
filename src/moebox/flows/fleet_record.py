"""Fleets that were started, noted in the state folder so that ps, verify, bench and down find them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import BadInput, ExternalError, MoeboxError, suggest_names
from moebox.files import write_atomic
from moebox.fleet.file import RouterSettings
from moebox.serve import state
from moebox.serve.keys import find_key


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
    """A fleet that was started."""

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
        """By its own name, by the file it was started from, or by any where none is given."""
        file = str(Path(name).resolve()) if name.endswith(".toml") else ""
        return name in ("", self.name) or file == self.file

    @property
    def started_all_members(self) -> bool:
        """Whether moebox started every member, so that it may stop any."""
        return all(member.instance for member in self.members)

    @property
    def context(self) -> int:
        """Tokens that every member takes; 0 when one does not say."""
        return min((member.context for member in self.members), default=0)

    @property
    def engine(self) -> str:
        """The engine behind the router; "" when members differ."""
        kinds = {member.engine for member in self.members}
        return kinds.pop() if len(kinds) == 1 else ""

    def key(self, variable: str) -> str | None:
        """The key that a variable holds, or that moebox made for the parts of this fleet that name the variable."""
        parts = ((self.router.key_env, self.base_url), *((each.key_env, each.base_url) for each in self.members))
        found = (find_key(variable, url) for named, url in parts if named == variable)
        return next(filter(None, found), None)

    def endpoint(self) -> Endpoint:
        """The fleet as clients see it, with what a router hides."""
        key = self.key(self.router.key_env)
        found = endpoint_from_url(self.base_url, self.model, key=key, engine=self.engine)
        return replace(found, router=self.router.kind, context=self.context)

    def member_endpoint(self, member: MemberRecord) -> Endpoint:
        """One member, past the router."""
        key = self.key(member.key_env)
        return endpoint_from_url(member.base_url, self.model, key=key, engine=member.engine)


def fleets_dir() -> Path:
    """Where fleets that run are noted."""
    return state.state_dir() / "fleets"


def save_fleet(record: FleetRecord) -> FleetRecord:
    """Note the fleet, whole or not at all."""
    write_atomic(fleets_dir() / f"{record.name}.json", codec.to_json(record))
    return record


def forget_fleet(name: str) -> None:
    """The fleet is gone."""
    (fleets_dir() / f"{name}.json").unlink(missing_ok=True)


def list_fleets() -> list[FleetRecord]:
    """Fleets that were started, by name."""
    paths = sorted(fleets_dir().glob("*.json")) if fleets_dir().is_dir() else []
    return [codec.decode(FleetRecord, codec.load_json(path), where=str(path)) for path in paths]


def find_fleet(name: str) -> FleetRecord:
    """The fleet called so, started from that file, or the only one."""
    known = list_fleets()
    meant = [fleet for fleet in known if fleet.matches_name(name)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise BadInput(f"{len(meant)} fleets are running: say which", hint=", ".join(_names(meant)))
    raise _unknown(name, known)


def _unknown(name: str, known: Sequence[FleetRecord]) -> MoeboxError:
    if not known:
        return ExternalError("no fleet is running", hint="`moebox fleet up FILE` starts one")
    return BadInput(f"no fleet called {name!r} is running", hint=suggest_names(name, _names(known)))


def _names(fleets: Sequence[FleetRecord]) -> list[str]:
    return [fleet.name for fleet in fleets]
