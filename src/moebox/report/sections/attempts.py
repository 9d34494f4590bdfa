"""Every try at a launch, what it was, what came of it and why."""

from collections.abc import Sequence

from moebox import units
from moebox.report.bars import phases
from moebox.report.block import Block, Chart, Charts, Part, Section, Tone
from moebox.report.palette import colour
from moebox.report.story import Attempt, Outcome, Story

TONES: dict[Outcome, Tone] = {
    "SUCCESS": "good",
    "PARTIAL": "warn",
    "FAILED": "bad",
    "RUNNING": "quiet",
    "STOPPED": "quiet",
}


def section(stories: Sequence[Story]) -> Section | None:
    """The timeline over all runs, and where the time went."""
    found = [(index, attempt) for index, story in enumerate(stories) for attempt in story.attempts]
    found.sort(key=lambda entry: (entry[1].started, entry[1].number))
    blocks: list[Block] = []
    if found:
        rows = [entry(stories, index, attempt) for index, attempt in found]
        blocks.append(Part(kind="attempts", data=rows))
    for story in stories:
        svg = phases(story.phases, label=f"Where the time of {story.label} went")
        if svg:
            blocks.append(
                Charts(
                    charts=(
                        Chart(
                            title=f"Where the time went{'' if len(stories) == 1 else ': ' + story.label}",
                            svg=svg,
                            wide=True,
                        ),
                    )
                )
            )
    if not blocks:
        return None
    return Section(id="attempts", title="Attempts", lead=lead([attempt for _, attempt in found]), blocks=tuple(blocks))


def entry(stories: Sequence[Story], index: int, attempt: Attempt) -> dict[str, object]:
    """One try as the template shows it."""
    took = attempt.ended - attempt.started
    return {
        "attempt": attempt,
        "tone": TONES[attempt.outcome],
        "run": stories[index].label if len(stories) > 1 else "",
        "colour": colour(index),
        "took": units.seconds(took) if took > 0 else "",
    }


def lead(attempts: Sequence[Attempt]) -> str:
    """How many it took."""
    if not attempts:
        return ""
    counts = {outcome: sum(one.outcome == outcome for one in attempts) for outcome in ("FAILED", "PARTIAL", "SUCCESS")}
    words = [f"{counts['FAILED']} failed", f"{counts['PARTIAL']} worked in part", f"{counts['SUCCESS']} succeeded"]
    return (
        f"{len(attempts)} attempt{'s' * (len(attempts) != 1)}: "
        + ", ".join(word for word in words if not word.startswith("0 "))
        + "."
    )
