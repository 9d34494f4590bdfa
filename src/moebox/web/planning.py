"""The plan page's answers: what was asked in the address, to a plan, to the blocks that are shown.

While a slider moves, the layout that was chosen last is only weighed again for the new context and concurrency (a few
milliseconds); when it rests, every layout is searched anew.
"""

import contextlib
import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from moebox import codec, units
from moebox.checkpoint import planned_checkpoint, resolve_model
from moebox.core import registry
from moebox.core.deployment import Deployment
from moebox.core.plan import Goal, Plan
from moebox.core.recipe import EngineName, Recipe
from moebox.errors import BadInput, MoeboxError
from moebox.flows import boxes
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.report.bars import collapse
from moebox.report.block import Block, Bullets, Chart, Charts, Part, Tile, Tiles
from moebox.report.charts import Axis, Series, legend, line, thousands
from moebox.report.decision import Decision, DecisionCell
from moebox.report.format import milliseconds, number, short
from moebox.report.palette import colour
from moebox.report.reading.planned import planned_of
from moebox.report.sections.memory import drawn
from moebox.report.sections.plan import joined
from moebox.store import calibrations
from moebox.units import plural

CONTEXTS = tuple(2**power for power in range(11, 21))  # the slider's stops: 2,048 … 1,048,576
CONCURRENCIES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST_RUNNERS_UP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One position of all the controls."""

    box: str = "8x-rtx-pro-6000-server"
    model: str = "kimi-k2.6"
    context: int = 65536
    concurrency: int = 8
    goal: Goal = "throughput"
    engine: EngineName | None = None
    bold: bool = False
    ram: str = ""
    ram_bandwidth: str = ""


def asked(query: Mapping[str, str]) -> Asked:
    """What the address asks for; BadInput names what cannot be meant."""
    goal: Any = query.get("goal") or "throughput"
    engine: Any = query.get("engine") or None
    if goal not in get_args(Goal):
        raise BadInput(f"unknown goal {goal!r}")
    if engine is not None and engine not in registry.engine_names():
        raise BadInput(f"unknown engine {engine!r}")
    return Asked(
        box=query.get("box", Asked().box).strip(),
        model=query.get("model", Asked().model).strip(),
        context=whole(query, "context", 65536),
        concurrency=whole(query, "concurrency", 8),
        goal=goal,
        engine=engine,
        bold=query.get("bold") in ("1", "on", "true"),
        ram=query.get("ram", "").strip(),
        ram_bandwidth=query.get("ram_bandwidth", "").strip(),
    )


def whole(query: Mapping[str, str], name: str, default: int) -> int:
    """A count from the address."""
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise BadInput(f"{name} {text!r} is not a count")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan and the speed model behind it."""

    asked: Asked
    plan: Plan
    speed: Speed


_answers: dict[Asked, Answer] = {}
MOST_ANSWERS = 256
_calibrated: tuple[tuple[str, int], ...] = ()


def refresh() -> None:
    """Forget answers that rest on other calibrations than there are now."""
    global _calibrated
    now = calibrations.store_stamp()
    if now != _calibrated:
        _calibrated = now
        _answers.clear()
        quick.cache_clear()


def full(one: Asked) -> Answer:
    """Search every layout; answers are kept, since people go back and forth."""
    if one not in _answers:
        if len(_answers) >= MOST_ANSWERS:
            _answers.pop(next(iter(_answers)), None)
        _answers[one] = answered(one, Constraints(goal=one.goal, bold=one.bold, engine=one.engine))
    return _answers[one]


def warm() -> None:
    """Plan what the page first shows, so that it is there at once."""
    with contextlib.suppress(MoeboxError):
        full(Asked())


def known(one: Asked) -> bool:
    """The answer is at hand."""
    return one in _answers


@functools.lru_cache(maxsize=512)
def quick(one: Asked, layout: Asked) -> Answer:
    """Weigh only the layout that `layout` led to; search everything where it does not hold."""
    try:
        return answered(one, pinned(full(layout).plan.recipe, one.goal))
    except MoeboxError:
        return full(one)


def pinned(recipe: Recipe, goal: Goal) -> Constraints:
    """The layout of a recipe as pins."""
    return Constraints(
        goal=goal,
        engine=recipe.engine,
        checkpoint=recipe.checkpoint,
        tp=recipe.parallel.tp,
        pp=recipe.parallel.pp,
        dcp=recipe.parallel.dcp,
        kv=None if recipe.kv == "auto" else recipe.kv,
        speculate=recipe.speculate.method if recipe.speculate else "none",
        image="community" if recipe.runtime.preset else "stock",
    )


def before(one: Asked, layout: str) -> Asked | None:
    """The position of the sliders ("65536:8") from which the layout is to be kept, or None."""
    context, _, concurrency = layout.partition(":")
    if not all(text.isascii() and text.isdigit() and len(text) <= 9 for text in (context, concurrency)):
        return None
    return replace(one, context=int(context), concurrency=int(concurrency))


def answered(one: Asked, pins: Constraints) -> Answer:
    """The plan for these controls within these pins."""
    model, checkpoints = resolve_model(one.model)
    box = boxes.calibrated_box(one.box or None, ram=one.ram, ram_bandwidth=one.ram_bandwidth)
    plan = choose_plan(box, model, checkpoints, replace(pins, context=one.context, concurrency=one.concurrency))
    plan = boxes.with_planned_box(plan, one.box, ram=one.ram, ram_bandwidth=one.ram_bandwidth)
    deployment = Deployment.from_parts(plan.recipe, model, planned_checkpoint(plan.recipe, checkpoints), box)
    return Answer(asked=one, plan=plan, speed=Speed.for_deployment(deployment))


def blocks(answer: Answer) -> list[Block]:
    """What the page shows of it."""
    plan = answer.plan
    shown: list[Block] = [Part(kind="decision", data=decision(answer)), Tiles(tiles=tiles(answer))]
    shown.append(Charts(charts=tuple(bars(plan))))
    forecast = curve(answer)
    shown += [Charts(charts=(forecast,))] if forecast else []
    if plan.warnings:
        texts = (joined(caution.text, " – ", caution.remedy) for caution in plan.warnings)
        shown.append(Bullets(title="Warnings", items=tuple(texts)))
    shown.append(Bullets(title="Why", items=plan.reasons))
    if plan.alternatives:
        others = (f"{other.title}: {other.loses}" for other in plan.alternatives[:MOST_RUNNERS_UP])
        shown.append(Bullets(title="Runners-up", items=tuple(others)))
    text = codec.to_toml(plan.recipe)
    shown.append(Part(kind="recipe", data={"name": plan.recipe.name, "text": text}))
    return shown


def command(asked: Asked) -> str:
    """The command that gives the same plan: every control that changes it."""
    words = ["moebox", "plan", asked.model, *(("--box", asked.box) if asked.box else ())]
    words += ["--context", str(asked.context), "--concurrency", str(asked.concurrency)]
    words += ["--goal", asked.goal] if asked.goal != Asked().goal else []
    words += ["--engine", asked.engine] if asked.engine else []
    words += ["--bold"] if asked.bold else []
    words += ["--ram", asked.ram] if asked.ram else []
    words += ["--ram-bandwidth", asked.ram_bandwidth] if asked.ram_bandwidth else []
    return shlex.join([*words, "-o", "recipe.toml"])


def decision(answer: Answer) -> Decision:
    """The same four cells as everywhere, for a plan: chosen, fits, forecast, next."""
    asked, plan = answer.asked, answer.plan
    recipe, memory = plan.recipe, plan.memory
    spread = [f"{name.upper()}{size}" for name in ("tp", "pp", "dcp") if (size := getattr(recipe.parallel, name)) > 1]
    words = [
        registry.engine_display_name(recipe.engine),
        Path(recipe.checkpoint).name,
        " ".join(spread),
        f"{recipe.kv} cache",
    ]
    held = int(memory.kv_tokens // max(asked.context, 1))
    enough = held >= asked.concurrency
    fits = f"{held} requests of {units.format_count(asked.context)} tokens at a time ({asked.concurrency} asked for)"
    rate, low, high = forecast(answer)
    return Decision(
        answers=(
            DecisionCell(name="chosen", text=" · ".join(filter(None, words))),
            DecisionCell(name="fits", text=fits, tone="good" if enough else "warn"),
            DecisionCell(
                name="forecast", text=f"{number(rate)} tok/s", detail=f"{number(low)} to {number(high)}; {basis(plan)}"
            ),
            DecisionCell(name="next", text=command(asked), command=True, detail="or save the recipe below"),
        )
    )


def basis(plan: Plan) -> str:
    """What the forecast rests on: a calibration of this box, or published measurements of others."""
    return f"steps {plan.measured}" if plan.measured else f"no calibration of this box: {plan.basis}"


def streams_of(answer: Answer) -> int:
    """How many requests of full length decode together."""
    held = int(answer.plan.memory.kv_tokens // max(answer.asked.context, 1))
    return max(1, min(answer.asked.concurrency, held or 1))


def forecast(answer: Answer) -> tuple[float, float, float]:
    """Decode tok/s at the asked load, and its band."""
    rate = answer.speed.decode_tok_s(streams_of(answer), answer.asked.context)
    low, high = answer.speed.decode_range
    return rate, rate * low, rate * high


def tiles(answer: Answer) -> tuple[Tile, ...]:
    """Headline figures of the plan at the asked load."""
    one, memory = answer.asked, answer.plan.memory
    streams = streams_of(answer)
    rate, low, high = forecast(answer)
    wait, _, unit = milliseconds(answer.speed.prefill_s(one.context) * 1e3).partition(" ")
    fit = memory.kv_tokens / max(one.context, 1)
    enough = fit >= one.concurrency
    band = f"{number(low, 0)} to {number(high, 0)}, {plural(streams, 'request')}"
    return (
        Tile(figure=number(rate), unit="tok/s", label="decode, all streams", detail=band),
        Tile(
            figure=number(rate / streams),
            unit="tok/s",
            label="each stream",
            detail=f"with {units.format_count(one.context)} tokens behind it",
        ),
        Tile(
            figure=wait,
            unit=unit,
            label="to read a full prompt",
            detail=f"{units.format_count(one.context)} tokens, nothing cached",
        ),
        Tile(
            figure=short(memory.kv_tokens), unit="tokens", label="KV cache", detail=units.format_count(memory.kv_tokens)
        ),
        Tile(
            figure=number(fit, 1),
            label="requests at full context",
            detail=f"{one.concurrency} asked for",
            tone="good" if enough else "warn",
        ),
    )


def bars(plan: Plan) -> list[Chart]:
    """Memory of every GPU, and of the host where weights lie there (its scale differs)."""
    planned = planned_of({"memory": codec.to_plain(plan.memory)})
    rows = [(name, "planned", device) for name, device in collapse(planned.devices)]
    host = [row for row in rows if row[2].name == "ram"]
    held = {part for _, _, device in host for part in device.parts} - {"free", "unused", "in use"}
    charts = [drawn("Memory per GPU", [row for row in rows if row not in host])]
    charts += [drawn("Host memory", host)] if held else []
    return list(filter(None, charts))


def curve(answer: Answer) -> Chart | None:
    """Decode rate over concurrency at a few contexts, as far as the cache holds them."""
    contexts = sorted({1024, 8192, 32768, answer.asked.context})
    series = [decode_series(answer, context, place) for place, context in enumerate(contexts)]
    x = Axis(title="concurrent streams", log=True, ticks=tuple(map(float, CONCURRENCIES)), format=thousands)
    svg = line(series, x=x, y=Axis(title="decode tok/s"), label="Forecast decode rate against streams, by context")
    return Chart(title="Forecast by context behind each stream", svg=svg, legend=legend(series)) if svg else None


def decode_series(answer: Answer, context: int, place: int) -> Series:
    """The rate at one context; the band is drawn for the one that is asked for."""
    most = answer.plan.recipe.max_seqs or CONCURRENCIES[-1]
    held = answer.plan.memory.kv_tokens // context
    loads = [load for load in CONCURRENCIES if load <= min(most, held)]
    points = tuple((float(load), answer.speed.decode_tok_s(load, context)) for load in loads)
    low, high = answer.speed.decode_range
    band = tuple((load, rate * low, rate * high) for load, rate in points)
    shown = band if context == answer.asked.context else ()
    return Series(name=f"{units.format_count(context)} tokens", colour=colour(place), points=points, band=shown)
