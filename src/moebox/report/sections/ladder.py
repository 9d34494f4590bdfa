"""Whether it answers right: each rung's verdict, its probes and the evidence to unfold."""

from collections.abc import Sequence

from moebox.report.block import Block, Cell, Column, Part, Section, Table, Tone, words
from moebox.report.palette import colour
from moebox.report.story import Mark, Story
from moebox.report.words import listed

TONES: dict[Mark, Tone] = {"pass": "good", "fail": "bad", "skip": "quiet", "warn": "warn"}
SIGNS: dict[Mark, str] = {"pass": "✓ pass", "fail": "✗ fail", "skip": "– skipped", "warn": "! warning"}


def section(stories: Sequence[Story]) -> Section | None:
    """A matrix over runs where there are several, then each ladder."""
    climbed = [(index, story) for index, story in enumerate(stories) if story.rungs]
    if not climbed:
        return None
    blocks: list[Block] = [matrix(climbed)] if len(climbed) > 1 else []
    for index, story in climbed:
        name = story.label if len(stories) > 1 else ""
        blocks.append(
            Part(kind="ladder", data={"name": name, "colour": colour(index), "rungs": story.rungs, "signs": SIGNS})
        )
    return Section(
        id="ladder", title="Does it answer right", lead=lead([story for _, story in climbed]), blocks=tuple(blocks)
    )


def matrix(climbed: Sequence[tuple[int, Story]]) -> Table:
    """Rungs down, runs across."""
    names = list(dict.fromkeys(rung.name for _, story in climbed for rung in story.rungs))
    rows = []
    for name in names:
        row: list[Cell] = [words(name)]
        for _, story in climbed:
            rung = next((one for one in story.rungs if one.name == name), None)
            row.append(words(SIGNS[rung.mark], tone=TONES[rung.mark]) if rung else words(""))
        rows.append(tuple(row))
    heads = (Column(title="Check", numeric=False), *(Column(title=story.label, numeric=False) for _, story in climbed))
    return Table(columns=heads, rows=tuple(rows), sortable=False)


def lead(stories: Sequence[Story]) -> str:
    """How many passed, and which did not."""
    said = []
    for story in stories:
        passed = sum(rung.mark == "pass" for rung in story.rungs)
        failed = [rung.name for rung in story.rungs if rung.mark == "fail"]
        name = "" if len(stories) == 1 else f"{story.label}: "
        tried = sum(rung.mark != "skip" for rung in story.rungs)
        warned = [rung.name for rung in story.rungs if rung.mark == "warn"]
        words = f"; warnings: {listed(warned)}" if warned else ""
        words += f"; {listed(failed)} failed" if failed else ""
        said.append(f"{name}{passed} of {tried} checks passed{words}.")
    return " ".join(said)
