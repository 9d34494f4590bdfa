"""fleet.toml: members, the router in front of them, and prices. Every error names its place in the file.

name = "team"

[router]
kind = "sglang-router"

[[member]]
recipe = "k26.toml"
box = "8x-h200"

[[member]]
name = "attic"
url = "http://10.0.0.7:8000"
model = "kimi-k2.6"
context = 131072
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from moebox import codec
from moebox.core.recipe import Recipe
from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, refuse_if, refuse_out_of_range
from moebox_fleet.cost import Prices
from moebox_fleet.models_file import NAME, KeyLimits, check_users
from moebox_fleet.route import Policy
from moebox_fleet.users import UserWorkload

RouterKind = Literal["sglang-router", "vllm-router", "litellm"]
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    kind: RouterKind = "sglang-router"
    policy: Policy = "prefix"
    host: str = "127.0.0.1"
    port: int = 8080
    python: str = ""  # virtual environment or interpreter with the router; "": on PATH
    key_env: str = ""  # variable with the key that clients must send; "": no key
    metrics_port: int = 0  # of the router's own metrics; 0: the port after `port`
    users: dict[str, KeyLimits] = field(default_factory=dict)  # with keys of their own; litellm only


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One endpoint of the fleet: a running one (`url`), or a recipe to start."""

    name: str = ""
    url: str = ""
    recipe: str = ""  # file relative to the fleet file, or name of a shipped recipe
    box: str = ""  # for plans; "": the box that the recipe was planned for
    count: int = 1  # recipes only
    model: str = ""  # served name; a recipe has its own
    engine: str = ""  # url only
    context: int = 0  # url only
    key_env: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    format: int = FORMAT
    name: str = "fleet"
    router: RouterSettings = RouterSettings()
    member: tuple[Member, ...] = ()
    prices: Prices = Prices()
    workload: dict[str, UserWorkload] = field(default_factory=dict)


def read_fleet(path: Path) -> Fleet:
    """Read and validate a fleet file. A member with a count becomes several; each gets a name."""
    fleet = codec.read_toml(Fleet, path)
    where = str(path)
    other = f"{where}: format {fleet.format} is not one this moebox reads"
    refuse_if(fleet.format != FORMAT, other, hint=f"it reads format {FORMAT}")
    router = fleet.router
    for name, port in (("port", router.port), ("metrics_port", router.metrics_port)):
        refuse_out_of_range(f"{where}: router.{name}", port, 0, LAST_PORT)
    check_users(f"{where}: router.users", router.users)
    for number, member in enumerate(fleet.member, 1):
        _check_member(f"{where}: member {member.name or number}", member)
    members = tuple(_expand_members(fleet.member))
    names = [member.name for member in members]
    for what, name in (("name", fleet.name), *(("member name", name) for name in names)):
        how = "use lower-case letters, digits and dashes, 42 at most"
        refuse_if(not NAME.fullmatch(name), f"{where}: {what} {name!r}: {how}")
    urls = [member.url.rstrip("/").removesuffix("/v1") for member in members if member.url]
    for what, values in (("name", names), ("url", urls)):
        twice = next((value for value, times in Counter(values).items() if times > 1), "")
        refuse_if(twice, f"{where}: two members have the {what} {twice}", hint="each endpoint is listed once")
    for name, work in fleet.workload.items():
        work.validate(f"{where}: workload {name}")
    fleet.prices.validate(where)
    return replace(fleet, member=members)


def recipe_path(fleet_file: Path, member: Member) -> str:
    """A member's recipe for `up`: a path relative to the fleet file, or the name of a shipped recipe."""
    beside = fleet_file.parent / member.recipe
    return str(beside) if beside.exists() or member.recipe.endswith(".toml") else member.recipe


def _check_member(where: str, member: Member) -> None:
    how = "url for one that runs, recipe for one to start"
    refuse_if(bool(member.url) == bool(member.recipe), f"{where}: give either url or recipe", hint=how)
    refuse_out_of_range(f"{where}: count", member.count, 1, 256)
    refuse_if(member.url and member.count > 1, f"{where}: a url is one endpoint; count is for recipes")
    refuse_if(member.context < 0 or not 0 < member.weight <= 1000, f"{where}: context and weight are positive")
    if not member.url:
        return
    url = member.url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise BadInput(f"{where}: {url!r} is not a URL: {problem}") from None
    wrong = parts.scheme not in ("http", "https") or not parts.hostname or port == 0
    refuse_if(wrong, f"{where}: {url!r} is not a URL of a server", hint="write it like http://10.0.0.7:8000")
    password_problem = f"{where}: a password in a URL would be written into files"
    refuse_if(parts.username or parts.password, password_problem, hint="name a variable in key_env")


def _expand_members(members: tuple[Member, ...]) -> list[Member]:
    """Repeat members by their count, and name them by recipe or host. Number names that would be the same."""
    named: list[tuple[Member, str]] = []
    for member in members:
        text = Path(member.recipe).stem if member.recipe else (urlsplit(member.url).netloc or "")
        stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:36].strip("-")
        named += [(member, member.name or stem or "member")] * member.count
    totals = Counter(stem for _, stem in named)
    numbers: Counter[str] = Counter()
    expanded = []
    for member, stem in named:
        numbers[stem] += 1
        numbered = totals[stem] > 1 and (not member.name or member.count > 1)
        expanded.append(replace(member, name=f"{stem}-{numbers[stem]}" if numbered else stem, count=1))
    return expanded


def served_name(members: tuple[Member, ...], recipes: dict[str, Recipe]) -> str:
    """The model that every member serves. Raise BadInput if they differ, because a router would mix two models."""
    names = {member.name: recipes[member.name].served_name if member.recipe else member.model for member in members}
    different = sorted(set(filter(None, names.values())))
    refuse_if(
        len(different) > 1,
        f"members serve different models: {', '.join(different)}",
        hint="one endpoint, one model: give them the same served_name, or make two fleets",
    )
    refuse_if(not different, "no member names the model it serves", hint='model = "…" in a member with a url')
    return different[0]
