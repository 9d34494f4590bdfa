"""How to do it again: recipe, commands, versions."""

from collections.abc import Sequence
from typing import Any

from moebox import codec
from moebox.core.recipe import Recipe
from moebox.report.block import Block, Part, Section, Table, columns, words
from moebox.report.story import Story
from moebox.report.tidy import redact

NEEDED = ("name", "engine", "model", "checkpoint", "served_name")


def section(stories: Sequence[Story]) -> Section | None:
    """Per run: what to type, the recipe in full, the versions found."""
    blocks: list[Block] = []
    for story in stories:
        of = f": {story.label}" if len(stories) > 1 else ""
        if story.recipe:
            blocks.append(
                Part(kind="code", data={"title": f"Commands{of}", "text": commands(story), "open": len(stories) == 1})
            )
        for title, text in story.commands:
            blocks.append(Part(kind="code", data={"title": title + of, "text": redact(text), "open": False}))
        if story.recipe:
            text = redact(codec.to_toml(lean(story.recipe)))
            blocks.append(Part(kind="code", data={"title": f"recipe.toml{of}", "text": text, "open": False}))
    versions = table(stories)
    blocks += [versions] if versions else []
    return Section(id="reproduce", title="How to reproduce", blocks=tuple(blocks)) if blocks else None


def lean(recipe: Recipe) -> dict[str, Any]:
    """The settings that differ from their defaults, which is all a recipe file needs."""
    needed = Recipe(**{name: getattr(recipe, name) for name in NEEDED})
    return without(codec.plain(recipe), codec.plain(needed), keep=(*NEEDED, "format"))


def without(values: dict[str, Any], usual: dict[str, Any], keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """What of `values` is not as in `usual`, tables looked through."""
    left: dict[str, Any] = {}
    for name, value in values.items():
        if name in keep or value != usual.get(name):
            before = usual.get(name)
            left[name] = without(value, before) if isinstance(value, dict) and isinstance(before, dict) else value
    return left


def commands(story: Story) -> str:
    """What to type to get the same again."""
    lines = ["# save the recipe below as recipe.toml", "moebox up recipe.toml", "moebox verify recipe.toml"]
    loads = sorted({int(level.concurrency) for level in story.levels if level.concurrency})
    shapes = {
        (level.input_tokens, level.output_tokens)
        for level in story.levels
        if level.input_tokens and level.output_tokens
    }
    sweep = f" --concurrency {','.join(map(str, loads))}" if loads else ""
    for ask, answer in sorted(shapes) or [(0.0, 0.0)]:
        lengths = f" --input {ask:.0f} --output {answer:.0f}" if ask and answer else ""
        lines.append(f"moebox bench recipe.toml{lengths}{sweep}")
    return "\n".join([*lines, "moebox report latest"])


def table(stories: Sequence[Story]) -> Table | None:
    """Versions, runs across."""
    names = list(dict.fromkeys(name for story in stories for name, _ in story.versions))
    if not names:
        return None
    tables = [dict(story.versions) for story in stories]
    rows = tuple((words(name), *(words(one.get(name, "")) for one in tables)) for name in names)
    heads = ("Software", *(story.label if len(stories) > 1 else "Version" for story in stories))
    return Table(caption="Versions", columns=columns(*heads, text=range(len(heads))), rows=rows, sortable=False)
