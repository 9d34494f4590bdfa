"""The folder and the identity of a KV store on disk: blocks of other engines, models or cache types never mix."""

import hashlib
import re
from pathlib import PurePosixPath

from moebox.core.deployment import Deployment
from moebox.engines.flags import newest_version
from moebox.sizing.kv import kv_type

GIB = 2**30


def store_identity(deployment: Deployment) -> dict[str, str]:
    """What the bytes of a store depend on. Any flag or variable may change them, so each set has a store of its own."""
    recipe, runtime = deployment.recipe, deployment.recipe.runtime
    version = deployment.running_version or recipe.engine_version or newest_version(recipe.engine)
    settings = (sorted(recipe.flags.items()), sorted(recipe.env.items()), recipe.speculate, runtime.setup)
    return {
        "engine": f"{recipe.engine} {version}",
        "weights": f"{deployment.weights_path} {recipe.checkpoint} {deployment.revision}",
        "kv": kv_type(recipe),
        "layout": " ".join(recipe.parallel.labels),  # ranks keep their own shares
        "connector": recipe.tiers.connector,
        "image": f"{runtime.image or runtime.preset} {deployment.image_digest}".strip(),
        "settings": hashlib.sha256(repr(settings).encode()).hexdigest()[:16],
    }


def store_folder(deployment: Deployment, *, outside: bool = False) -> str:
    """The folder of a store under `kv_tiers.folder`, as an engine in a container names it, or the machine `outside`."""
    identity, recipe = store_identity(deployment), deployment.recipe
    weights = PurePosixPath(deployment.weights_path).name
    words = (identity["engine"], weights, identity["kv"], identity["layout"])
    digest = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:8]
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.")[-48:] for word in words)
    inside = recipe.runtime.kind in ("docker", "podman") and not outside
    folder = re.sub("^~", "/root", recipe.tiers.folder) if inside else recipe.tiers.folder
    return str(PurePosixPath(folder, f"{name}-{digest}"))
