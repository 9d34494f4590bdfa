"""A recipe's launch as pieces that each form of file quotes in its own way.

A value is made of texts and variables; a shell script writes `"$PORT"` where a Kubernetes file writes 8000.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moebox.core.deployment import Deployment
from moebox.core.model import Model
from moebox.core.recipe import Recipe, Speculate
from moebox.core.traits import Traits
from moebox.engines import LaunchNode, modules
from moebox.engines.assemble import container_network, runs_in_container
from moebox.engines.flags import Argument, newest_version
from moebox.engines.reasons import flag_reason
from moebox.errors import refuse_if
from moebox.render import quoting

DRAFT_MARK = "the-draft-goes-here"
DEFAULT_DRAFT = "lightseekorg/kimi-k2.6-eagle3"  # the draft that Kimi K2.6's guides use, where the model names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable the file takes from its surroundings, and what it is without."""

    name: str
    default: str
    about: str = ""
    local: str = ""  # what a file that runs on the machine itself takes as well
    times: int = 1  # for a limit that the engine divides over its slots


Value = tuple[str | Variable, ...]
Piece = tuple[Value, ...]  # a flag with its values
VARIABLE_TEXTS = {
    "MODEL_PATH": "Hub repository of the weights",
    "SERVED_MODEL_NAME": "name that clients ask for",
    "MAX_MODEL_LEN": "context of one request, tokens",
    "GPU_MEMORY_UTILIZATION": "share of each GPU's memory the engine may take",
    "PORT": "where it answers",
    "ENABLE_EAGLE3": "1 turns speculative decoding on; first trust the model without",
    "EAGLE3_MODEL": "draft model",
    "MASTER_ADDR": "address of the first machine",
    "NODE_RANK": "number of this machine, from 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPieces:
    """Everything a template needs to know."""

    recipe: Recipe
    engine: Traits
    version: str
    args: tuple[Piece, ...]
    draft: tuple[Piece, ...]  # only with ENABLE_EAGLE3=1
    variables: tuple[Variable, ...]
    in_container: bool
    reasons: Mapping[Piece, str]  # the reason for each, one line


def launch_pieces(deployment: Deployment, *, node: LaunchNode | None = None, variable: bool = True) -> LaunchPieces:
    """The launch of `recipe` in pieces; without `variable` every value stands as it is."""
    recipe, argv = deployment.recipe, modules.argv_module(deployment.engine.name)
    inside = runs_in_container(recipe)
    bind = "0.0.0.0" if inside and container_network(recipe) != "host" else recipe.listen.host  # noqa: S104
    plain = deployment.with_recipe(dataclasses.replace(recipe, speculate=None))
    words = argv.arguments(plain, node=node, host=bind)
    names = argv.VARIABLES if variable else {}
    args = tuple(_piece(word, names, place, recipe) for place, word in enumerate(words))
    drafting = _draft_words(deployment, variable=variable)
    draft = tuple(_draft_piece(word, deployment, variable=variable) for word in drafting)
    explained = zip((*args, *draft), (*words, *drafting), strict=True)
    return LaunchPieces(
        recipe=recipe,
        engine=deployment.engine,
        version=recipe.engine_version or newest_version(recipe.engine),
        args=args,
        draft=draft,
        variables=_variables(args, deployment, drafts=bool(draft) and variable),
        in_container=inside,
        reasons={piece: flag_reason(deployment, word) for piece, word in explained},
    )


def _draft_piece(word: Argument, deployment: Deployment, *, variable: bool) -> Piece:
    """A word of the draft, its name a variable where the file has any."""
    return tuple(_split(part, deployment) if variable else (part,) for part in word)


def _variables(args: tuple[Piece, ...], deployment: Deployment, *, drafts: bool) -> tuple[Variable, ...]:
    """The variables of a file, in the order of ABOUT: those of its words, and the draft's two."""
    parts = (part for piece in args for value in piece for part in value)
    found = {part.name: part for part in parts if isinstance(part, Variable)}
    if drafts:
        found |= _draft_variables(deployment)
    order = list(VARIABLE_TEXTS)
    return tuple(sorted(found.values(), key=lambda variable: order.index(variable.name)))


def _draft_variables(deployment: Deployment) -> dict[str, Variable]:
    """Whether there is a draft, and which; a model's own layers and n-grams name none."""
    speculate = deployment.recipe.speculate
    switch = {"ENABLE_EAGLE3": _var("ENABLE_EAGLE3", "1" if speculate else "0")}
    named = speculate is None or speculate.draft
    return switch | {"EAGLE3_MODEL": _draft_model(deployment)} if named else switch


def _draft_model(deployment: Deployment) -> Variable:
    """The recipe's draft, or the one that goes with the model."""
    speculate = deployment.recipe.speculate
    return _var("EAGLE3_MODEL", speculate.draft if speculate else _draft_of(deployment.known_model))


def _piece(word: Argument, names: Mapping[str, str], place: int, recipe: Recipe) -> Piece:
    flag, *values = word
    if place == 0 and names:
        return (*((part,) for part in word[:-1]), (_weights(word),))
    if flag not in names or len(values) != 1:
        return tuple((part,) for part in word)
    if flag == "-c":  # llama.cpp divides it over its slots
        return ((flag,), (_var(names[flag], str(int(values[0]) // recipe.slots), times=recipe.slots),))
    return ((flag,), (_var(names[flag], values[0]),))


def _draft_words(deployment: Deployment, *, variable: bool) -> list[Argument]:
    """The draft's words; with variables they are there even if the recipe has none, to be turned on later."""
    recipe = deployment.recipe
    chosen = recipe.speculate
    if chosen is None and (not variable or not _has_draft(deployment)):
        return []
    asked = chosen or Speculate(draft=DRAFT_MARK)
    if variable and asked.draft:
        asked = dataclasses.replace(asked, draft=DRAFT_MARK)
    return modules.argv_module(recipe.engine).draft_arguments(dataclasses.replace(recipe, speculate=asked))


def _split(text: str, deployment: Deployment) -> Value:
    """A text with the draft's name in it, as text, variable, text."""
    before, marker, after = text.partition(DRAFT_MARK)
    if not marker:
        return (text,)
    return tuple(filter(None, (before, _draft_model(deployment), after)))


def _has_draft(deployment: Deployment) -> bool:
    """Whether a draft may be turned on later: one is known, and the recipe's climb would try it."""
    model, tried = deployment.known_model, Speculate().method in deployment.recipe.climb.speculate
    return tried and bool(deployment.engine.draft_methods) and (model is None or bool(model.drafts))


def _draft_of(model: Model | None) -> str:
    return model.drafts[0] if model and model.drafts else DEFAULT_DRAFT


def _var(name: str, default: str, *, times: int = 1) -> Variable:
    return Variable(name=name, default=default, about=VARIABLE_TEXTS[name], times=times)


def _weights(word: Argument) -> Variable:
    """The weights as a variable: of the Hub, or a file or folder of the machine's."""
    named = _var("MODEL_PATH", word[-1])
    if Path(word[-1]).is_absolute():
        return dataclasses.replace(named, about="file or folder of the weights")
    return dataclasses.replace(named, local="a .gguf file" if len(word) > 1 else "a folder")


def default_text(value: Value) -> str:
    """A value with every variable at its default."""
    return "".join(part if isinstance(part, str) else str(_times(part)) for part in value)


def _times(part: Variable) -> str:
    return str(int(part.default) * part.times) if part.times != 1 else part.default


def bash_value(value: Value) -> str:
    """A value as bash writes it."""
    parts = []
    for part in value:
        if isinstance(part, str):
            parts.append(quoting.quote_bash(part))
        elif part.times != 1:
            parts.append(f'"$(({part.name} * {part.times}))"')
        else:
            parts.append(f'"${part.name}"')
    return "".join(parts)


def bash_line(piece: Piece) -> str:
    """A flag with its values on one line of bash."""
    return " ".join(map(bash_value, piece))


def compose_value(value: Value) -> str:
    """A value as Compose interpolates it; its own dollars are doubled."""
    return "".join(quoting.escape_compose(part) if isinstance(part, str) else _interpolated(part) for part in value)


def _interpolated(part: Variable) -> str:
    """`${NAME:-default}`, or the default alone where Compose could not find its end."""
    if part.times != 1 or "{" in part.default or "}" in part.default:
        return quoting.escape_compose(_times(part))
    return f"${{{part.name}:-{quoting.escape_compose(part.default)}}}"


def unit_argument(value: Value) -> str:
    """A word of ExecStart=; the file's variables are left to systemd, which puts each in as one word."""
    text = "".join(
        part.replace("%", "%%").replace("$", "$$") if isinstance(part, str) else _expanded(part) for part in value
    )
    return quoting.quote_unit(text)


def _expanded(part: Variable) -> str:
    return f"${{{part.name}}}" if part.times == 1 else _times(part)


def kubernetes_value(value: Value) -> str:
    """A value with every variable at its default, and nothing for the kubelet to expand."""
    return quoting.escape_kubernetes(default_text(value))


def refuse_unrenderable(recipe: Recipe) -> None:
    """What cannot stand without moebox is not rendered."""
    refuse_if(
        recipe.runtime.kind == "embedded",
        "an embedded engine runs inside moebox and cannot be rendered to stand alone",
        hint='runtime.kind = "native" uses the llama-server on PATH',
    )
    for name in recipe.env:
        clash = f"env.{name}: a file that stands alone has a variable of that name"
        refuse_if(name in VARIABLE_TEXTS, clash, hint=VARIABLE_TEXTS.get(name))
    refuse_if(not recipe.listen.port, "listen.port: a file that stands alone needs a port of its own", hint="e.g. 8000")
