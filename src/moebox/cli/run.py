"""`moebox run`: the whole pipeline in one command, with its steps as a live table."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from moebox import codec
from moebox.assess.run import assess_run
from moebox.checkpoint import resolve_model
from moebox.cli import flags
from moebox.cli.display import VERDICT_MARKS, LiveDisplay, make_grid, make_group, print_assessment
from moebox.cli.flags import AsJson, Names, Ram, RamBandwidth, Switch
from moebox.cli.output import Part, View, confirm, exit_code, print_json, print_lines, print_note, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.core.pipeline import STEPS, Pipeline, RunRequest, display_state
from moebox.core.setting import Effort
from moebox.core.traits import LAST_PORT
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.escape import clip_text
from moebox.flows import pipeline as pipelines
from moebox.flows import recipes
from moebox.flows.run import Runner
from moebox.report.expect import with_forecast
from moebox.runs.reader import read_run
from moebox.serve.session import EngineSession
from moebox.store import Run
from moebox.stream.awake import AwakeClock
from moebox.units import format_seconds, format_tok_s

MAX_STREAMS = 65_536
STEP_MARKS = {"waiting": ("·", "dim"), "done": ("✓", "green"), "failed": ("✗", "bold red"), "skipped": ("–", "dim")}
STEP_TEXTS = {
    "plan": "what fits, how, how fast",
    "doctor": "known problems of this machine",
    "rehearse": "test the start without the download",
    "up": "start the engine",
    "verify": "correctness checks",
    "climb": "try one setting at a time, keep what is better",
    "bench": "measure throughput and latency",
    "task": "coding jobs with tools, scored",
    "report": "writing report.html",
}
SHORTEST_SHOWN_S = 2.0  # steps that take less are not announced with their duration
MOST_LINES = 7  # of the running step: with nine steps the table has 20 lines


def run(
    model: str = "",
    /,
    *,
    box: str = "",
    recipe: str = "",
    ram: Ram = "",
    ram_bandwidth: RamBandwidth = "",
    twin: Switch = False,
    until: str = "",
    skip: Names = (),
    concurrency: str = "",
    port: int | None = None,
    keep: Switch = False,
    effort: Effort = "normal",
    yes: Switch = False,
    resume: str = "",
    json: AsJson = False,
) -> int:
    """Plan, check the machine, rehearse, start, verify, climb, measure and report, in one command.

    Without a model: the phantom, a rehearsal model with Kimi's architecture, on the embedded engine, on any machine.

    Args:
        model: A model from the catalogue, a folder with config.json, or a .gguf file.
        box: Plan for this box instead of this machine (with --twin, or to plan only).
        recipe: Start from this recipe instead of a plan: a file, or the name of a saved or shipped one.
        twin: Run against a simulation of the box; every result is marked as simulated.
        until: The last step: plan, doctor, rehearse, up, verify, climb, bench, task or report; --resume may go further.
        skip: Steps to leave out (comma-separated or repeated).
        concurrency: Streams to measure at, such as 1,8,32.
        port: Port to listen on; if it is in use, a free one is taken.
        keep: Keep the engine running at the end.
        effort: quick has fewer trials, shorter prompts and measurements, and no jobs; the phantom always runs so, with
            two jobs. thorough has six times as many trials of each check.
        yes: Agree to every prompt: fetch missing weights, go on after failed checks of this machine.
        resume: Resume this run, by folder or name; `latest` is the newest one.
    """
    if resume:
        again = "--resume continues the run as it was started"
        refuse_if(model, f"{again}: it does not take {model}")
        flags.refuse_unused(again, box=box, recipe=recipe, ram=ram, ram_bandwidth=ram_bandwidth, twin=twin, skip=skip)
        flags.refuse_unused(again, concurrency=concurrency, port=port, keep=keep, effort=effort != "normal")
        folder = Run.resume(resume)
        pipelines.check_step_names([until] if until else [])
        with pipelines.raise_disk_full(folder):
            pipeline = pipelines.resume_pipeline(folder, until=until or None)  # type: ignore[arg-type]
    else:
        request = RunRequest(
            model="" if recipes.is_phantom(model) else model,
            recipe=str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe,
            box=box,
            ram=ram,
            ram_bandwidth=ram_bandwidth,
            twin=twin,
            until=until or "report",  # type: ignore[arg-type]
            skip=tuple(flags.split_names(*skip)),  # type: ignore[arg-type]
            concurrency=flags.parse_counts("--concurrency", concurrency, most=MAX_STREAMS),
            keep=keep,
            port=port,
            quick=effort == "quick",
            thorough=effort == "thorough",
        )
        check_request(request)
        name = Path(request.model).name.removesuffix(".gguf") or Path(request.recipe).stem or "phantom"
        folder = Run.create(f"run-{name}")
        with pipelines.raise_disk_full(folder):
            pipeline = pipelines.begin_pipeline(request, folder)
    awake = AwakeClock()
    view = RunView(pipeline, folder, now=awake.active_now, quiet=json)
    runner = Runner(folder, pipeline, awake=awake, notify=view.handle_event, confirm=lambda text: yes or ask_user(text))
    try:
        with interrupt_message(f"resume with: moebox run --resume {folder.id}"), awake, view:
            ended = runner.run_steps()
    finally:
        folder.release_lock()
        if json:
            print_json({"run": str(folder.path), **codec.to_document(runner.pipeline)})
    if not json:
        live = runner.engine.session
        serving = isinstance(live, EngineSession) and live.is_alive
        print_summary(folder, ended, serving=serving)
        if isinstance(live, EngineSession) and serving:
            line = f"endpoint  {live.endpoint.base_url}  model {live.endpoint.model}"
            print_lines([line, f"stop      moebox down {live.instance.id}"])
        elif not ended.simulated:
            print_lines(["keep      `moebox run --keep` keeps the engine running at the end"])
    return exit_code(not any(display_state(step.state, step.figures) == "failed" for step in ended.steps))


def check_request(request: RunRequest) -> None:
    """Raise BadInput for names that do not exist and flags that contradict each other, before a run folder is made."""
    pipelines.check_step_names([request.until, *request.skip])
    refuse_out_of_range("--port", request.port, 0, LAST_PORT)
    refuse_if(request.model and request.recipe, f"--recipe names its model: it does not take {request.model}")
    if request.twin:
        flags.refuse_unused("--twin has its own port and ends with the run", port=request.port, keep=request.keep)
    if request.box or request.ram or request.ram_bandwidth:
        recipes.calibrated_box(request.box or None, ram=request.ram, ram_bandwidth=request.ram_bandwidth)
    elsewhere = request.box and not request.twin and request.until != STEPS[0]
    hint = "add --twin to simulate it, or --until plan"
    refuse_if(elsewhere, f"{request.box} is not this machine", hint=hint)
    named = request.box or request.recipe or request.model
    refuse_if(request.twin and not named, "--twin simulates a box: name one with --box, and a model")
    if request.recipe:
        recipes.load_recipe(request.recipe)
    elif request.model:
        resolve_model(request.model)


def ask_user(question: str) -> bool:
    """Ask the user; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        print_note(f"{question} Not a terminal, so the answer is no; `--yes` continues.")
        return False
    return confirm(question)


def print_summary(folder: Run, pipeline: Pipeline, *, serving: bool) -> None:
    """Print the assessment, and the paths of report and recipe."""
    print_lines([""])
    print_assessment(assess_run(with_forecast(read_run(folder)), serving=serving))
    lines = [f"\nreport    {folder.path / pipelines.REPORT}"] * (pipeline.step("report").state == "done")
    print_lines([*lines, f"recipe    {folder.path / 'recipe.toml'}"])


class RunView(LiveDisplay):
    """Shows the pipeline: a live table on a terminal, a line for each step elsewhere."""

    def __init__(self, pipeline: Pipeline, run: Run, *, now: Callable[[], float], quiet: bool) -> None:
        self.run, self.now, self.quiet, self.console = run, now, quiet, stdout_console()
        self.expected = pipelines.expected_step_seconds(run)
        self.steps = {step.name: step for step in pipeline.steps}
        self.request, self.simulated = pipeline.request, pipeline.simulated
        self.started: dict[str, float] = {}
        self.lines: list[str] = []  # of the running step

    def __enter__(self) -> Self:
        super().__enter__()
        if not self.quiet and not self.live:
            print_note(f"run {self.run.path}")
        return self

    def print_final(self) -> None:
        stdout_console().print(self)

    def handle_event(self, kind: str, what: Any) -> None:
        """Show the start or end of a step, or a line of the running one."""
        if kind == "step":
            self.steps[what.name], self.lines = what, []
            if what.state == "running":
                self.started[what.name] = self.now()
                takes_s = self.expected.get(what.name, 0.0)
                takes = f", about {format_seconds(takes_s)}" if takes_s >= SHORTEST_SHOWN_S else ""
                line = f"{what.name}: {STEP_TEXTS[what.name]}{takes}"
            else:
                mark, _ = STEP_MARKS[display_state(what.state, what.figures)]
                took = f"{format_seconds(what.seconds)}  " if what.state == "done" else ""
                line = f"{mark} {what.name} {took}{what.text}".rstrip()
        else:
            text = str(what)
            if kind == "check":
                text = f"{VERDICT_MARKS[what.verdict][0]} {what.name} {what.reason}".rstrip()
            elif kind == "trial":
                kept = "kept" if what.kept else "dropped"
                text = f"{what.change}: {format_tok_s(what.output_tok_s)}, {kept} ({what.why})"
            self.lines.append(text)
            line = f"    {text}"
        if not self.live and not self.quiet:
            print_lines([line])

    def __rich__(self) -> View:
        rows: list[list[Part]] = []
        room = stdout_console().width - 28  # one line for each step: the table fits 24 lines
        for name in self.request.wanted_steps:
            step, takes_s = self.steps[name], self.expected.get(name)
            text, lines = STEP_TEXTS[name], list[str]()
            mark: Part = self.spinner
            if step.state == "running":
                past_s = self.now() - self.started.get(name, self.now())
                left = f"{format_seconds(takes_s - past_s)} left" if takes_s and takes_s > past_s else ""
                style, when, lines = "bold", left or format_seconds(past_s), self.lines[-MOST_LINES:]
            else:
                mark = STEP_MARKS[display_state(step.state, step.figures)]
                style, when, text = mark[1], format_seconds(step.seconds) if step.state == "done" else "", step.text
            if step.state == "waiting":
                when, text = f"~ {format_seconds(takes_s)}" if takes_s else "", STEP_TEXTS[name]
            cells = (f"{name:<8}", f"{when:<16}", clip_text(text, room))
            rows.append([mark, *((cell, style) for cell in cells)])
            rows += [["", "", "", (clip_text(line, room), "dim")] for line in lines]
        past_s = self.now() - max(self.started.values(), default=self.now())
        left = pipelines.time_left_text(self.steps.values(), self.request, self.expected, past_s=past_s)
        head = (f"{'SIMULATION  ' if self.simulated else ''}run {self.run.id}", "bold")
        return make_group(head, "", make_grid(rows, whole=4), *(("", (left, "dim")) if left else ()))
