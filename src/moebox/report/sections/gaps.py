"""What the report does not show, and where imported figures come from."""

from collections.abc import Sequence

from moebox.report.block import Block, Bullets, Part, Section
from moebox.report.story import Story


def section(stories: Sequence[Story]) -> Section | None:
    """Notes of what is missing; sources; remarks."""
    blocks: list[Block] = []
    sources = list(dict.fromkeys(source for story in stories for source in story.sources))
    if sources:
        blocks.append(Part(kind="sources", data=sources))
    notes = list(dict.fromkeys(note for story in stories for note in story.notes))
    if notes:
        blocks.append(Bullets(title="Remarks on the figures", items=tuple(notes)))
    for story in stories:
        gaps = [gap for gap in story.gaps if not (story.imported and gap.endswith(("not there", "unknown")))]
        if gaps:
            name = f"Not in {story.label}" if len(stories) > 1 else "Not in this run"
            blocks.append(Bullets(title=name, items=tuple(gaps)))
    return Section(id="notes", title="Sources and gaps", blocks=tuple(blocks)) if blocks else None
