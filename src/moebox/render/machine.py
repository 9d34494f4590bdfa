"""Files for one machine: a script, a Compose file, a systemd unit."""

import re
import shlex
from typing import Any

from moebox.core.model import Model
from moebox.core.plan import Launch
from moebox.core.presets import of as preset_of
from moebox.core.recipe import Recipe
from moebox.engines import Node, launch
from moebox.engines.assemble import around_image, container_options, image, network, published, weights_folder
from moebox.errors import BadInput
from moebox.render import pieces as parts
from moebox.render.pieces import Pieces, pieces

MANY = Node(rank="$NODE_RANK", master="$MASTER_ADDR")


def script(recipe: Recipe, model: Model | None) -> dict[str, Any]:
    """A bash script that starts it here, natively or in a container."""
    whole = pieces(recipe, model, node=_node(recipe))
    started = launch(recipe, model)
    context = _common(whole, recipe) | {
        "template": "script.sh.j2",
        "args": [_shell(piece) for piece in whole.args],
        "draft": [_shell(piece) for piece in whole.draft],
        "env": {name: _default(name, value, inside=whole.inside) for name, value in started.env.items()},
        "secrets": started.secret_env,
        "why": _reasons(recipe),
        "nodes": recipe.parallel.nodes,
        "entry": shlex.join(entry_of(started.argv, whole)),
        "container": None,
        "model_at": len(whole.args[0]) - 1,
        "setup_line": "",
    }
    if whole.inside:
        context["container"] = _container(recipe, whole, model)
        line = f'{recipe.runtime.setup} && exec {context["entry"]} "$@"'
        context["setup_line"] = shlex.quote(line)
    return context


def _default(name: str, value: str, *, inside: bool) -> str:
    """A setting that the surroundings may change; a path is meant for the inside of a container and stands."""
    if inside and (value.startswith("/") or not re.fullmatch(parts.PLAIN, value)):
        return f"{name}={shlex.quote(value)}"
    return parts.assigned(name, value)


def _container(recipe: Recipe, whole: Pieces, model: Model | None) -> dict[str, Any]:
    started = launch(recipe, model)
    before, after = around_image(recipe, started)
    shown = [published(started)] if network(recipe) != "host" else []
    options = [option for option in container_options(recipe, started) if option not in ("-p", *shown)]
    head = entry_of(tuple(after), whole) if not recipe.runtime.setup else ()
    own = weights_folder(recipe)  # the script mounts what MODEL_PATH says instead
    mounts = {outside: inside for outside, inside in started.mounts.items() if outside != own}
    return {
        "tool": recipe.runtime.kind,
        "options": _paired(options),
        "publish": shown[0].rpartition(":")[0].rpartition(":")[0] if shown else None,
        "mounts": {_home(outside): inside for outside, inside in mounts.items()},
        "image": shlex.quote(image(recipe)),
        "before": shlex.join(before),
        "head": shlex.join(head),
        "setup": recipe.runtime.setup,
        "inner": shlex.join(entry_of(started.argv, whole)),
    }


def entry_of(argv: tuple[str, ...], whole: Pieces) -> tuple[str, ...]:
    """What of `argv` stands before the engine's own arguments."""
    return argv[: len(argv) - sum(len(piece) for piece in (*whole.args, *_given(whole)))]


def _given(whole: Pieces) -> tuple[parts.Piece, ...]:
    return whole.draft if whole.recipe.speculate else ()


def _paired(options: list[str]) -> list[str]:
    """Options with their values, one a line."""
    lines: list[str] = []
    for option in options:
        if option.startswith("-") or not lines:
            lines.append(shlex.quote(option))
        else:
            lines[-1] += f" {shlex.quote(option)}"
    return lines


def _home(path: str) -> str:
    return f'"$HOME{parts.quoted(path[1:])}' if path.startswith("~") else f'"{parts.quoted(path)}'


def _shell(piece: parts.Piece) -> str:
    """One argument line; the scheduler's own variables are left to the shell."""
    line = parts.shell_piece(piece)
    for name in ("NODE_RANK", "MASTER_ADDR"):
        line = line.replace(f"'${name}'", f'"${name}"').replace(f"'${name}:20000'", f'"${name}:20000"')
    return line


def _node(recipe: Recipe) -> Node | None:
    return MANY if recipe.parallel.nodes > 1 else None


def _reasons(recipe: Recipe) -> dict[str, str]:
    """Why each variable of a preset is there."""
    preset = preset_of(recipe)
    return {one.name: one.why for one in preset.variable} if preset else {}


def _common(whole: Pieces, recipe: Recipe) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "engine": recipe.engine,
        "version": whole.version,
        "variables": whole.variables,
        "image": image(recipe),
    }


def compose(recipe: Recipe, model: Model | None) -> dict[str, Any]:
    """A Compose file with one service."""
    whole = pieces(recipe, model)
    started = launch(recipe, model)
    before, after = around_image(recipe, started)
    head = entry_of(tuple(after), whole) if not recipe.runtime.setup else ()
    arguments = [parts.compose(value) for piece in (*whole.args, *_given(whole)) for value in piece]
    if recipe.runtime.setup:
        inner = shlex.join(entry_of(started.argv, whole))
        arguments = ["-c", f"{recipe.runtime.setup} && exec {inner} {shlex.join(arguments)}"]
    preset = preset_of(recipe)
    return _common(whole, recipe) | {
        "template": "compose.yaml.j2",
        "variables": _used(whole),
        "entrypoint": before[1:],
        "command": [*head, *arguments],
        "env": {name: value.replace("$", "$$") for name, value in started.env.items()},
        "secrets": started.secret_env,
        "why": _reasons(recipe),
        "mounts": started.mounts,
        "volumes": [outside for outside in started.mounts if not outside.startswith(("/", "~", "."))],
        "publish": published(started) if network(recipe) != "host" else "",
        "host": recipe.listen.host,
        "shares_memory": recipe.engine in ("vllm", "sglang"),
        "privileged": bool(preset and "--privileged" in preset.options),
        "health": whole.engine.HEALTH,
    }


def systemd(recipe: Recipe, model: Model | None) -> dict[str, Any]:
    """A unit that keeps it running."""
    whole = pieces(recipe, model)
    started = launch(recipe, model)
    before, after = around_image(recipe, started)
    start = entry_of(tuple(after) if whole.inside else started.argv, whole)
    if recipe.runtime.setup:
        raise BadInput("runtime.setup: a unit does not install things at every start", hint="build an image with it")
    return _common(whole, recipe) | {
        "template": "unit.service.j2",
        "start": [_unit((word,)) for word in start],
        "arguments": [" ".join(_unit(value) for value in piece) for piece in (*whole.args, *_given(whole))],
        "variables": _used(whole),
        "env": started.env,
        "secrets": started.secret_env,
        "why": _reasons(recipe),
        "tool": recipe.runtime.kind if whole.inside else "",
        "run": _unit_run(recipe, started, before) if whole.inside else [],
    }


def _unit_run(recipe: Recipe, started: Launch, before: list[str]) -> list[str]:
    """The container's options, one a line."""
    port, shown = f"{started.port}:{started.port}", published(started)
    options = [
        option.replace(port, "${PORT}:${PORT}") if option == shown else _unit((option,))
        for option in container_options(recipe, started)
    ]
    lines: list[str] = []
    for option in options:
        if option.startswith("-") or not lines:
            lines.append(option)
        else:
            lines[-1] += f" {option}"
    lines += [f"-v {_unit((_mount(*one),))}" for one in started.mounts.items()]
    lines += [f"-e {_unit((f'{name}={value}',))}" for name, value in started.env.items()]
    lines += [f"-e {name}" for name in started.secret_env]
    return [*lines, *([" ".join(before)] if before else []), image(recipe)]


def _used(whole: Pieces) -> list[parts.Var]:
    """Variables that stand in a file without an `if`: the draft's only where the recipe has one."""
    unused = {"ENABLE_EAGLE3"} | (set() if whole.recipe.speculate else {"EAGLE3_MODEL"})
    return [one for one in whole.variables if one.name not in unused]


def _mount(outside: str, inside: str) -> str:
    return f"{outside.replace('~', '%h', 1) if outside.startswith('~') else outside}:{inside}"


def _unit(value: parts.Value) -> str:
    """A word of ExecStart: quoted where systemd would split it, %h (the home folder) kept."""
    text = parts.systemd(value).replace("%%h/", "%h/")
    if text and not any(mark in text for mark in " \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
