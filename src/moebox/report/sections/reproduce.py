"""How to reproduce a run: commands, recipe and versions; sources of imported figures, and what is missing."""

from collections.abc import Sequence

from moebox import codec
from moebox.assess.commands import run_commands
from moebox.assess.format import unique_names
from moebox.core.recipe import Recipe
from moebox.loose import Document, Json, as_object
from moebox.redact import redact_text
from moebox.report.block import Block, CustomBlock, Section, bullet_list
from moebox.report.table import table_blocks
from moebox.runs.record import RunRecord

NEEDED = ("name", "engine", "model", "checkpoint", "served_name")


def reproduce_section(records: Sequence[RunRecord]) -> Section:
    """For each run its commands and its recipe; a table of versions."""
    blocks: list[Block] = []
    for record in records:
        suffix = record.title_suffix
        texts = [(f"Commands{suffix}", redact_text(run_commands(record)))]
        texts += [(title + suffix, redact_text(text)) for title, text in record.commands]
        if record.recipe:
            texts.append((f"recipe.toml{suffix}", redact_text(codec.to_toml(non_default_settings(record.recipe)))))
        for place, (title, text) in enumerate(texts):
            data = {"title": title, "text": text, "open": place == 0 and not record.page_label}
            blocks += [CustomBlock("code", data)] if text else []
    tables = [dict(record.versions) for record in records]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, *(table.get(name, "") for table in tables)) for name in names]
    heads = ("Software", *(record.page_label or "Version" for record in records))
    blocks += table_blocks(heads, rows, text=range(len(heads)), caption="Versions", sortable=False)
    return Section(id="reproduce", title="How to reproduce", blocks=blocks)


def notes_section(records: Sequence[RunRecord]) -> Section:
    """Sources, remarks on imported figures, and what is missing in each run."""
    rows = [row for record in records for row in record.info.sources]
    sources = list(dict.fromkeys((row.get("title", ""), row.get("url", "")) for row in rows))
    blocks: list[Block] = [CustomBlock("sources", sources)] if sources else []
    blocks += bullet_list("Remarks on the figures", unique_names(n for record in records for n in record.info.notes))
    for record in records:  # an import never had some of our files, which is not worth a line
        gaps = [gap for gap in record.gaps if not record.imported or not gap.endswith(("missing", "unknown"))]
        blocks += bullet_list(f"Not in {record.page_label or 'this run'}", gaps)
    return Section(id="notes", title="Sources and gaps", blocks=blocks)


def non_default_settings(recipe: Recipe) -> Document:
    """The settings that differ from their defaults, which is all that a recipe file needs."""
    defaults = codec.to_plain(Recipe(**codec.pick_fields(recipe, NEEDED)))
    return _differences(codec.to_plain(recipe), defaults, keep=(*NEEDED, "format"))


def _differences(values: Json, defaults: Json, keep: tuple[str, ...] = ()) -> Document:
    """Fields of `values` that differ from `defaults`, tables field by field."""
    found: Document = {}
    for name, value in values.items():
        default = defaults.get(name)
        if name in keep or value != default:
            is_table = isinstance(value, dict) and isinstance(default, dict)
            found[name] = _differences(as_object(value), as_object(default)) if is_table else value
    return found
