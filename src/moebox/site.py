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
from dataclasses import dataclass
from pathlib import Path

from moebox.errors import require_all

SITE_FILE = Path("/etc/moebox.toml")
SITE_ENV = "MOEBOX_SITE"  # another path of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """Where `moebox engines install` gets packages."""

    index: str = ""
    extra_index: str = ""
    find_links: str = ""
    constraints: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """What the file sets; nothing if there is none."""

    ports: tuple[int, int] | None = None
    cache: str = ""
    weights: str = ""
    packages: PackageSettings = PackageSettings()

    @property
    def user_cache(self) -> Path | None:
        return Path(self.cache) / user_name(os.geteuid()) if self.cache else None


def user_name(uid: int) -> str:
    """The name of a user, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_site() -> SiteSettings:
    """Read the file. Raise BadInput if it cannot be read or has anything else in it."""
    path = Path(os.environ.get(SITE_ENV) or SITE_FILE)
    if not path.exists():
        return SiteSettings()
    from moebox import codec  # only here: the sandbox runs this module in interpreters without packages

    site = codec.read_toml(SiteSettings, path)
    first, last = site.ports or (1024, 65535)
    rules = {"ports: first and last, from 1024 to 65535": 1024 <= first <= last <= 65535}
    rules |= {f"{name}: an absolute path": getattr(site, name)[:1] in ("", "/") for name in ("cache", "weights")}
    require_all(str(path), rules)
    return site
