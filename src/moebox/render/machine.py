"""Files for one machine: a script, a Compose file, a systemd unit."""

import re
import shlex
from collections.abc import Iterable

from moebox.core import presets
from moebox.core.deployment import Deployment
from moebox.core.plan import Launch
from moebox.engines import LaunchNode, assemble, build_launch
from moebox.engines.kv_store import store_folder
from moebox.engines.reasons import option_reason, variable_reason
from moebox.errors import refuse_if
from moebox.loose import drop_empty
from moebox.render import options, quoting
from moebox.render.pieces import (
    Context,
    LaunchPieces,
    ListItem,
    Piece,
    bash_line,
    compose_value,
    launch_pieces,
    unit_argument,
    with_home,
)
from moebox.render.quoting import variable_slot

ANY_NODE = LaunchNode(rank=variable_slot("NODE_RANK"), master=variable_slot("MASTER_ADDR"))


def script_context(deployment: Deployment) -> Context:
    """Fill the template of a bash script that starts the engine here, natively or in a container."""
    recipe, launch = deployment.recipe, build_launch(deployment)
    pieces = launch_pieces(deployment, node=ANY_NODE if recipe.parallel.nodes > 1 else None)
    from_hub = 0  # words that name a GGUF in a repository, which a local file may replace
    for piece in pieces.args:
        if piece[0] not in (("-hf",), ("--hf-repo",), ("--hf-file",)):
            break
        from_hub += len(piece)
    entry = shlex.join(pieces.entry_words(launch.argv))
    setup_line = shlex.quote(f'{recipe.runtime.setup} && exec {entry} "$@"') if pieces.in_container else ""

    def explain(given: tuple[Piece, ...]) -> list[str]:
        return commented_lines((bash_line(piece), pieces.reasons[piece]) for piece in given)

    def assign(name: str, value: str) -> str:  # a path is meant for the inside of a container and is fixed
        fixed = value.startswith("/") or not re.fullmatch(quoting.PLAIN, value)
        return f"{name}={shlex.quote(value)}" if pieces.in_container and fixed else quoting.bash_default(name, value)

    return _common_context(pieces, deployment, launch) | {
        "template": "script.sh.j2",
        "args": explain(pieces.args),
        "draft": explain(pieces.draft),
        "env": {name: assign(name, with_home(value, deployment)) for name, value in launch.env.items()},
        "nodes": recipe.parallel.nodes,
        "entry": entry,
        "container": _container_context(deployment, pieces, launch) if pieces.in_container else None,
        "from_hub": from_hub,
        "follower_flag": deployment.engine.follower_flag,
        "setup_line": setup_line,
    }


def commented_lines(explained: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a bash array, each under its reason."""
    return [line for text, reason in explained for line in ((f"# {reason}", text) if reason else (text,))]


def _container_context(deployment: Deployment, pieces: LaunchPieces, launch: Launch) -> Context:
    """Fill the part of the script that runs docker or podman."""
    recipe = deployment.recipe
    before, after = assemble.split_at_image(deployment, launch)
    publishes = assemble.container_network(recipe) != "host"
    groups = [group for group in _option_groups(deployment, launch) if group[0] != "-p"]
    mounts = []
    for outside, inside in launch.mounts.items():
        if outside != assemble.weights_folder(deployment):  # which the script replaces by MODEL_PATH
            text = quoting.escape_bash(f"{outside.removeprefix('~')}:{inside}")
            mounts.append(f'"$HOME{text}"' if outside.startswith("~/") else f'"{text}"')
    return {
        "tool": recipe.runtime.kind,
        "options": commented_lines((shlex.join(group), option_reason(group[0])) for group in groups),
        "publish": _published_address(launch) if publishes else None,
        "mounts": mounts,
        "image": shlex.quote(assemble.image_name(deployment)),
        "before": shlex.join(before),
        "head": shlex.join(() if recipe.runtime.setup else pieces.entry_words(after)),
        "setup": recipe.runtime.setup,
        "inner": shlex.join(pieces.entry_words(launch.argv)),
    }


def _option_groups(deployment: Deployment, launch: Launch) -> list[list[str]]:
    """Return the container's options, each with its value if that is a word of its own."""
    groups: list[list[str]] = []
    for option in assemble.container_options(deployment, launch):
        if option.startswith("-") or not groups:
            groups.append([])
        groups[-1].append(option)
    return groups


def _common_context(pieces: LaunchPieces, deployment: Deployment, launch: Launch) -> Context:
    """Return what every template of this module is filled with."""
    reasons = {name: variable_reason(deployment, name) for name in launch.env}
    store = store_folder(deployment, outside=True)
    return {
        "recipe": deployment.recipe,
        "engine": deployment.recipe.engine,
        "version": pieces.version,
        "variables": pieces.variables,
        "image": assemble.image_name(deployment) if assemble.runs_in_container(deployment.recipe) else "",
        "secrets": launch.secret_env,
        "why": drop_empty(reasons),
        "store": re.sub("^~", quoting.HOME, store) if deployment.recipe.tiers.disk_gib else "",
    }


def compose_context(deployment: Deployment) -> Context:
    """Fill the template of a Compose file with one service."""
    recipe, engine, setup = deployment.recipe, deployment.engine, deployment.recipe.runtime.setup
    pieces, launch = launch_pieces(deployment), build_launch(deployment)
    before, after = assemble.split_at_image(deployment, launch)
    if setup:  # a shell runs it, and then the engine in its own place
        inner = quoting.escape_compose(shlex.join(pieces.entry_words(launch.argv)))
        arguments = shlex.join(compose_value(value) for piece in pieces.all_args for value in piece)
        command = [ListItem(word="-c"), ListItem(word=f"{setup} && exec {inner} {arguments}")]
    else:
        command = [ListItem(word=quoting.escape_compose(word)) for word in pieces.entry_words(after)]
        command += pieces.list_items(compose_value)
    address, port = _published_address(launch), f"${{PORT:-{launch.port}}}"
    usual = {"ipc": "host"} if engine.shares_memory else {}
    usual |= {"restart": "unless-stopped", "stop_grace_period": "60s"}
    return _common_context(pieces, deployment, launch) | {
        "template": "compose.yaml.j2",
        "variables": pieces.used_variables,
        "entrypoint": [*map(quoting.escape_compose, before[1:])],
        "command": command,
        "reasons": pieces.reason_lines() if setup else [],
        "env": {name: quoting.escape_compose(value) for name, value in launch.env.items()},
        "mounts": [quoting.escape_compose(f"{outside}:{inside}") for outside, inside in launch.mounts.items()],
        "volumes": [outside for outside in launch.mounts if not outside.startswith(("/", "~", "."))],
        "publish": f"{address}{port}:{port}" if assemble.container_network(recipe) != "host" else "",
        "shares_memory": engine.shares_memory,
        "options": usual | options.compose_keys(recipe),
        "uses_gpus": assemble.uses_gpus(deployment),
        "privileged": "--privileged" in presets.load_preset(recipe.runtime.preset).options,
        "health": engine.health_path,
    }


def _published_address(launch: Launch) -> str:
    """Return the address before the ports of the published port, with its colon."""
    return assemble.published_port(launch).removesuffix(f"{launch.port}:{launch.port}")


def systemd_context(deployment: Deployment) -> Context:
    recipe = deployment.recipe
    unfit = "runtime.setup: a unit would run the setup at every start"
    refuse_if(recipe.runtime.setup, unfit, hint="build an image with it")
    pieces, launch = launch_pieces(deployment), build_launch(deployment)
    before, after = assemble.split_at_image(deployment, launch)
    start = pieces.entry_words(after if pieces.in_container else launch.argv)
    return _common_context(pieces, deployment, launch) | {
        "template": "unit.service.j2",
        "start": [*map(quoting.quote_unit_word, start)],
        "arguments": [" ".join(map(unit_argument, piece)) for piece in pieces.all_args],
        "reasons": pieces.reason_lines(),
        "variables": pieces.used_variables,
        "env": {name: with_home(value, deployment) for name, value in launch.env.items()},
        "tool": recipe.runtime.kind if pieces.in_container else "",
        "run": _unit_run_lines(deployment, launch, before) if pieces.in_container else [],
    }


def _unit_run_lines(deployment: Deployment, launch: Launch, before: list[str]) -> list[str]:
    """Return the container's options: a flag and its value on one line, the port as the unit's variable."""
    published, address = assemble.published_port(launch), _published_address(launch)
    port = f"{address}${{PORT}}:${{PORT}}"
    groups = _option_groups(deployment, launch)
    lines = [
        " ".join(port if word == published else quoting.quote_unit_word(word) for word in group) for group in groups
    ]
    for outside, inside in launch.mounts.items():  # %h is the home of the unit's user
        text = f"{outside.removeprefix('~')}:{inside}".replace("%", "%%").replace("$", "$$")
        lines.append(f"-v {quoting.quote_unit(f'%h{text}' if outside.startswith('~/') else text)}")
    lines += [f"-e {quoting.quote_unit_word(f'{name}={value}')}" for name, value in launch.env.items()]
    lines += [f"-e {name}" for name in launch.secret_env]
    lines += [" ".join(map(quoting.quote_unit_word, before))] if before else []
    return [*lines, quoting.quote_unit_word(assemble.image_name(deployment))]
