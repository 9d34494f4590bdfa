"""Tune: search the settings that an engine declares for those that serve a goal best, within a budget of time.

The recipe as it is, the start, is checked and measured; settings are screened with few layers, alone and combined; the
finalists are checked and measured with the whole model, and the best of them must beat the start (docs/tune.md).
"""

import math
import statistics
import time
from dataclasses import replace
from typing import Any

from moebox import codec, engines, files
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.event import TuneScreened
from moebox.core.recipe import Flag, Recipe
from moebox.engines.tunables import load_tunables, tunable_values
from moebox.errors import AnswerIsNo, BadInput, ExternalError, MoeboxError, NotInstalled, Unsupported, suggest_names
from moebox.flows import tune_state, walk
from moebox.flows.pace import SpeedRounds, bracketing_gain
from moebox.flows.rehearse import reduce_recipe, with_weights
from moebox.flows.trials import BEST_FILE, ClimbListener, TrialRunner
from moebox.flows.tune_state import Changes, Gains, ScreenTrial, SettingGain, TuneOptions, TuneState, single_key
from moebox.flows.walk import ClimbEffort, ClimbTrial, SettingStep, checks_for, current_value
from moebox.loose import drop_keys
from moebox.planner.speed import Speed
from moebox.report.charts import HEIGHT, WIDTH
from moebox.report.svg import inline_colours, svg_tag
from moebox.serve import power
from moebox.serve.guard import CAPS_FILE
from moebox.serve.order import recipe_gpus
from moebox.serve.session import engine_session
from moebox.store import Run
from moebox.units import format_seconds
from moebox.verify.options import CHECK_NAMES

FORECAST_CONTEXT = 1024  # tokens; near the length of the measured streams
HOPELESS = math.log(0.7)  # slower ones are left out; nine of ten published rows lie within 30% of their forecast
SCREEN_ROUNDS = 2  # of a setting alone; twice as many at each later stage
RESERVED = 4  # times the first trial: a finalist, and A B B A with three starts


def tune(
    recipe: Recipe, run: Run, options: TuneOptions, effort: ClimbEffort, notify: ClimbListener, box: Box | None
) -> "Tuner":
    """Search for better settings, or go on. Raise AnswerIsNo if the recipe fails or is not measured in time."""
    for left_over in run.path.rglob(CAPS_FILE):  # moebox and the guard were both killed
        power.restore_caps(left_over)
    tuner = Tuner(recipe, run, effort, notify, box, options=options)
    with tuner.budget:
        tuner.search()
    tuner.finish()
    return tuner


def check_tuning(recipe: Recipe, options: TuneOptions, effort: ClimbEffort, box: Box | None) -> None:
    """Raise an error if a tuning of this recipe cannot begin: a setting, power caps or energy counters are missing."""
    declared = list(declared_settings(recipe, effort, box))
    for path in {*options.only}.difference(declared):
        hint = suggest_names(path, declared)
        raise BadInput(f"--set only={path}: not a setting that can be tuned here", hint=hint)
    gpus = recipe_gpus(deploy(recipe))
    if options.power:
        with files.scratch_folder("power") as folder, power.PowerCaps(gpus, folder):
            pass  # the driver allows it
    if options.goal == "efficiency" and power.read_joules(gpus) is None:
        raise ExternalError("no GPU that counts its energy", hint="--goal throughput needs none")


def declared_settings(recipe: Recipe, effort: ClimbEffort, box: Box | None) -> dict[str, tuple[Flag, ...]]:
    """The settings that the engine or the recipe declares, and their values on this box."""
    deployment = deploy(recipe).on_box(box)
    declared: dict[str, tuple[Flag, ...]] = {}
    for tunable in load_tunables(recipe.engine):
        values = tunable_values(tunable, deployment, has_reference=bool(effort.quality_limit))
        declared |= {tunable.path: values} if values else {}
    return declared | {path: tuple(values) for path, values in recipe.climb.settings.items()}


class Tuner(TrialRunner):
    """One tuning; the run folder has its state after each trial."""

    command = "tune"

    def __init__(self, recipe: Recipe, run: Run, *given: Any, options: TuneOptions) -> None:
        stored = run.read_json(tune_state.TUNE_FILE) or {"options": {}}
        state = codec.decode(TuneState, stored, where=str(run.path / tune_state.TUNE_FILE))
        self.state, self.options = replace(state, options=options), options
        self.budget = tune_state.Budget(options.budget_s, self.state.spent_s)
        twice = f"{math.ceil(max(options.budget_s, state.spent_s) / 30)}m"
        self.resume = f"`moebox tune --resume {run.id} --budget {twice}` goes on"
        if self.budget.left_s < options.budget_s / 100:
            spent = f"{format_seconds(state.spent_s)} of {format_seconds(options.budget_s)} are spent"
            raise BadInput(spent, hint=self.resume)
        super().__init__(recipe, run, *given)

    def add_finalist(self, trial: ClimbTrial) -> None:
        self.update(finalists=(*self.state.finalists, trial))

    def update(self, **changes: Any) -> None:
        self.state = replace(self.state, spent_s=self.budget.used_s, **changes)
        self.run.write_json(tune_state.TUNE_FILE, self.state)

    def recipe_for(self, step: SettingStep) -> Recipe:
        return tune_state.change_settings(self.recipe, step.together)

    def scores(self, speed: SpeedRounds, watts: float) -> tuple[float, ...]:
        return tuple(rate / watts for rate in speed.tok_s) if self.options.goal == "efficiency" else speed.tok_s

    def search(self) -> None:
        """Try the start, screen, try the finalists, confirm the best one."""
        self.update()
        settings = self.list_settings()
        if not self.trials:
            self.try_or_skip(SettingStep(), 0, self.add_trial)
        if self.best is None:
            return
        gains = self.screen_settings(settings)
        pool = tune_state.combine_changes(settings, gains, width=self.options.combinations)
        self.try_finalists(self.halve(pool)[: self.options.finalists])
        self.confirm_finalists(gains)
        if self.options.power and not self.state.caps:
            caps, best_cap_w = tune_state.sweep_caps(self, self.best.recipe)
            self.update(caps=caps, best_cap_w=best_cap_w)

    def list_settings(self) -> dict[str, list[Flag]]:
        """Settings and values that can be tried on this box; the others are skipped with a reason."""
        declared = declared_settings(self.recipe, self.effort, self.box)
        found: dict[str, list[Flag]] = {}
        for path in self.options.only or declared:
            for value in declared[path]:
                if current_value(self.recipe, path) == value:
                    continue
                if reason := self.setting_problem(path, value):
                    self.skip(f"{path} {value}", reason)
                else:
                    found.setdefault(path, []).append(value)
        return found

    def setting_problem(self, path: str, value: Flag) -> str:
        """Why a setting is not tried, or "": not valid, does not fit, known to fail, or forecast to be slow."""
        try:
            deployment = deploy(walk.with_setting(self.recipe, path, value)).on_box(self.box)
            engines.check_recipe(deployment)
        except BadInput as problem:
            return problem.message
        if reason := walk.memory_problem(deployment) or walk.startup_problem(deployment):
            return reason
        gain = self.forecast_gain({path: value})
        return f"forecast to be {-math.expm1(gain):.0%} slower" if gain < HOPELESS else ""

    def forecast_gain(self, changes: Changes) -> float:
        """The logarithm of the gain by the forecast, calibrated if the box is; 0 if it has none."""
        rates = []
        for recipe in (self.recipe, tune_state.change_settings(self.recipe, changes)):
            try:
                deployment = deploy(recipe).on_box(self.box).with_default_context()
                streams = min(self.effort.concurrency, recipe.max_seqs or self.effort.concurrency)
                rates.append(Speed.for_deployment(deployment).decode_tok_s(streams, FORECAST_CONTEXT))
            except MoeboxError:
                return 0.0
        return math.log(rates[1] / rates[0]) if min(rates) > 0 else 0.0

    def screen_settings(self, settings: dict[str, list[Flag]]) -> Gains:
        """The logarithmic gain of each setting: measured, or forecast if a draft or the budget prevents that.

        What gains nothing alone is measured beside those that do: with vLLM on an H200, asynchronous scheduling gained
        nothing, and 18% once graphs of the batch were captured.
        """
        singles = [(path, value) for path, values in settings.items() for value in values]
        gains = {single_key(path, value): self.forecast_gain({path: value}) for path, value in singles}
        singles.sort(key=lambda single: -gains[single_key(*single)])
        if not any(row.stage == 0 for row in self.state.screened):
            self.update(layers=self.find_layers())
        self.screen_beside({}, singles, gains)
        best = next(iter(tune_state.combine_changes(settings, gains, width=1)), {})
        others = [each for each in singles if each[0] not in best and gains[single_key(*each)] > HOPELESS]
        self.screen_beside(best, others, gains)
        return gains

    def screen_beside(self, kept: Changes, singles: list[tuple[str, Flag]], gains: Gains) -> None:
        """Measure what each setting gains beside the changes that are kept, and write it into `gains`."""
        base = self.screen(kept, 0) if singles else None
        if not base or base.why:
            return
        for path, value in singles:
            has_draft = path.startswith("speculate") and self.state.layers > 0
            if not has_draft and (row := self.screen({**kept, path: value}, 0)):
                gains[single_key(path, value)] = tune_state.log_gain(base, row)

    def halve(self, pool: list[Changes]) -> list[Changes]:
        """Screen combinations in stages; the better half of each goes on with twice the rounds."""
        stage = 1
        while len(pool) > self.options.finalists:
            base = self.screen({}, stage)
            if not base or base.why or not all(rows := [self.screen(changes, stage) for changes in pool]):
                break  # the budget ends: the order so far decides
            scores = [tune_state.log_gain(base, row) for row in rows if row]
            order = sorted(range(len(pool)), key=lambda place: -scores[place])
            pool = [pool[place] for place in order[: max(self.options.finalists, math.ceil(len(pool) / 2))]]
            stage += 1
        return pool

    def find_layers(self) -> int:
        """Layers of a screening, or 0 if the engine cannot leave out layers or the model has no more."""
        layers = self.options.layers
        deployment, dummy = deploy(self.recipe), self.run.path / "screening.gguf"
        try:
            if not layers or deployment.model.layers <= layers:
                return 0
            reduce_recipe(deployment, dummy, layers)
        except Unsupported as problem:
            self.notify("news", f"screening with the whole model: {problem.message}")
            return 0
        finally:
            dummy.unlink(missing_ok=True)
        return layers

    def screen(self, changes: Changes, stage: int) -> ScreenTrial | None:
        """Measure settings without checks; None if the budget does not allow it, and the finalists afterwards."""
        done, start_s = self.state.screened, self.trials[0].seconds if self.trials else 0.0
        known = next((row for row in done if row.changes == changes and row.stage == stage), None)
        usual_s = max((row.seconds for row in done), default=start_s)
        if known or not self.budget.can_afford(usual_s + RESERVED * start_s):
            return known
        step, began = SettingStep(together=changes), time.monotonic()
        self.notify("news", f"screening {step.change}, stage {stage}")
        folder = self.run.make_folder(f"screen/{self.run.id}-{len(done):03d}")
        dummy = folder.path / "screening.gguf"
        row = ScreenTrial(changes=changes, stage=stage)
        try:
            deployment = deploy(self.recipe_for(step))
            small = deployment.recipe.with_port(0)
            if self.state.layers:
                small, _, _ = reduce_recipe(deployment, dummy, self.state.layers)
            patience_s = self.effort.patience_s
            with engine_session(with_weights(deployment, small), folder, patience_s=patience_s, rehearsal=True) as live:
                speed, watts = self.measure_speed(live, folder, rounds=SCREEN_ROUNDS << stage)
            row = replace(row, scores=self.scores(speed, watts), tok_s=speed.output_tok_s, ttft_ms=speed.mean_ttft_ms)
            row = replace(row, watts=watts)
        except NotInstalled:
            raise
        except MoeboxError as problem:  # an engine that does not start with these settings is a result
            row = replace(row, why=problem.message)
        finally:
            dummy.unlink(missing_ok=True)
        row = replace(row, seconds=time.monotonic() - began)
        self.update(screened=(*done, row))
        event = TuneScreened(change=step.change, layers=self.state.layers, stage=stage, tok_s=row.tok_s, why=row.why)
        self.run.add_event(event, sync=True)
        return row

    def try_finalists(self, pool: list[Changes]) -> None:
        """Check and measure the finalists with the whole model; one that fails, without each of its settings.

        What passes without a setting shows that the setting is to blame, and nothing else is tried with it.
        """
        queue: list[tuple[Changes, str]] = [(changes, "") for changes in pool]  # and the setting that was left out
        tried: set[str] = set()
        passed = 0
        while queue and passed < self.options.finalists:
            changes, left_out = queue.pop(0)
            checks = {name for path in changes for name in checks_for(path)}
            step = SettingStep(together=changes, checks=tuple(name for name in CHECK_NAMES if name in checks))
            if step.change in tried:
                continue
            tried.add(step.change)
            done = (*self.state.finalists, *self.trials)
            trial = next((known for known in done if known.change == step.change), None)
            if trial is None:
                if not self.budget.can_afford(RESERVED * self.trials[0].seconds):
                    return
                trial = self.try_or_skip(step, len(done), self.add_finalist)
            if trial is None:
                continue
            if trial.verdict != "fail" and not trial.why.startswith(walk.ANSWERS_DIFFER):
                passed += 1
                queue = [row for row in queue if row[1] == left_out or not left_out or left_out not in row[0]]
            else:
                risky = sorted(changes, key=lambda path: -len(checks_for(path)))
                fewer = [(drop_keys(changes, path), path) for path in risky]
                queue = [row for row in fewer if row[0]] + queue

    def confirm_finalists(self, gains: Gains) -> None:
        """Measure the best finalists against the start, A B B A, until one of them is certainly better."""
        start = self.trials[0]
        order = sorted(self.state.finalists, key=lambda trial: -statistics.fmean(trial.samples or (0.0,)))
        winner: ClimbTrial | None = None
        decided = []
        for trial in order:
            if any(known.change == trial.change for known in self.trials):
                continue
            if trial.kept and winner is None:
                trial = self.confirm(trial, start)
                winner = trial if trial.kept else None
            elif trial.kept:
                trial = replace(trial, kept=False, why=f"not the best finalist: {trial.gain}")
            decided.append(trial)
        for trial in sorted(decided, key=lambda trial: trial.kept):  # the winner last
            self.add_trial(trial)
        if winner:
            self.update(reasons=self.explain(winner, gains))

    def confirm(self, trial: ClimbTrial, start: ClimbTrial) -> ClimbTrial:
        """Measure A B B A with three starts, and decide by the interval that covers both sides."""
        self.notify("news", f"measuring {trial.change} and the start in turn: A B B A")
        samples: list[tuple[float, ...]] = []
        try:
            for name, recipe, times in (("a1", self.recipe, 1), ("b", trial.recipe, 2), ("a2", self.recipe, 1)):
                with self.live_engine(recipe, f"{trial.folder}-{name}") as (live, folder):
                    speeds = [self.measure_speed(live, folder) for _ in range(times)]
                samples.append(tuple(score for speed in speeds for score in self.scores(*speed)))
        except MoeboxError as problem:
            return replace(trial, kept=False, why=f"could not be compared with the start: {problem.message}")
        gain = bracketing_gain(samples[0], samples[1], samples[2])
        kept, why = walk.decide_trial(replace(trial, gain=gain), start)
        is_better = kept and gain is not None and gain.low > 0
        return replace(trial, gain=gain, kept=is_better, why=why, samples=samples[1], again=samples[2])

    def explain(self, winner: ClimbTrial, gains: Gains) -> tuple[SettingGain, ...]:
        """What each setting of the winner gained, and what it does."""
        found, rows = [], [row for row in self.state.screened if row.scores and not row.stage]
        whys = {tunable.path: tunable.why for tunable in load_tunables(self.recipe.engine)}
        for path in dict.fromkeys(path for path, _ in gains):
            value = current_value(winner.recipe, path)
            if value == current_value(self.recipe, path):
                continue
            measured = [[*row.changes][:-1] for row in rows if [*row.changes.items()][-1:] == [(path, value)]]
            gain = math.expm1(gains.get(single_key(path, value), 0.0))
            layers = f"measured with {self.state.layers or 'all'} layers"
            source = f"{layers}, other changes: {', '.join(measured[-1]) or 'none'}" if measured else "forecast"
            why = whys.get(path, "listed in the recipe")
            found.append(SettingGain(path=path, value=value, gain=gain, source=source, why=why))
        return tuple(found)

    def finish(self) -> None:
        """Write the best recipe and the picture, even if the budget has ended."""
        best, options = self.best, self.options
        if best is None:
            self.save_table(ended=bool(self.trials or self.passed_over))
            reason = next((trial.why for trial in self.trials), "") or self.passed_over.get("start", "")
            text, hint = f"the recipe is not good as it is: {reason}", f"evidence in {self.run.path}"
            if not reason:
                short = f"the budget of {format_seconds(options.budget_s)} ended before the recipe was measured"
                text, hint = short, self.resume
            self.update(result=text)
            raise AnswerIsNo(text, hint=hint)
        winner = best.number > 0
        result = f"{best.change}: {best.why}" if winner else "nothing was shown to be better than the start"
        if self.budget.was_short:
            result += f"; the budget of {format_seconds(options.budget_s)} ended the search, {self.resume}"
        rows = [f"{row.path} = {row.value}: {row.gain:+.1%} ({row.source}); {row.why}" for row in self.state.reasons]
        lines = [f"# {line}\n" for line in (f"Tuned for {options.goal}: {result}", *rows)]
        self.run.write_file(BEST_FILE, "".join(lines) + codec.to_toml(best.recipe))
        self.update(result=result)
        self.save_table(ended=True)
        charts = tune_state.pareto_charts(self.trials, self.state.screened)
        svgs = (
            svg_tag("svg", str(svg), y=HEIGHT * row, width=WIDTH, height=HEIGHT) for row, (_, svg) in enumerate(charts)
        )
        view = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH:g} {HEIGHT * len(charts):g}"}
        self.run.write_file("pareto.svg", inline_colours(svg_tag("svg", "".join(svgs), **view, font_size=12)))
