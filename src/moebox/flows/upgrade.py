"""Try another version, image or setting beside the one in use: is it right, does it bear load, is it as fast?

Known problems first, then a rehearsal with few layers if the weights are large, then both on the real recipe: checks,
a soak, answers to the same questions, and speed in turn.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.engine_source import EngineSource, parse_source
from moebox.core.recipe import Recipe
from moebox.core.setting import apply_settings, get_setting
from moebox.core.upgrade_result import UPGRADE_FILE, Outcome, ProvenSide, UpgradeResult, speed_text
from moebox.core.verdict import CheckResults, Mark
from moebox.detect.conditions import ConditionsWatch
from moebox.detect.limits import memory_share
from moebox.errors import AnswerIsNo, MoeboxError, Unsupported, refuse_if
from moebox.flows.compare import CompareEffort, Comparison, SideListener, compare_sides, compare_targets
from moebox.flows.rehearse import rehearse
from moebox.flows.soak import soak_endpoint
from moebox.flows.walk import memory_problem, startup_problem
from moebox.quality.judge import DEFAULT_LIMIT
from moebox.quality.measure import QualityGate
from moebox.serve.install import install_engine
from moebox.store import Run
from moebox.units import plural
from moebox.verify.options import CHECK_NAMES, VerifyOptions
from moebox.verify.runner import run_checks

PAGE_FILE = "upgrade.md"
REHEARSED_BYTES = 20 * 2**30  # smaller weights load as fast as a rehearsal boots
WORDS_SHARE = 8  # a prompt of context/8 words: three digits take at most four tokens in every known vocabulary
MOST_WORDS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    checks: tuple[str, ...] = CHECK_NAMES
    soak: bool = True
    answers: bool = True
    speed: float | None = 0.02  # largest loss of speed
    quality: float | None = DEFAULT_LIMIT  # largest divergence from the old version, in nats
    needs_quality: bool = False  # a server without log-probabilities is an error, not a note


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeEffort:
    """How much is asked and measured."""

    trials: int = 8
    soak_requests: int = 48
    soak_concurrency: int = 8
    soak_silence_s: float = 60.0
    compare: CompareEffort = CompareEffort(rounds=6, most_rounds=24)
    prompts: bool = True  # measure how fast they are read


def parse_judges(text: str) -> Judges:
    """Parse `--by`: checks, names of checks, soak, answers, quality or quality=0.05, speed or speed=5%."""
    if not text:
        return Judges()
    names, limit, nats, known = [], None, None, ("checks", "soak", "answers", "quality", "speed", *CHECK_NAMES)
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, value = word.partition("=")
        refuse_if(name not in known, f"--by {word}: not known", hint=f"one or several of {', '.join(known)}")
        if name == "speed":
            limit = _parse_limit(word, value.removesuffix("%") or "2", 99.9, "speed=5%") / 100
        elif name == "quality":
            nats = _parse_limit(word, value or str(DEFAULT_LIMIT), 10, "quality=0.02")
        else:
            hint = "write it like speed=5% or quality=0.02"
            refuse_if(value, f"--by {word}: only speed and quality have a limit", hint=hint)
        names.append(name)
    checks = CHECK_NAMES if "checks" in names else tuple(name for name in CHECK_NAMES if name in names)
    return Judges(
        checks=checks,
        soak="soak" in names,
        answers="answers" in names,
        speed=limit,
        quality=nats,
        needs_quality=nats is not None,
    )


def _parse_limit(word: str, number: str, most: float, example: str) -> float:
    good = number.replace(".", "", 1).isdigit() and 0 < float(number) <= most
    refuse_if(not good, f"--by {word}: not a limit above 0 and up to {most:g}", hint=f"write it like {example}")
    return float(number)


def upgrade_recipe(
    recipe: Recipe, targets: Sequence[str], *, tree: str = "", box: Box, notify: Callable[[str], None]
) -> tuple[Recipe, tuple[str, str]]:
    """The recipe with what `--to` names, installed if it is a version, and what the change is called: old and new.

    A target is ENGINE==VERSION, ENGINE@BUILD, an image, or SETTING=VALUE.
    """
    refuse_if(not targets, "TO is empty", hint="ENGINE==VERSION, ENGINE@BUILD, an image or SETTING=VALUE")
    new, names = recipe, []
    for target in targets:
        path, equals, text = target.partition("=")
        if equals and not text.startswith("="):
            new = apply_settings(new, [target])
            names.append((f"{path} {get_setting(recipe, path) or 'unset'}", text))
            continue
        new, version = with_engine(new, parse_source(target), tree=tree, box=box, notify=notify)
        names.append((f"{recipe.engine} {recipe.engine_version or recipe.runtime.kind}", version))
    refuse_if(new == recipe, f"{', '.join(targets)}: the recipe has it already", hint="name another version or value")
    return new, (", ".join(old for old, _ in names), ", ".join(after for _, after in names))


def with_engine(
    recipe: Recipe, source: EngineSource, *, tree: str, box: Box, notify: Callable[[str], None]
) -> tuple[Recipe, str]:
    """The recipe on another version of its engine, which is installed if it is not there; and that version."""
    same = source.engine == recipe.engine
    text = f"{source}: the recipe runs {recipe.engine}"
    refuse_if(not same, text, hint="`moebox compare OLD.toml NEW.toml` judges recipes of two engines")
    done = install_engine(source, tree=tree, gpus=box.gpus, notify=notify)
    runtime = dataclasses.replace(recipe.runtime, python="", entry="", image="", preset="")
    if done.kind == "image":
        runtime = dataclasses.replace(runtime, kind="podman" if done.tool == "podman" else "docker", image=done.image)
    else:
        runtime = dataclasses.replace(runtime, kind="native")
    return dataclasses.replace(recipe, engine_version=done.version, runtime=runtime), done.version


def fits_together(old: Recipe, new: Recipe) -> bool:
    """Whether both engines can be up at the same time: both on the CPU, and half of the free RAM holds either."""
    for recipe in (old, new):
        deployment = deploy(recipe)
        uses_gpu = recipe.runtime.kind != "embedded" and not (
            deployment.engine.runs_without_gpu and not (recipe.hybrid and recipe.hybrid.experts)
        )
        size = deployment.known_checkpoint.total_bytes if deployment.known_checkpoint else None
        if uses_gpu or size is None or 2 * size > memory_share().available / 2:
            return False
    return True


class _Trial(SideListener):
    """Proves each side as soon as it answers; a new side that is worse ends the comparison."""

    def __init__(self, recipe: Recipe, judges: Judges, effort: UpgradeEffort, notify: Callable[[str], None]) -> None:
        self.recipe, self.judges, self.effort, self.notify = recipe, judges, effort, notify
        self.sides: dict[str, ProvenSide] = {}
        self.urls: dict[str, str] = {}
        self.current = ""
        self.gate = QualityGate(judges.quality) if judges.quality else None

    def on_start(self, name: str) -> None:
        self.current = name
        self.notify(f"starting the {'old' if name == 'A' else 'new'} version")

    def on_load(self, text: str) -> None:
        self.notify(f"measuring {text}")

    def on_ready(self, name: str, endpoint: Endpoint, folder: Run) -> None:
        judges, effort = self.judges, self.effort
        self.urls[name] = endpoint.base_url
        found = self.check(endpoint, judges.checks, folder) if judges.checks else None
        marks = found.marks if found else {}
        if name == "B" and (worse := _new_failures(self.sides["A"].marks, marks)):
            again = self.check(endpoint, worse, folder)  # a failure counts if it is seen twice
            marks |= {check.name: check.verdict for check in again.rungs if check.verdict != "fail"}
        rungs = found.rungs if found else ()
        side = ProvenSide(
            marks=marks,
            reasons={check.name: check.reason for check in rungs if marks[check.name] != "pass"},
            quirks=tuple(sorted({quirk for check in rungs for quirk in check.quirks})),
        )
        if judges.soak and "fail" not in (marks.get("alive"), marks.get("plain")):
            self.notify(f"{plural(effort.soak_requests, 'request')}, {effort.soak_concurrency} at once")
            soak = soak_endpoint(
                endpoint,
                requests=effort.soak_requests,
                concurrency=effort.soak_concurrency,
                most_words=prompt_words(self.recipe),
                silence_s=effort.soak_silence_s,
                seed=effort.compare.seed,
            )
            side = dataclasses.replace(side, soak=soak)
        side = self.score_texts(side, endpoint, folder)
        self.sides[name] = side
        if name == "B" and (worse_than := regressions(self.sides["A"], side)):
            raise AnswerIsNo(worse_than[0])

    def score_texts(self, side: ProvenSide, endpoint: Endpoint, folder: Run) -> ProvenSide:
        """The side with its distance from the quality reference, if there is one."""
        if not self.gate:
            return side
        self.notify("scoring texts")
        try:
            judged = self.gate.judge(endpoint, folder)
        except Unsupported as problem:
            if self.judges.needs_quality:
                raise
            return dataclasses.replace(side, quality=f"not judged: {problem.message}")
        marks: dict[bool | None, Mark] = {True: "pass", False: "fail", None: "warn"}
        keeps = judged and dataclasses.replace(side, quality=judged.verdict, quality_mark=marks[judged.keeps_limit])
        return keeps or side

    def check(self, endpoint: Endpoint, names: Sequence[str], folder: Run) -> CheckResults:
        """Run checks with the same questions for both sides."""
        self.notify(f"{plural(len(names), 'check')} of it")
        seed = self.effort.compare.seed
        options = VerifyOptions(context=self.recipe.context or None, trials=self.effort.trials, seed=seed)
        return run_checks(endpoint, options, only=names, run=folder)


def _new_failures(old: dict[str, Mark], new: dict[str, Mark]) -> list[str]:
    return [name for name, mark in new.items() if mark == "fail" and old.get(name) not in ("fail", None)]


def regressions(old: ProvenSide, new: ProvenSide) -> list[str]:
    found = [f"check {name} fails: {new.reasons.get(name, '')}" for name in _new_failures(old.marks, new.marks)]
    if new.soak and new.soak.failures and not (old.soak and old.soak.failures):
        found.append(f"under load, {new.soak.text}")
    return [*found, *[f"quality: {new.quality}"] * (new.quality_mark == "fail")]


def prompt_words(recipe: Recipe) -> int:
    """Words of the longest prompts of a soak, and of those whose reading is timed."""
    return max(8, min((recipe.context or 8192) // WORDS_SHARE, MOST_WORDS))


def try_upgrade(
    old: Recipe,
    new: Recipe,
    names: tuple[str, str],
    run: Run,
    *,
    judges: Judges = Judges(),
    effort: UpgradeEffort = UpgradeEffort(),
    box: Box | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> UpgradeResult:
    """Judge `new` against `old`. A version that does not start, dies or answers wrongly is a result, not an error."""
    began = time.monotonic()
    result = UpgradeResult(name=old.name, old=names[0], new=names[1], outcome="roll back", reasons=())
    deployment = deploy(new).on_box(box)
    notes = [f"known: {warning.text}" for warning in engines.find_refusals(deployment) if warning.severity == "warning"]
    reason = startup_problem(deployment) or memory_problem(deployment)
    checkpoint = deployment.known_checkpoint
    if not reason and checkpoint and checkpoint.total_bytes > REHEARSED_BYTES:
        notify("rehearsing the new version with few layers")
        try:
            rehearse(deployment, run.make_folder(f"{run.id}-rehearsal"))
        except Unsupported as problem:
            notes.append(f"not rehearsed: {problem.message}")
        except MoeboxError as problem:
            reason = f"the rehearsal failed: {problem.message}"
    if reason:
        result = dataclasses.replace(result, reasons=(reason,))
    else:
        result = _compare_sides(old, new, result, run, _Trial(old, judges, effort, notify))
    result = dataclasses.replace(result, notes=(*notes, *result.notes), seconds=time.monotonic() - began)
    run.write_json(UPGRADE_FILE, result)
    lines = (f"# {result.headline}", "", f"**{result.outcome}**", "", *(f"- {line}" for line in result.findings), "")
    run.write_file(PAGE_FILE, "\n".join(lines))
    return result


def _compare_sides(old: Recipe, new: Recipe, result: UpgradeResult, run: Run, trial: _Trial) -> UpgradeResult:
    judges, compare, is_timed = trial.judges, trial.effort.compare, trial.judges.speed is not None
    compare = dataclasses.replace(
        compare,
        concurrency=compare.concurrency * is_timed,
        prompt_words=(compare.prompt_words or prompt_words(old)) * (is_timed and trial.effort.prompts),
        questions=compare.questions * judges.answers,
    )
    together = fits_together(old, new)
    watch = ConditionsWatch()
    try:
        with watch:
            a, b = compare_targets(old, new, run, compare, listener=trial, together=together)
    except AnswerIsNo as problem:
        return dataclasses.replace(result, reasons=(problem.message,), sides=trial.sides)
    except MoeboxError as problem:
        if next((name for name, url in trial.urls.items() if url in problem.message), trial.current) == "A":
            reason = f"the old version failed, so nothing is known of the new one: {problem.message}"
            return dataclasses.replace(result, outcome="undecided", reasons=(reason,), sides=trial.sides)
        return dataclasses.replace(result, reasons=(problem.message,), sides=trial.sides)
    found = compare_sides(a, b)
    run.write_json("compare.json", {"comparison": found, "sides": (a, b), "seed": compare.seed})
    drift = None
    if a.paces and not together:  # the second half's mean compared with the first's
        rounds, half = a.paces[0].tok_s, (len(a.paces[0].tok_s) + 1) // 2
        drift = (sum(rounds[half:]) / max(1, len(rounds) - half)) / (sum(rounds[:half]) / half) - 1
    outcome, reasons = decide_upgrade(found, trial.sides, judges)
    notes = tuple(f"disturbed: {line}" for line in watch.result().disturbances()) if found.gains else ()
    if outcome == "undecided" and notes:
        reasons = (*reasons, "the machine was disturbed while both were measured: try again when it is quiet")
    quality = trial.sides["B"].quality or trial.sides["A"].quality
    if quality and f"quality: {quality}" not in reasons:
        notes = (*notes, f"quality: {quality}")
    return dataclasses.replace(
        result, outcome=outcome, reasons=reasons, notes=notes, gains=found.gains, sides=trial.sides, drift=drift
    )


def decide_upgrade(found: Comparison, sides: dict[str, ProvenSide], judges: Judges) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome of a new side that starts, answers and bears the load, and the reasons."""
    slower = [row for row in found.gains if row.gain and row.gain.high < -(judges.speed or 0.0)]
    if not found.as_good or slower:
        return "roll back", (*[found.verdict] * (not found.as_good), *map(speed_text, slower))
    old, new = sides["A"], sides["B"]
    gone = [f"check {name} no longer fails" for name in _new_failures(new.marks, old.marks)]
    gone += [f"quirk gone: {quirk}" for quirk in old.quirks if quirk not in new.quirks]
    added = tuple(f"new quirk: {quirk}" for quirk in new.quirks if quirk not in old.quirks)
    faster = [speed_text(row) for row in found.gains if row.gain and row.gain.low > (judges.speed or 0.0)]
    unsure = [row for row in found.gains if row.gain and row.gain.low < -0.10]
    asked = found.answers
    if asked.same < asked.asked and not asked.right_a.passed and asked.right_a.trials:
        reason = f"the old version answers none of {asked.right_a.trials} questions right, so a loss cannot be seen"
        return "undecided", (reason, *gone, *added)
    if new.quality_mark == "warn":
        return "undecided", (f"quality: {new.quality}", *gone, *added)
    if unsure:
        return "undecided", (f"the speed is not known well enough: {speed_text(unsure[0])}", *gone, *added)
    if faster or gone:
        return "keep", (*faster, *gone, *added)
    return "no difference", (found.verdict.removeprefix("no difference: "), *added)
