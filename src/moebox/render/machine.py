"""Files for one machine: a script, a Compose file, a systemd unit."""

import re
import shlex
from collections.abc import Iterable

from moebox.core import presets
from moebox.core.deployment import Deployment
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.engines import LaunchNode, build_launch
from moebox.engines.assemble import (
    container_network,
    container_options,
    image_name,
    published_port,
    split_at_image,
    uses_gpus,
    weights_folder,
)
from moebox.engines.reasons import option_reason, variable_reason
from moebox.errors import refuse_if
from moebox.render import comments, options, quoting
from moebox.render import pieces as parts
from moebox.render.context import Context
from moebox.render.pieces import LaunchPieces, Piece, launch_pieces
from moebox.render.quoting import variable_slot

MANY = LaunchNode(rank=variable_slot("NODE_RANK"), master=variable_slot("MASTER_ADDR"))


def script_context(deployment: Deployment) -> Context:
    """A bash script that starts it here, natively or in a container."""
    recipe = deployment.recipe
    whole = launch_pieces(deployment, node=_node(recipe))
    started = build_launch(deployment)
    context = _common(whole, deployment) | {
        "template": "script.sh.j2",
        "args": _explained(whole, whole.args),
        "draft": _explained(whole, whole.draft),
        "env": {name: _default(name, value, inside=whole.in_container) for name, value in started.env.items()},
        "secrets": started.secret_env,
        "why": _reasons(deployment, started),
        "nodes": recipe.parallel.nodes,
        "entry": shlex.join(entry_words(started.argv, whole)),
        "container": None,
        "from_hub": _from_hub(whole),
        "follower_flag": deployment.engine.follower_flag,
        "setup_line": "",
    }
    if whole.in_container:
        context["container"] = _container(deployment, whole)
        line = f'{recipe.runtime.setup} && exec {context["entry"]} "$@"'
        context["setup_line"] = shlex.quote(line)
    return context


def _from_hub(whole: LaunchPieces) -> int:
    """Words that name a GGUF in a repository, which a file of the machine may stand instead of; 0 for other weights."""
    words = 0
    for piece in whole.args:
        if piece[0] not in (("-hf",), ("--hf-repo",), ("--hf-file",)):
            break
        words += len(piece)
    return words


def _default(name: str, value: str, *, inside: bool) -> str:
    """A setting that the surroundings may change; a path is meant for the inside of a container and stands."""
    if inside and (value.startswith("/") or not re.fullmatch(quoting.PLAIN, value)):
        return f"{name}={shlex.quote(value)}"
    return quoting.bash_default(name, value)


def _container(deployment: Deployment, whole: LaunchPieces) -> Context:
    recipe = deployment.recipe
    started = build_launch(deployment)
    before, after = split_at_image(deployment, started)
    shown = [published_port(started)] if container_network(recipe) != "host" else []
    given = [option for option in container_options(deployment, started) if option not in ("-p", *shown)]
    head = entry_words(tuple(after), whole) if not recipe.runtime.setup else ()
    own = weights_folder(deployment)  # the script mounts what MODEL_PATH says instead
    mounts = {outside: inside for outside, inside in started.mounts.items() if outside != own}
    return {
        "tool": recipe.runtime.kind,
        "options": comments.commented_lines(_paired(given)),
        "publish": shown[0].removesuffix(f"{started.port}:{started.port}") if shown else None,
        "mounts": [_mounted(*mount) for mount in mounts.items()],
        "image": shlex.quote(image_name(deployment)),
        "before": shlex.join(before),
        "head": shlex.join(head),
        "setup": recipe.runtime.setup,
        "inner": shlex.join(entry_words(started.argv, whole)),
    }


def entry_words(argv: tuple[str, ...], whole: LaunchPieces) -> tuple[str, ...]:
    """What of `argv` stands before the engine's own arguments."""
    return argv[: len(argv) - sum(map(len, (*whole.args, *_given(whole))))]


def _given(whole: LaunchPieces) -> tuple[parts.Piece, ...]:
    return whole.draft if whole.recipe.speculate else ()


def _paired(options: list[str]) -> list[tuple[str, str]]:
    """Options with their values, one a line, and the reason for each."""
    lines: list[tuple[str, str]] = []
    for option in options:
        if option.startswith("-") or not lines:
            lines.append((shlex.quote(option), option_reason(option)))
        else:
            text, why = lines[-1]
            lines[-1] = (f"{text} {shlex.quote(option)}", why)
    return lines


def _mounted(outside: str, inside: str) -> str:
    """The -v value in bash; a leading ~ is the home of whoever runs it."""
    text = quoting.escape_bash(f"{outside.removeprefix('~')}:{inside}")
    return f'"$HOME{text}"' if outside.startswith("~/") else f'"{text}"'


def _node(recipe: Recipe) -> LaunchNode | None:
    return MANY if recipe.parallel.nodes > 1 else None


def _explained(whole: LaunchPieces, given: tuple[parts.Piece, ...]) -> list[str]:
    return comments.commented_lines([(parts.bash_line(piece), whole.reasons[piece]) for piece in given])


def _reasons(deployment: Deployment, started: Launch) -> dict[str, str]:
    """Why each variable is set."""
    found = {name: variable_reason(deployment, name) for name in started.env}
    return {name: why for name, why in found.items() if why}


def _common(whole: LaunchPieces, deployment: Deployment) -> Context:
    recipe = deployment.recipe
    return {
        "recipe": recipe,
        "engine": recipe.engine,
        "version": whole.version,
        "variables": whole.variables,
        "image": image_name(deployment),
    }


def compose_context(deployment: Deployment) -> Context:
    """A Compose file with one service."""
    recipe = deployment.recipe
    whole = launch_pieces(deployment)
    started = build_launch(deployment)
    before, after = split_at_image(deployment, started)
    given = (*whole.args, *_given(whole))
    if recipe.runtime.setup:
        command = _after_setup(recipe.runtime.setup, whole, started, given)
    else:
        head = [comments.ListItem(word=quoting.escape_compose(word)) for word in entry_words(tuple(after), whole)]
        command = head + comments.list_items(whole, given, parts.compose_value)
    return _common(whole, deployment) | {
        "template": "compose.yaml.j2",
        "variables": _used(whole),
        "entrypoint": [quoting.escape_compose(word) for word in before[1:]],
        "command": command,
        "reasons": comments.reason_lines(whole, given) if recipe.runtime.setup else [],
        "env": {name: quoting.escape_compose(value) for name, value in started.env.items()},
        "secrets": started.secret_env,
        "why": _reasons(deployment, started),
        "mounts": [quoting.escape_compose(f"{outside}:{inside}") for outside, inside in started.mounts.items()],
        "volumes": [outside for outside in started.mounts if not outside.startswith(("/", "~", "."))],
        "publish": _published(started) if container_network(recipe) != "host" else "",
        "shares_memory": deployment.engine.shares_memory,
        "options": _service(deployment),
        "uses_gpus": uses_gpus(deployment),
        "privileged": "--privileged" in presets.recipe_preset(recipe).options,
        "health": deployment.engine.health_path,
    }


def _after_setup(setup: str, whole: LaunchPieces, started: Launch, given: tuple[Piece, ...]) -> list[comments.ListItem]:
    """The words of a shell that runs the recipe's setup, and then the engine in its own place."""
    inner = quoting.escape_compose(shlex.join(entry_words(started.argv, whole)))
    arguments = [parts.compose_value(value) for piece in given for value in piece]
    return [comments.ListItem(word="-c"), comments.ListItem(word=f"{setup} && exec {inner} {shlex.join(arguments)}")]


def _service(deployment: Deployment) -> dict[str, str]:
    """Keys of the service that the recipe's options may set, with what they are without."""
    usual = {"ipc": "host"} if deployment.engine.shares_memory else {}
    return usual | {"restart": "unless-stopped", "stop_grace_period": "60s"} | options.compose_keys(deployment.recipe)


def systemd_context(deployment: Deployment) -> Context:
    """A unit that keeps it running."""
    recipe = deployment.recipe
    whole = launch_pieces(deployment)
    started = build_launch(deployment)
    before, after = split_at_image(deployment, started)
    start = entry_words(tuple(after) if whole.in_container else started.argv, whole)
    why_not = "runtime.setup: a unit does not install things at every start"
    refuse_if(recipe.runtime.setup, why_not, hint="build an image with it")
    return _common(whole, deployment) | {
        "template": "unit.service.j2",
        "start": [quoting.quote_unit_word(word) for word in start],
        "arguments": [" ".join(map(parts.unit_argument, piece)) for piece in (*whole.args, *_given(whole))],
        "reasons": comments.reason_lines(whole, (*whole.args, *_given(whole))),
        "variables": _used(whole),
        "env": started.env,
        "secrets": started.secret_env,
        "why": _reasons(deployment, started),
        "tool": recipe.runtime.kind if whole.in_container else "",
        "run": _unit_run(deployment, started, before) if whole.in_container else [],
    }


def _published(started: Launch) -> str:
    """The port's mapping, with the file's variable for the port."""
    address = published_port(started).removesuffix(f"{started.port}:{started.port}")
    return f"{address}${{PORT:-{started.port}}}:${{PORT:-{started.port}}}"


def _unit_run(deployment: Deployment, started: Launch, before: list[str]) -> list[str]:
    """The container's options, one a line."""
    lines = _option_lines(container_options(deployment, started), started)
    lines += [f"-v {_unit_mount(*mount)}" for mount in started.mounts.items()]
    lines += [f"-e {quoting.quote_unit_word(f'{name}={value}')}" for name, value in started.env.items()]
    lines += [f"-e {name}" for name in started.secret_env]
    lines += [" ".join(map(quoting.quote_unit_word, before))] if before else []
    return [*lines, quoting.quote_unit_word(image_name(deployment))]


def _option_lines(given: Iterable[str], started: Launch) -> list[str]:
    """A flag and its value on one line, the port as the unit's variable."""
    shown = published_port(started)
    address = shown.removesuffix(f"{started.port}:{started.port}")
    lines: list[str] = []
    for option in given:
        word = f"{address}${{PORT}}:${{PORT}}" if option == shown else quoting.quote_unit_word(option)
        if option.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _used(whole: LaunchPieces) -> list[parts.Variable]:
    """Variables that stand in a file without an `if`: the draft's only where the recipe has one."""
    unused = {"ENABLE_EAGLE3"} | (set() if whole.recipe.speculate else {"EAGLE3_MODEL"})
    return [variable for variable in whole.variables if variable.name not in unused]


def _unit_mount(outside: str, inside: str) -> str:
    """The -v value in a unit, where %h is the home of the unit's user."""
    text = f"{outside.removeprefix('~')}:{inside}".replace("%", "%%").replace("$", "$$")
    return quoting.quote_unit(f"%h{text}" if outside.startswith("~/") else text)
