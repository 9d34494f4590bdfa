"""A recipe's launch in pieces that each file format quotes in its own way.

A value is made of texts and variables: a shell script writes `"$PORT"` where a Kubernetes file writes 8000.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe, Speculate
from moebox.core.traits import Traits
from moebox.data import load_table
from moebox.engines import LaunchNode
from moebox.engines.assemble import container_network, runs_in_container
from moebox.engines.engine import load_engine
from moebox.engines.flags import Argument, newest_version
from moebox.engines.kv_store import store_folder
from moebox.engines.reasons import flag_reason
from moebox.errors import refuse_if
from moebox.render import quoting

DRAFT_MARK = "the-draft-goes-here"
DEFAULT_DRAFT = "lightseekorg/kimi-k2.6-eagle3"  # the draft that Kimi K2.6's guides use, if the model names none
VARIABLE_TEXTS: dict[str, str] = load_table("launch_files")["variables"]
Context = dict[str, object]  # what a template is filled with, by the names that it uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that the file reads, and its default."""

    name: str
    default: str
    about: str = ""
    local: str = ""  # what else a file that runs on the machine itself accepts
    times: int = 1  # for a limit that the engine divides over its slots

    @property
    def plain_value(self) -> str:
        """The value that the engine gets by default."""
        return str(int(self.default) * self.times) if self.times != 1 else self.default


Value = tuple[str | Variable, ...]
Piece = tuple[Value, ...]  # a flag with its values


@dataclass(frozen=True, slots=True, kw_only=True)
class ListItem:
    word: str
    reason: str = ""  # the comment above it


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPieces:
    recipe: Recipe
    engine: Traits
    version: str
    args: tuple[Piece, ...]
    draft: tuple[Piece, ...]  # only with ENABLE_EAGLE3=1
    variables: tuple[Variable, ...]
    in_container: bool
    reasons: Mapping[Piece, str]  # one line each

    @property
    def all_args(self) -> tuple[Piece, ...]:
        """The arguments, the draft's included if the recipe has one."""
        return (*self.args, *self.draft) if self.recipe.speculate else self.args

    @property
    def used_variables(self) -> list[Variable]:
        """Variables of a file that has no conditions: the draft's only if the recipe has a draft."""
        unused = {"ENABLE_EAGLE3"} | (set() if self.recipe.speculate else {"EAGLE3_MODEL"})
        return [variable for variable in self.variables if variable.name not in unused]

    def entry_words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the words of `argv` before the engine's own arguments."""
        return tuple(argv[: len(argv) - sum(map(len, self.all_args))])

    def list_items(self, quote: Callable[[Value], str]) -> list[ListItem]:
        """Return the arguments as entries of a YAML list, the reason above each flag."""
        return [
            ListItem(word=quote(value), reason="" if place else self.reasons[piece])
            for piece in self.all_args
            for place, value in enumerate(piece)
        ]

    def reason_lines(self) -> list[str]:
        """Return `--flag: reason` lines, for a format without comments inside a command."""
        firsts = [(piece[0][0], self.reasons[piece]) for piece in self.all_args]
        named = [(first if isinstance(first, str) else first.name, reason) for first, reason in firsts]
        return list(dict.fromkeys(f"{name}: {reason}" for name, reason in named if reason))


def launch_pieces(deployment: Deployment, *, node: LaunchNode | None = None, variable: bool = True) -> LaunchPieces:
    """Split a launch into pieces; without `variable` every value is literal."""
    recipe, speculate, model = deployment.recipe, deployment.recipe.speculate, deployment.known_model
    engine = load_engine(deployment.engine.name)
    in_container = runs_in_container(recipe)
    bind = "0.0.0.0" if in_container and container_network(recipe) != "host" else recipe.listen.host  # noqa: S104
    without_draft = deployment.with_recipe(dataclasses.replace(recipe, speculate=None))
    given = engine.arguments(without_draft, node=node, host=bind)
    words = [tuple(with_home(text, deployment) for text in word) for word in given]
    names = engine.variables if variable else {}
    args = tuple(_argument_piece(word, names, place, recipe.slots) for place, word in enumerate(words))
    known_draft = model.drafts[0] if model and model.drafts else DEFAULT_DRAFT
    draft_model = _make_variable("EAGLE3_MODEL", speculate.draft if speculate else known_draft)
    draft_words = _draft_arguments(deployment, variable=variable)
    draft = tuple(tuple(_insert_draft(text, draft_model, variable) for text in word) for word in draft_words)
    used = [part for piece in args for value in piece for part in value if isinstance(part, Variable)]
    if draft and variable:
        used.append(_make_variable("ENABLE_EAGLE3", "1" if speculate else "0"))
        used += [draft_model] if speculate is None or speculate.draft else []
    order, explained = list(VARIABLE_TEXTS), zip((*args, *draft), (*words, *draft_words), strict=True)
    by_name = {part.name: part for part in used}
    return LaunchPieces(
        recipe=recipe,
        engine=deployment.engine,
        version=recipe.engine_version or newest_version(recipe.engine),
        args=args,
        draft=draft,
        variables=tuple(sorted(by_name.values(), key=lambda part: order.index(part.name))),
        in_container=in_container,
        reasons={piece: flag_reason(deployment, word) for piece, word in explained},
    )


def with_home(text: str, deployment: Deployment) -> str:
    """Return a text with the path of the KV store in the home of the user who runs the file."""
    store = store_folder(deployment)
    return text.replace(store, quoting.HOME + store[1:]) if store.startswith("~") else text


def _make_variable(name: str, default: str, *, times: int = 1) -> Variable:
    return Variable(name=name, default=default, about=VARIABLE_TEXTS[name], times=times)


def _argument_piece(word: Argument, names: Mapping[str, str], place: int, slots: int) -> Piece:
    """Turn an argument into a piece; the first one names the weights."""
    flag, *values = word
    if place == 0 and names:
        weights = _make_variable("MODEL_PATH", word[-1])
        if Path(word[-1]).is_absolute():
            weights = dataclasses.replace(weights, about="file or folder of the weights")
        else:
            weights = dataclasses.replace(weights, local="a .gguf file" if len(word) > 1 else "a folder")
        return (*((part,) for part in word[:-1]), (weights,))
    if flag not in names or len(values) != 1:
        return tuple((part,) for part in word)
    if flag == "-c":  # llama.cpp divides it over its slots
        return ((flag,), (_make_variable(names[flag], str(int(values[0]) // slots), times=slots),))
    return ((flag,), (_make_variable(names[flag], values[0]),))


def _draft_arguments(deployment: Deployment, *, variable: bool) -> list[Argument]:
    """Return the draft's arguments.

    With variables they are there even if the recipe has no draft, so that it can be turned on later: if a draft is
    known and the recipe's climb would try it.
    """
    recipe, model = deployment.recipe, deployment.known_model
    speculate = recipe.speculate
    if speculate is None:
        would_try = Speculate().method in recipe.climb.speculate
        possible = would_try and deployment.engine.draft_methods and (model is None or model.drafts)
        if not variable or not possible:
            return []
        speculate = Speculate(draft=DRAFT_MARK)
    elif variable and speculate.draft:
        speculate = dataclasses.replace(speculate, draft=DRAFT_MARK)
    return load_engine(recipe.engine).draft_arguments(dataclasses.replace(recipe, speculate=speculate))


def _insert_draft(text: str, draft_model: Variable, variable: bool) -> Value:
    """Replace the mark in a text by the draft's variable."""
    before, mark, after = text.partition(DRAFT_MARK)
    if not mark or not variable:
        return (text,)
    return tuple(filter(None, (before, draft_model, after)))


def bash_line(piece: Piece) -> str:
    def quote(part: str | Variable) -> str:
        if isinstance(part, str):
            return quoting.quote_bash(part)
        return f'"$(({part.name} * {part.times}))"' if part.times != 1 else f'"${part.name}"'

    return " ".join("".join(map(quote, value)) for value in piece)


def compose_value(value: Value) -> str:
    """Write a value for Compose, with `${NAME:-default}` for variables unless Compose could not find the end of it."""

    def interpolate(part: str | Variable) -> str:
        if isinstance(part, str):
            return quoting.escape_compose(part)
        if part.times != 1 or "{" in part.default or "}" in part.default:
            return quoting.escape_compose(part.plain_value)
        return f"${{{part.name}:-{quoting.escape_compose(part.default)}}}"

    return "".join(map(interpolate, value))


def unit_argument(value: Value) -> str:
    """Write a word of ExecStart=; systemd expands each of the file's variables to one word."""

    def expand(part: str | Variable) -> str:
        if isinstance(part, str):
            return part.replace("%", "%%").replace("$", "$$").replace(quoting.HOME, "%h")
        return f"${{{part.name}}}" if part.times == 1 else part.plain_value

    return quoting.quote_unit("".join(map(expand, value)))


def kubernetes_value(value: Value) -> str:
    """Write a value with every variable at its default, and nothing for the kubelet to expand."""
    plain = "".join(part if isinstance(part, str) else part.plain_value for part in value)
    return quoting.escape_kubernetes(plain)


def refuse_unrenderable(recipe: Recipe) -> None:
    """Raise BadInput for a recipe whose files could not run without moebox."""
    text = "an embedded engine runs inside moebox and cannot be rendered as a file of its own"
    refuse_if(recipe.runtime.kind == "embedded", text, hint='runtime.kind = "native" uses the llama-server on PATH')
    for name in recipe.env:
        clash = f"env.{name}: the rendered file has a variable of the same name"
        refuse_if(name in VARIABLE_TEXTS, clash, hint=VARIABLE_TEXTS.get(name))
    refuse_if(not recipe.listen.port, "listen.port: a rendered file needs a fixed port", hint="e.g. 8000")
