"""Try another version, image or setting beside the one in use: is it right, does it bear load, is it as fast?"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.engine_source import EngineSource, parse_source
from moebox.core.recipe import Recipe
from moebox.core.setting import apply_settings
from moebox.core.upgrade_result import UPGRADE_FILE, Outcome, ProvenSide, SoakResult, UpgradeResult, speed_text
from moebox.core.verdict import CheckResults, Mark
from moebox.detect.conditions import ConditionsWatch
from moebox.detect.limits import memory_share
from moebox.errors import AnswerIsNo, ExternalError, MoeboxError, Unsupported, refuse_if
from moebox.flows.compare import CompareEffort, Comparison, SideListener, compare_sides, compare_targets
from moebox.flows.pace import do_at_once
from moebox.flows.rehearse import rehearse
from moebox.flows.walk import memory_problem, startup_problem
from moebox.quality.judge import DEFAULT_LIMIT
from moebox.quality.measure import QualityGate
from moebox.serve.install import install_engine
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.stream.exchange import StreamExchange
from moebox.units import plural
from moebox.verify.options import CHECK_NAMES, VerifyOptions
from moebox.verify.runner import run_checks

REHEARSED_BYTES = 20 * 2**30  # smaller weights load as fast as a rehearsal boots
WORDS_SHARE = 8  # a prompt of context/8 words: three digits take at most four tokens in every known vocabulary
MOST_WORDS = 2048
CANCELLED_SHARE = 0.25  # of the requests of a soak
ENOUGH_FAILURES = 3  # the rest would wait for the same
MAX_REPLY = 96  # tokens
LIMITS = {"speed": ("2", 99.9, "speed=5%"), "quality": (str(DEFAULT_LIMIT), 10, "quality=0.02")}  # usual, most, example


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
    judges: Judges = Judges()
    trials: int = 8
    soak_requests: int = 48
    soak_concurrency: int = 8
    soak_silence_s: float = 60.0
    compare: CompareEffort = CompareEffort(rounds=6, most_rounds=96)
    prompts: bool = True  # measure how fast they are read


def parse_judges(text: str) -> Judges:
    """Parse `--by`: checks, names of checks, soak, answers, quality or quality=0.05, speed or speed=5%."""
    if not text:
        return Judges()
    known = ("checks", "soak", "answers", *LIMITS, *CHECK_NAMES)
    named: dict[str, float] = {}  # with their limits
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, value = word.partition("=")
        refuse_if(name not in known, f"--by {word}: not known", hint=f"one or several of {', '.join(known)}")
        if name in LIMITS:
            usual, most, example = LIMITS[name]
            number = (value.removesuffix("%") if name == "speed" else value) or usual
            good = number.replace(".", "", 1).isdigit() and 0 < float(number) <= most
            wrong = f"--by {word}: not a limit above 0 and up to {most:g}"
            refuse_if(not good, wrong, hint=f"write it like {example}")
        else:
            hint = "write it like speed=5% or quality=0.02"
            refuse_if(value, f"--by {word}: only speed and quality have a limit", hint=hint)
        named[name] = float(number) if name in LIMITS else 0.0
    return Judges(
        checks=tuple(name for name in CHECK_NAMES if name in named or "checks" in named),
        soak="soak" in named,
        answers="answers" in named,
        speed=named["speed"] / 100 if "speed" in named else None,
        quality=named.get("quality"),
        needs_quality="quality" in named,
    )


def upgrade_recipe(recipe: Recipe, targets: Sequence[str], tree: str, notify: Notify) -> tuple[Recipe, tuple[str, str]]:
    """The recipe with what `--to` names, installed if it is a version, and what the change is called: old and new.

    A target is ENGINE==VERSION, ENGINE@BUILD, an image, or SETTING=VALUE.
    """
    refuse_if(not targets, "TO is empty", hint="ENGINE==VERSION, ENGINE@BUILD, an image or SETTING=VALUE")
    new, names = recipe, []
    for target in targets:
        path, equals, text = target.partition("=")
        if equals and not text.startswith("="):
            new = apply_settings(new, [target])
            names.append((f"{path} {recipe.get(path) or 'unset'}", text))
            continue
        new = with_engine(new, parse_source(target), tree=tree, notify=notify)
        names.append((f"{recipe.engine} {recipe.engine_version or recipe.runtime.kind}", new.engine_version))
    refuse_if(new == recipe, f"{', '.join(targets)}: the recipe has it already", hint="name another version or value")
    return new, (", ".join(old for old, _ in names), ", ".join(after for _, after in names))


def with_engine(recipe: Recipe, source: EngineSource, *, tree: str, notify: Notify) -> Recipe:
    """The recipe on another version of its engine, which is installed if it is not there."""
    hint = "`moebox compare OLD.toml NEW.toml` judges recipes of two engines"
    refuse_if(source.engine != recipe.engine, f"{source}: the recipe runs {recipe.engine}", hint=hint)
    done = install_engine(source, tree=tree, notify=notify)
    runtime = replace(recipe.runtime, kind="native", python="", entry="", image=done.image, preset="")
    if done.image:
        runtime = replace(runtime, kind="podman" if done.tool == "podman" else "docker")
    return replace(recipe, engine_version=done.version, runtime=runtime)


def fits_together(old: Recipe, new: Recipe) -> bool:
    """Whether both engines can be up at the same time: both on the CPU, and half of the free RAM holds either."""
    for recipe in (old, new):
        deployment, on_gpus = deploy(recipe), bool(recipe.hybrid and recipe.hybrid.experts)
        on_cpu = recipe.runtime.kind == "embedded" or (deployment.engine.runs_without_gpu and not on_gpus)
        weights = deployment.known_checkpoint
        if not on_cpu or weights is None or 2 * weights.total_bytes > memory_share().available / 2:
            return False
    return True


class _Trial(SideListener):
    """Proves each side as soon as it answers; a new side that is worse ends the comparison."""

    def __init__(self, recipe: Recipe, effort: UpgradeEffort, notify: Notify) -> None:
        super().__init__(CompareEffort(quality_limit=effort.judges.quality or 0.0))
        self.recipe, self.judges, self.effort, self.notify = recipe, effort.judges, effort, notify
        self.sides: dict[str, ProvenSide] = {}
        self.urls: dict[str, str] = {}
        self.current = ""

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
        if name == "B" and (worse := _worse_checks(self.sides["A"].marks, marks)):
            again = self.check(endpoint, [*worse], folder)  # a failure counts if it is seen twice
            marks |= {check.name: check.verdict for check in again.rungs if check.verdict != "fail"}
        rungs = found.rungs if found else ()
        reasons = {check.name: check.reason for check in rungs if marks[check.name] != "pass"}
        quirks = tuple(sorted({quirk for check in rungs for quirk in check.quirks}))
        side = ProvenSide(marks=marks, reasons=reasons, quirks=quirks)
        if judges.soak and "fail" not in (marks.get("alive"), marks.get("plain")):
            self.notify(f"{plural(effort.soak_requests, 'request')}, {effort.soak_concurrency} at once")
            side = replace(side, soak=soak_endpoint(endpoint, effort, prompt_words(self.recipe)))
        if self.gate:
            self.notify("scoring texts")
            quality, mark = self.judge_quality(self.gate, endpoint, folder)
            side = replace(side, quality=quality, quality_mark=mark)
        self.sides[name] = side
        if name == "B" and (worse_than := regressions(self.sides["A"], side)):
            raise AnswerIsNo(worse_than[0])

    def judge_quality(self, gate: QualityGate, endpoint: Endpoint, folder: Run) -> tuple[str, Mark]:
        """The distance from the old version, "" for that one itself, or why it is not known."""
        try:
            judged = gate.judge(endpoint, folder)
        except Unsupported as problem:
            if self.judges.needs_quality:
                raise
            return f"not judged: {problem.message}", "skip"
        marks: dict[bool | None, Mark] = {True: "pass", False: "fail", None: "warn"}
        return (judged.verdict, marks[judged.keeps_limit]) if judged else ("", "skip")

    def check(self, endpoint: Endpoint, names: Sequence[str], folder: Run) -> CheckResults:
        """Run checks with the same questions for both sides."""
        self.notify(f"{plural(len(names), 'check')} of it")
        seed = self.effort.compare.seed
        options = VerifyOptions(context=self.recipe.context or None, trials=self.effort.trials, seed=seed)
        return run_checks(endpoint, options, only=names, run=folder)


def soak_endpoint(endpoint: Endpoint, effort: UpgradeEffort, most_words: int) -> SoakResult:
    """Send many requests at once with prompts and replies of mixed lengths, some of them cancelled in the middle.

    It finds engines that answer one request and die, hang or leak slots under many: one more request follows, which an
    engine fails that lost its slots to cancelled streams.
    """
    began, failures, rng = time.monotonic(), list[str](), random.Random(effort.compare.seed)
    plans = []  # words of the prompt, tokens of the reply, and events after which it is cancelled, 0 for never
    for _ in range(effort.soak_requests):
        tokens = rng.randint(1, MAX_REPLY)
        cancel = rng.randint(1, max(1, tokens // 2)) if rng.random() < CANCELLED_SHARE else 0
        plans.append((round(4 * (most_words / 4) ** rng.random()), tokens, cancel))

    def send(plan: tuple[int, int, int], when: str = "") -> None:
        if len(failures) < ENOUGH_FAILURES and (problem := _send_request(endpoint, *plan, effort.soak_silence_s)):
            failures.append(f"{when}{problem}")

    do_at_once(send, plans, at_once=effort.soak_concurrency)
    if not failures:
        send((8, 8, 0), "after the load: ")
    cancelled, seconds = sum(bool(plan[2]) for plan in plans), time.monotonic() - began
    return SoakResult(requests=len(plans), cancelled=cancelled, failures=tuple(failures), seconds=seconds)


def _send_request(endpoint: Endpoint, words: int, tokens: int, cancel: int, silence_s: float) -> str:
    """Send one request. Return why it failed, or ""."""
    text = " ".join(str(100 + number % 900) for number in range(words))
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    seen = 0
    try:
        with StreamExchange(endpoint, body, timeout_s=silence_s) as exchange:
            for _, event in exchange:
                if event.error:
                    return event.error
                seen += bool(event.kind)
                if cancel and seen >= cancel:
                    return ""
            return "" if exchange.status == 200 and exchange.done else f"status {exchange.status}, the stream broke off"
    except ExternalError as problem:
        return problem.message


def _worse_checks(old: dict[str, Mark], new: dict[str, Mark]) -> dict[str, str]:
    """Checks that do worse than before, such as thoughts that are now left in the answer, and what they do: fails."""
    better = {"warn": ("pass",), "fail": ("pass", "warn", "skip")}
    return {name: f"{mark}s" for name, mark in new.items() if old.get(name) in better.get(mark, ())}


def regressions(old: ProvenSide, new: ProvenSide) -> list[str]:
    worse = _worse_checks(old.marks, new.marks)
    found = [f"check {name} {does}: {new.reasons.get(name, '')}" for name, does in worse.items()]
    if new.soak and new.soak.failures and not (old.soak and old.soak.failures):
        found.append(f"under load, {new.soak.text}")
    return [*found, *[f"quality: {new.quality}"] * (new.quality_mark == "fail")]


def prompt_words(recipe: Recipe) -> int:
    """Words of the longest prompts of a soak, and of those whose reading is timed."""
    return max(8, min((recipe.context or 8192) // WORDS_SHARE, MOST_WORDS))


def try_upgrade(
    old: Recipe, new: Recipe, names: tuple[str, str], run: Run, effort: UpgradeEffort, box: Box | None, notify: Notify
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
        result = replace(result, reasons=(reason,))
    else:
        result = _compare_sides(old, new, result, run, _Trial(old, effort, notify))
    result = replace(result, notes=(*notes, *result.notes), seconds=time.monotonic() - began)
    run.write_json(UPGRADE_FILE, result)
    lines = (f"# {result.headline}", "", f"**{result.outcome}**", "", *(f"- {line}" for line in result.findings), "")
    run.write_file("upgrade.md", "\n".join(lines))
    return result


def _compare_sides(old: Recipe, new: Recipe, result: UpgradeResult, run: Run, trial: _Trial) -> UpgradeResult:
    judges, compare, is_timed = trial.judges, trial.effort.compare, trial.judges.speed is not None
    compare = replace(
        compare,
        concurrency=compare.concurrency * is_timed,
        prompt_words=(compare.prompt_words or prompt_words(old)) * (is_timed and trial.effort.prompts),
        questions=compare.questions * judges.answers,
    )
    together, watch = fits_together(old, new), ConditionsWatch()
    try:
        with watch:
            a, b = compare_targets(old, new, run, compare, trial, together=together)
    except MoeboxError as problem:
        result = replace(result, reasons=(problem.message,), sides=trial.sides)
        failed = next((name for name, url in trial.urls.items() if url in problem.message), trial.current)
        if isinstance(problem, AnswerIsNo) or failed != "A":
            return result
        reason = f"the old version failed, so nothing is known of the new one: {problem.message}"
        return replace(result, outcome="undecided", reasons=(reason,))
    found = compare_sides(a, b)
    run.write_json("compare.json", {"comparison": found, "sides": (a, b), "seed": compare.seed})
    drift = None
    if a.paces and not together:  # the second half's mean compared with the first's
        rounds, half = a.paces[0].tok_s, (len(a.paces[0].tok_s) + 1) // 2
        drift = statistics.fmean(rounds[half:]) / statistics.fmean(rounds[:half]) - 1
    outcome, reasons = decide_upgrade(found, trial.sides, judges)
    notes = tuple(f"disturbed: {line}" for line in watch.result().disturbances()) if found.gains else ()
    if outcome == "undecided" and notes:
        reasons = (*reasons, "the machine was disturbed while both were measured: try again when it is quiet")
    quality = trial.sides["B"].quality or trial.sides["A"].quality
    if quality and f"quality: {quality}" not in reasons:
        notes = (*notes, f"quality: {quality}")
    return replace(
        result, outcome=outcome, reasons=reasons, notes=notes, gains=found.gains, sides=trial.sides, drift=drift
    )


def decide_upgrade(found: Comparison, sides: dict[str, ProvenSide], judges: Judges) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome of a new side that starts, answers and bears the load, and the reasons."""
    slower = [row for row in found.gains if row.gain and row.gain.high < -(judges.speed or 0.0)]
    if not found.as_good or slower:
        return "roll back", (*[found.verdict] * (not found.as_good), *map(speed_text, slower))
    old, new = sides["A"], sides["B"]
    gone = [f"check {name} no longer {does}" for name, does in _worse_checks(new.marks, old.marks).items()]
    gone += [f"quirk gone: {quirk}" for quirk in old.quirks if quirk not in new.quirks]
    added = tuple(f"new quirk: {quirk}" for quirk in new.quirks if quirk not in old.quirks)
    faster = [speed_text(row) for row in found.gains if row.gain and row.gain.low > (judges.speed or 0.0)]
    unsure = [row for row in found.gains if row.gain and row.gain.low < -0.10]
    asked, doubt = found.answers, ""
    if asked.same < asked.asked and not asked.right_a.passed and asked.right_a.trials:
        doubt = f"the old version answers none of {asked.right_a.trials} questions right, so a loss cannot be seen"
    elif new.quality_mark == "warn":
        doubt = f"quality: {new.quality}"
    elif unsure:
        doubt = f"the speed is not known well enough: {speed_text(unsure[0])}"
    if doubt:
        return "undecided", (doubt, *gone, *added)
    if faster or gone:
        return "keep", (*faster, *gone, *added)
    return "no difference", (found.verdict.removeprefix("no difference: "), *added)
