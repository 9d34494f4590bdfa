"""What is known of the engine's kernels before a GPU has to find out: which will not launch, what was not covered."""

from collections.abc import Sequence
from dataclasses import replace

from moebox.report.block import Block, Bullets, Cell, Section, Table, cell, columns, words
from moebox.report.story import KernelSeen, KernelsSeen, Story

SHOWN = 12  # reasons a list shows at the most


def section(stories: Sequence[Story]) -> Section | None:
    """One table of what was judged, one of what fails, and lists of what was left out."""
    looks = [(story, look) for story in stories for look in story.kernels]
    if not looks:
        return None
    several = len(stories) > 1
    rows = tuple(judged(look, story.label if several else "") for story, look in looks)
    heads = columns(
        "Kernels of", "For", "Judged", "Launches", "Spill", "Will not launch", "Not covered", text=(0, 1, 2)
    )
    blocks: list[Block] = [Table(columns=heads, rows=rows, sortable=False)]
    bad = alike([one for _, look in looks for one in look.bad])
    if bad:
        heads = columns("Kernel", "Asks bytes", "There are", "Blocks", "When", "Launched at", text=(0, 3, 4, 5))
        failing = tuple(failure(ones) for ones in bad)
        blocks.append(Table(caption="Will not launch", columns=heads, rows=failing))
    looked = [look for _, look in looks]
    blocks += lists("Not covered", [pair for look in looked for pair in look.not_covered], ": ")
    known = [pair for look in looked for pair in look.judged]
    blocks += lists("Not Triton's: known by version, not compiled", known, " → ")
    return Section(id="kernels", title="Kernels", lead=lead(looked), blocks=tuple(blocks))


def lead(looks: Sequence[KernelsSeen]) -> str:
    """The finding in a sentence."""
    launches, bad = sum(look.launches for look in looks), sum(len(look.bad) for look in looks)
    how = " or ".join(dict.fromkeys("compiled" if look.compiled else "looked up" for look in looks))
    if not launches:
        return "No kernel was judged: see what was not covered."
    fate = f"{bad} will not launch" if bad else "all of them fit the GPU's shared memory"
    return f"{launches} launches {how}; {fate}."


def judged(look: KernelsSeen, run: str) -> tuple[Cell, ...]:
    """One look at an engine."""
    whose = f"{look.model} TP{look.tp}, {look.kv} cache, {look.arch}" if look.model else look.arch
    how = f"by compiling (Triton {look.triton})" if look.compiled else "by table" if look.launches else "not judged"
    return (
        words(f"{look.engine} {look.version}".strip() + (f" ({run})" if run else "")),
        words(whose),
        words(how),
        cell(float(look.launches), digits=0),
        cell(float(look.spills), digits=0) if look.compiled else words(""),
        cell(float(len(look.bad)), digits=0, tone="bad" if look.bad else ""),
        cell(float(len(look.not_covered)), digits=0),
    )


def alike(bad: Sequence[KernelSeen]) -> list[list[KernelSeen]]:
    """Launches of one kernel with the same blocks, which fail together."""
    groups: dict[KernelSeen, list[KernelSeen]] = {}
    for one in dict.fromkeys(bad):
        groups.setdefault(replace(one, case=""), []).append(one)
    return list(groups.values())


def failure(ones: Sequence[KernelSeen]) -> tuple[Cell, ...]:
    """A launch that fails, and when."""
    one, cases = ones[0], [each.case for each in ones if each.case]
    more = f" and {len(cases) - 2} more" if len(cases) > 3 else ""
    return (
        words(one.name, tone="bad"),
        cell(one.asked, digits=0),
        cell(one.limit, digits=0),
        words(one.blocks),
        words("; ".join(cases[: 2 if more else 3]) + more),
        words(one.place),
    )


def lists(title: str, pairs: Sequence[tuple[str, str]], joint: str) -> list[Block]:
    """What shares a reason on one line."""
    reasons: dict[str, list[str]] = {}
    for what, why in dict.fromkeys(pairs):
        reasons.setdefault(why, []).append(what.rstrip("."))
    items = [", ".join(what) + (joint + why if why else "") for why, what in reasons.items()]
    if len(items) > SHOWN:
        items = [*items[:SHOWN], f"and {len(items) - SHOWN} more in kernels.json"]
    return [Bullets(title=title, items=tuple(items))] if items else []
