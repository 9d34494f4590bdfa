"""Settings of a machine's administrator for all its users: /etc/moebox.toml.

    ports = [18000, 18999]          # engines get a port from here
    cache = "/scratch/moebox"       # each user gets a private folder in it
    weights = "/srv/models/hub"     # a shared, read-only cache of the Hub; weights in it are not downloaded
    [packages]                      # for `moebox engines install`; all optional
    index = "https://…"             # instead of the default package index
    extra_index = "https://…"
    find_links = "/srv/wheels"
    constraints = "/etc/constraints.txt"

Users' own variables and recipes come first.
"""

import os
import pwd
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from moebox.errors import BadInput

SITE_FILE = Path("/etc/moebox.toml")
SITE_ENV = "MOEBOX_SITE"  # another path of it
KEYS = ("ports", "cache", "weights", "packages")
PACKAGE_KEYS = ("index", "extra_index", "find_links", "constraints")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """What the file sets; nothing if there is none."""

    ports: tuple[int, int] | None = None
    cache: str = ""
    weights: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # by PACKAGE_KEYS

    @property
    def user_cache(self) -> Path | None:
        """This user's folder in the cache."""
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            user = str(os.geteuid())
        return Path(self.cache) / user if self.cache else None

    def find_weights(self, repo: str) -> str:
        """Return the shared cache if it holds a repository of the Hub, or ""."""
        held = self.weights and (Path(self.weights) / f"models--{repo.replace('/', '--')}" / "snapshots").is_dir()
        return self.weights if held else ""


def read_site() -> SiteSettings:
    """Read the file. Raise BadInput if it cannot be read or has anything else in it."""
    path = Path(os.environ.get(SITE_ENV) or SITE_FILE)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SiteSettings()
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}", hint="ask the administrator") from None
    except ValueError as problem:
        raise BadInput(f"{path}: not valid TOML: {problem}", hint="ask the administrator") from None
    ports = values.get("ports")
    in_range = isinstance(ports, list) and len(ports) == 2 and all(type(port) is int for port in ports)
    if unknown := sorted(set(values) - set(KEYS)):
        raise BadInput(f"{path}: unknown setting {unknown[0]}", hint=f"known: {', '.join(KEYS)}")
    if ports is not None and not (in_range and 1024 <= ports[0] <= ports[1] <= 65535):
        raise BadInput(f"{path}: ports: first and last, from 1024 to 65535", hint="ports = [18000, 18999]")
    for name in ("cache", "weights"):
        if not str(values.get(name, "/")).startswith("/"):
            raise BadInput(f"{path}: {name}: an absolute path", hint='cache = "/scratch/moebox"')
    packages = values.get("packages", {})
    if not isinstance(packages, dict) or not all(isinstance(value, str) for value in packages.values()):
        raise BadInput(f"{path}: packages: a table of texts", hint='[packages] index = "https://…"')
    if unknown := sorted(set(packages) - set(PACKAGE_KEYS)):
        raise BadInput(f"{path}: unknown setting packages.{unknown[0]}", hint=f"known: {', '.join(PACKAGE_KEYS)}")
    return SiteSettings(
        ports=(ports[0], ports[1]) if ports else None,
        cache=str(values.get("cache", "")),
        weights=str(values.get("weights", "")),
        packages=packages,
    )
