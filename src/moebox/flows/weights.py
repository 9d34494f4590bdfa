"""The weights of a recipe: where they are on the Hub, and an offer to fetch those that are missing."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from moebox.checkpoint import deploy, is_weights_path
from moebox.core.deployment import Deployment
from moebox.errors import BadInput, ExternalError, MoeboxError, NotInstalled
from moebox.flows import recipes
from moebox.hub.client import HubFile, HubListing, list_repository, open_remote_file
from moebox.hub.fetch import Fetcher, select_files
from moebox.hub.names import group_gguf_files, parse_repo_name, select_gguf
from moebox.serve.order import require_engine
from moebox.serve.preflight import uses_dummy_weights
from moebox.units import format_gb, format_rate, format_seconds, plural

AT_ONCE = 8  # files
PROBE_BYTES, PROBE_S = 16 << 20, 2.0  # read from the first missing file to learn the network's rate
NEWS_SHARE, NEWS_S = 0.05, 2.0  # of the download, and seconds, between two lines of progress


def find_named_files(what: str) -> tuple[HubListing, tuple[HubFile, ...]]:
    """Return the repository of a recipe or name, and the files that are needed."""
    if os.path.exists(what) or parse_repo_name(what) is None:
        return find_recipe_files(deploy(recipes.load_recipe(what)))
    return list_files(what, what)


def find_recipe_files(deployment: Deployment) -> tuple[HubListing, tuple[HubFile, ...]]:
    """Return the repository of a deployment, and the files that it needs. Raise BadInput if its weights are a path."""
    found, recipe, gguf = deployment.known_checkpoint, deployment.recipe, ""
    name = recipe.checkpoint if found is None or not found.repo else found.repo
    if is_weights_path(name) or (found and found.path):
        here = "is there; nothing to fetch" if Path(name).expanduser().exists() else "does not exist"
        here = "holds no weights, and no repository is named" if found and found.how != "read" else here
        hint = "name the repository: `moebox fetch ORG/REPO`"
        raise BadInput(f"{recipe.name} names a path, {name}, which {here}", hint=hint)
    if found and found.format == "gguf":
        name, gguf = f"{name}:{found.name.rpartition(':')[2]}", found.file
    return list_files(recipe.name, name, deployment.revision, gguf, with_code=recipe.trust_remote_code)


def list_files(
    what: str, name: str, revision: str = "", gguf: str = "", *, with_code: bool = False
) -> tuple[HubListing, tuple[HubFile, ...]]:
    """List ORG/REPO[@REVISION][:QUANT]; without `gguf` the quantization names the first part."""
    parsed, hint = parse_repo_name(name), "ORG/REPO[@REVISION][:QUANT]"
    if parsed is None:
        raise BadInput(f"{what}: its checkpoint {name!r} is not a repository of the Hub", hint=hint)
    listing = list_repository(parsed.repo, parsed.revision or revision)
    if parsed.quant and not gguf:
        groups = group_gguf_files(listing.files)
        gguf = groups[select_gguf(groups, parsed)][0].path
    return listing, select_files(listing, gguf=gguf, with_code=with_code)


def offer_weights(deployment: Deployment, *, confirm: Callable[[str], bool], notify: Callable[[str], None]) -> int:
    """Fetch weights that the cache lacks if the user agrees. Return the bytes that were fetched.

    Weights that are a path, in a container's mounts or in the program are not offered. Raise NotInstalled if the
    engine is missing, because what was fetched could not be used.
    """
    recipe = deployment.recipe
    if recipe.runtime.mounts or uses_dummy_weights(recipe):
        return 0
    try:
        if recipe.runtime.kind != "embedded":
            require_engine(deployment)
        listing, wanted = find_recipe_files(deployment)
    except NotInstalled:
        raise
    except MoeboxError as problem:  # the start reports what still matters then
        if isinstance(problem, ExternalError):
            notify(f"weights not checked: {problem.message}")
        return 0
    arrived, shown = 0, 0.0
    began = shown_at = time.monotonic()

    def advance(size: int) -> None:
        nonlocal arrived, shown, shown_at
        arrived += size
        is_due = arrived / total >= shown + NEWS_SHARE and time.monotonic() >= shown_at + NEWS_S
        if is_due and arrived < total:
            shown, shown_at = arrived / total, time.monotonic()
            left_s = (time.monotonic() - began) * (total - arrived) / arrived
            notify(f"fetched {format_gb(arrived)} of {format_gb(total)}, ready in {format_seconds(left_s)}")

    fetcher = Fetcher(listing, advance=advance)
    total, missing = sum(file.size for file in wanted), fetcher.missing_bytes(wanted)
    if not missing:
        return 0
    fetcher.check_room(wanted)
    free = shutil.disk_usage(fetcher.folder).free
    rate = measure_network(listing, max(wanted, key=lambda file: file.size))
    time_text = f"at most {format_seconds(missing / rate)} at the {format_rate(rate)} of one connection"
    need = f"{listing.repo} lacks {format_gb(missing)} of {format_gb(total)} here ({plural(len(wanted), 'file')})"
    notify(f"{need}; {format_gb(free)} are free in {fetcher.folder.parent}; {time_text}")
    if not confirm(f"Fetch {format_gb(missing)} now?"):
        notify("weights not fetched: the engine downloads them at its start, if it can")
        return 0
    began = shown_at = time.monotonic()
    fetcher.fetch_all(wanted, at_once=AT_ONCE)
    notify(f"fetched {format_gb(missing)} in {format_seconds(time.monotonic() - began)}; every hash is the Hub's")
    return missing


def measure_network(listing: HubListing, file: HubFile) -> float:
    """Bytes per second of one connection to the Hub, from the beginning of a file."""
    size, began = 0, time.monotonic()
    with open_remote_file(listing, file, 0, min(PROBE_BYTES, file.size)) as chunks:
        for chunk in chunks:
            size += len(chunk)
            if time.monotonic() - began > PROBE_S:
                break
    return max(size, 1) / max(time.monotonic() - began, 1e-3)
