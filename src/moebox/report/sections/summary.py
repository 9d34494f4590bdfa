"""The first screen: headline figures and what they mean in a few sentences."""

from collections.abc import Sequence
from statistics import median

from moebox import units
from moebox.report.block import Block, Prose, Section, Tile, Tiles, Tone
from moebox.report.naming import box_title, engine_title, model_title, quant_title, spread_title
from moebox.report.palette import colour
from moebox.report.rules import advise
from moebox.report.sections.models import status
from moebox.report.sections.plan import pairs
from moebox.report.story import Level, Story
from moebox.report.words import DASH, listed, milliseconds, number, short

MOST_TILES = 6
STATES = {"WORKING": "works", "PARTLY": "works in part", "FAILED": "failed", "SIMULATED": "was simulated"}


def section(stories: Sequence[Story]) -> Section:
    """Tiles and prose."""
    tiles = for_one(stories[0]) if len(stories) == 1 else for_several(stories)
    blocks: list[Block] = [Prose(paragraphs=tuple(prose(stories)))]
    if tiles:
        blocks.insert(0, Tiles(tiles=tuple(tiles[:MOST_TILES])))
    return Section(id="summary", title="Summary", blocks=tuple(blocks))


def at(level: Level) -> str:
    """Under which load."""
    words = [f"at {number(level.concurrency)} concurrent" if level.concurrency else "", level.workload]
    return ", ".join(word for word in words if word)


def for_one(story: Story) -> list[Tile]:
    """One run's headline figures."""
    tiles: list[Tile] = []
    for name, label in (("output_tok_s", "highest output"), ("total_tok_s", "highest input + output")):
        level = story.peak(name)
        if level:
            tiles.append(Tile(figure=number(getattr(level, name)), unit="tok/s", label=label, detail=at(level)))
    for name, label in (("tg_tok_s", "token generation"), ("pp_tok_s", "prompt processing")):
        level = story.peak(name)
        if level:
            tiles.append(
                Tile(
                    figure=number(getattr(level, name)), unit="tok/s", label=label, detail=level.workload or level.name
                )
            )
    quick = [level for level in story.levels if level.ttft.middle and level.output_tok_s]
    if quick:
        level = min(quick, key=lambda one: one.ttft.middle or 0)
        figure, _, unit = milliseconds(level.ttft.middle).partition(" ")
        tiles.append(Tile(figure=figure, unit=unit, label="lowest mean TTFT", detail=at(level)))
    tiles += common(story)
    return tiles


def common(story: Story) -> list[Tile]:
    """KV capacity, ladder, plan."""
    tiles: list[Tile] = []
    if story.kv_tokens:
        tiles.append(
            Tile(
                figure=short(story.kv_tokens),
                unit="tokens",
                label="KV cache",
                detail=f"{units.count(story.kv_tokens)} exactly",
            )
        )
    tried = [rung for rung in story.rungs if rung.mark != "skip"]
    if tried and not story.simulation:
        passed = sum(rung.mark == "pass" for rung in tried)
        failed = [rung.name for rung in tried if rung.mark == "fail"]
        detail = f"{listed(failed)} failed" if failed else f"of {len(tried)}"
        tone: Tone = "bad" if failed else "good"
        tiles.append(Tile(figure=str(passed), label="checks passed", detail=detail, tone=tone))
    errors = [abs(pair.error) for pair in pairs([story]) if pair.unit == "tok/s"]
    if errors:
        tiles.append(
            Tile(
                figure=f"{median(errors) * 100:.0f}",
                unit="%",
                label="forecast error",
                detail=f"median of {len(errors)} rates",
            )
        )
    return tiles


def for_several(stories: Sequence[Story]) -> list[Tile]:
    """The same figure of each run where they are few, else the best of each figure; then what the box offers."""
    tiles = each(stories) if len(stories) <= 4 else best(stories)
    if len(stories) > 4:
        work = sum(status(story) == "WORKING" for story in stories)
        tiles.append(
            Tile(figure=str(len(stories)), label="configurations", detail=f"{work} of {len(stories)} fully working")
        )
    roomy = max(stories, key=lambda story: story.kv_tokens or 0)
    if roomy.kv_tokens:
        tiles.append(Tile(figure=short(roomy.kv_tokens), unit="tokens", label="largest KV cache", detail=roomy.label))
    box = stories[0].box
    if box and box.gpus and all(story.box == box for story in stories):
        detail = f"{len(box.gpus) * box.nodes} GPUs"
        tiles.append(Tile(figure=number(box.gpu_memory / 2**30, 0), unit="GiB", label="device memory", detail=detail))
    return tiles


FIGURES = (
    ("total_tok_s", "highest input + output"),
    ("output_tok_s", "highest output"),
    ("tg_tok_s", "fastest generation"),
    ("pp_tok_s", "fastest prompt processing"),
)


def each(stories: Sequence[Story]) -> list[Tile]:
    """One figure that most runs have, run by run."""
    name, label = max(FIGURES, key=lambda figure: sum(bool(story.peak(figure[0])) for story in stories))
    tiles = []
    for index, story in enumerate(stories):
        level = story.peak(name)
        if level:
            detail = f"{label} {at(level)}".strip()
            value = number(getattr(level, name))
            tiles.append(Tile(figure=value, unit="tok/s", label=story.label, detail=detail, colour=colour(index)))
    return tiles


def best(stories: Sequence[Story]) -> list[Tile]:
    """Each figure's best run."""
    tiles = []
    for name, label in FIGURES:
        found = [(getattr(level, name), index) for index, story in enumerate(stories) if (level := story.peak(name))]
        if found:
            value, index = max(found)
            detail = stories[index].label
            tiles.append(Tile(figure=number(value), unit="tok/s", label=label, detail=detail, colour=colour(index)))
    return tiles


def prose(stories: Sequence[Story]) -> list[str]:
    """What ran on what, how it scaled, and the first recommendation."""
    first = " ".join(openings(stories))
    paragraphs = [first] if first else []
    paragraphs += [f"{story.label}: {failed(story)}" for story in stories if story.failure]
    if not paragraphs:
        paragraphs = ["Nothing was measured in this run yet."]
    grew = [sentence for story in stories[:3] for sentence in scaling(story, alone=len(stories) == 1)]
    if grew:
        paragraphs.append(" ".join(grew))
    advice = advise(stories)
    if advice:
        across = [one for one in advice if len(one.runs) > 1]
        chosen = across[0] if len(stories) > 2 and across else advice[0]
        paragraphs.append(f"Recommended: {chosen.title[0].lower()}{chosen.title[1:]}. {chosen.text}")
    return paragraphs


def failed(story: Story) -> str:
    """Why the run ended early, in a sentence."""
    failure = story.failure
    assert failure is not None
    parts = [f"{failure.step} failed: {failure.what}", failure.cause, failure.remedy or failure.hint]
    return ". ".join(part.rstrip(".") for part in parts if part) + "."


def openings(stories: Sequence[Story]) -> list[str]:
    """Runs of one model on one box in one sentence."""
    groups: dict[tuple[str, str], list[Story]] = {}
    for story in stories:
        if story.recipe:
            groups.setdefault((model_title(story.recipe.model), box_title(story)), []).append(story)
    return [opening(group) for group in groups.values()]


def opening(group: Sequence[Story]) -> str:
    """What ran on what, with what, and whether it works."""
    story = group[0]
    assert story.recipe is not None
    quants = listed(list(dict.fromkeys(quant_title(one) for one in group)))
    engines = listed(list(dict.fromkeys(engine_title(one) for one in group)))
    where = f" on {box_title(story)}" if box_title(story) else ""
    spread = f", {spread_title(story)}" if spread_title(story) and len(group) == 1 else ""
    # A climb or a resumed story starts its engine more than once; only failures make that worth a word here.
    tried = len(story.attempts) > 1 and any(one.outcome != "SUCCESS" for one in story.attempts)
    tries = f" after {len(story.attempts)} attempts" if len(group) == 1 and tried and not story.imported else ""
    sim = " (simulated)" if len(group) > 1 and any(one.simulation for one in group) else ""
    name = f"{model_title(story.recipe.model)} ({quants})"
    if len(group) == 1:
        return f"{name} {STATES.get(status(story), 'was tried')}{where} with {engines}{spread}{tries}{sim}."
    lame = [one.label for one in group if status(one) in ("PARTLY", "FAILED")]
    all_well = f"; {listed(lame)} only in part" if lame else ""
    return f"{name}{where} with {engines}: {len(group)} configurations{all_well}{sim}."


def scaling(story: Story, *, alone: bool = False) -> list[str]:
    """From the lowest to the highest load."""
    levels = [level for level in story.levels if level.concurrency and level.output_tok_s]
    who = "From" if alone else f"{story.label}: from"
    if len(levels) < 2 or len({level.workload for level in levels}) > 1:
        return []
    low, high = (
        min(levels, key=lambda level: level.concurrency or 0),
        max(levels, key=lambda level: level.concurrency or 0),
    )
    wait = ""
    if low.ttft.middle and high.ttft.middle:
        wait = f"; mean TTFT from {milliseconds(low.ttft.middle)} to {milliseconds(high.ttft.middle)}"
    return [
        f"{who} {number(low.concurrency)} to {number(high.concurrency)} concurrent requests output "
        "goes from "
        f"{number(low.output_tok_s)} to {number(high.output_tok_s)} tok/s{wait}."
    ]


def headline(story: Story) -> str:
    """One line for lists: the best figure there is."""
    level = story.peak() or story.peak("tg_tok_s")
    if not level:
        return DASH
    return f"{number(level.output_tok_s or level.tg_tok_s)} tok/s {at(level)}".strip()
