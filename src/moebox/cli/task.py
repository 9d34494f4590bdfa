"""`moebox task`: let an agent do coding jobs against an endpoint, and score what its files do afterwards."""

import contextlib
import dataclasses
import random
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from moebox import codec
from moebox.cli import flags
from moebox.cli.display import VERDICT_MARKS, LiveDisplay, make_group, make_table
from moebox.cli.flags import AsJson, KeyEnv, Names, ServedModel, Settings
from moebox.cli.output import Part, print_lines, print_note, print_parts, print_result, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.cli.target import create_run, find_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.setting import apply_settings
from moebox.errors import BadInput, ExternalError, refuse_if, refuse_out_of_range, require_known
from moebox.loose import get_object
from moebox.serve import connect
from moebox.serve.state import hold_endpoint
from moebox.store import Run
from moebox.stream.limits import served_limits
from moebox.tasks import harbor, runner
from moebox.tasks.clients import CLIENTS, UNSUPPORTED_FAMILIES, RealClient
from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.mcp_tools import McpServers, parse_addresses
from moebox.tasks.reply import ReplySettings
from moebox.tasks.result import END_TITLES, FILE, UNFINISHED, JobName, JobResult, TaskRun, TurnRecord, load_task_run
from moebox.tasks.runner import JobWorker, TaskOptions
from moebox.tasks.score import family_scores, solved_score
from moebox.tasks.tools import ToolServerDied
from moebox.units import format_count, format_seconds, format_tok_s, plural

Jobs = tuple[JobName, ...]
MAX_SEED = 10**6
DEFAULT_JOBS = 9  # a job of each family
DEFAULT_JOB_S = 30 * 60.0
# A flag, what it does, and the flags that it ignores.
UNUSED: dict[str, tuple[str, str]] = {
    "write": ("--write only writes jobs", "parallel budget set mcp harbor resume model key_env"),
    "harbor": ("--harbor runs its own jobs with its own agent", "family level seed set with_ mcp resume"),
    "resume": ("--resume continues the jobs of that run", "family level jobs seed"),
}
THINKING = {"auto": None, "yes": True, "no": False}
KEY_FOR_CLIENT = "MOEBOX_ENDPOINT_KEY"  # the variable in which a real client finds the key
SHOWN = 12  # finished jobs in the live view
INDENT, MAX_LINES = 4, 4  # of the reason below a job; its transcript has all of it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How our own agent works."""

    api: Literal["openai", "anthropic"] | None = None  # None: openai, or that of the run to resume
    thinking: Literal["auto", "yes", "no"] = "auto"
    temperature: float = 0.0
    job_s: float = DEFAULT_JOB_S  # also of a real client


def task(
    target: str = "",
    /,
    *,
    family: Names = (),
    level: Literal["easy", "medium", "hard"] | None = None,
    jobs: int | None = None,
    parallel: int | None = None,
    seed: int | None = None,
    budget: str = "",
    settings: Settings = (),
    with_: Annotated[str, Parameter(name="--with")] = "",
    mcp: Names = (),
    harbor: str = "",
    write: Path | None = None,
    resume: str = "",
    model: ServedModel = "",
    key_env: KeyEnv = "",
    json: AsJson = False,
) -> int:
    """Give a model seeded coding jobs with tools, and score what its files do afterwards.

    Families, from easy to hard: errand, question, repair, clean, implement, refactor, gadget, plan and long-reply.
    Jobs are made from their seed and done in a sandbox; hidden tests decide. Exit code 1 if no job was solved.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started. Default: the running one, with --resume
            the one of that run.
        family: Only these families (comma-separated or repeated).
        level: Difficulty of the jobs. Default: easy.
        jobs: How many jobs, families in turn. Default: 9.
        parallel: Jobs at the same time. Default: 1.
        seed: The first seed; the same seed gives the same jobs. Default: a new one.
        budget: Time for all jobs together, such as 20m; unfinished jobs are left for --resume.
        settings: Another value, repeatable: job_s=30m, the time limit of one job; of our own agent api=anthropic,
            thinking=yes (auto leaves it to the server) and temperature=0.
        with_: Let a real client do the jobs instead of our own agent: claude or opencode.
        mcp: More tools: NAME=COMMAND or NAME=URL of an MCP server (repeated). Needs `moebox[mcp]`.
        harbor: Run a dataset of Harbor (such as terminal-bench@2.0) with an installed `harbor` instead of our jobs.
        write: Only write the jobs into this folder, in Harbor's task format.
        resume: Resume this run (`latest` is the newest): only unfinished jobs are done again.
    """
    refuse_out_of_range("--jobs", jobs, 1, 10_000)
    refuse_out_of_range("--parallel", parallel, 1, 256)
    given: dict[str, object] = {"family": family, "level": level, "jobs": jobs, "seed": seed}
    given |= {"set": settings, "parallel": parallel, "budget": budget, "mcp": mcp, "harbor": harbor, "resume": resume}
    given |= {"with_": with_, "model": model, "key_env": key_env, "write": write}
    for flag, (reason, names) in UNUSED.items():
        if given[flag]:
            flags.refuse_unused(reason, **{name: given[name] for name in names.split()})
    agent = apply_settings(AgentSettings(), settings)
    refuse_if(agent.job_s <= 0, "--set job_s: must be more than 0")
    budget_s = flags.parse_duration("--budget", budget) if budget else None
    refuse_if(budget_s is not None and budget_s <= 0, f"--budget {budget}: must be more than 0")
    own = dataclasses.replace(agent, job_s=DEFAULT_JOB_S) != AgentSettings()
    refuse_if(with_ and own, "a real client chooses api, thinking and temperature itself", hint="leave them out")
    refuse_if(write and target, f"--write needs no endpoint: it does not take {target}")
    number, first = jobs or DEFAULT_JOBS, random.randrange(MAX_SEED) if seed is None else seed
    wanted = runner.job_names(parse_families(family, client=with_), level or "easy", number, first)
    if write is not None:
        return _write_jobs(wanted, write, json=json)
    if with_:
        require_known("client", with_, CLIENTS)
    parse_addresses(mcp)
    before = load_task_run(Run.open(resume)) if resume else None
    if before and not target:
        target, model, key_env = before.url, model or before.model, key_env or before.key_env
    earlier_api: Literal["openai", "anthropic"] = "anthropic" if before and before.api == "anthropic" else "openai"
    options = TaskOptions(
        parallel=parallel or 1,
        budget_s=budget_s,
        job_s=agent.job_s,
        api=agent.api or earlier_api,
        temperature=agent.temperature,
        thinking=THINKING[agent.thinking],
    )
    endpoint = find_endpoint(target, model=model, key_env=key_env)
    if harbor:
        return _run_harbor(harbor, endpoint, number, options, json=json)
    refuse_if(with_ and mcp, "--mcp adds tools to our own agent; a real client has its own settings for them")
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(contextlib.closing(_start_servers(mcp))) if mcp else None
        worker = _make_worker(endpoint, options, with_, servers)
        stack.enter_context(hold_endpoint(endpoint.base_url, "moebox task"))
        return _run_jobs(endpoint, wanted, worker, options, resume, json=json)


def parse_families(given: Sequence[str], *, client: str = "") -> list[str]:
    """Return the named families; by default, for a real client, those that it can do."""
    chosen = flags.split_names(*given)
    for name in chosen:
        require_known("family", name, FAMILIES)
        unsupported = client and name in UNSUPPORTED_FAMILIES
        refuse_if(unsupported, f"--family {name} needs a tool that only our own agent has", hint="leave --with out")
    if client and not chosen:
        return [name for name in FAMILIES if name not in UNSUPPORTED_FAMILIES]
    return chosen


def _run_jobs(
    endpoint: Endpoint, wanted: Jobs, worker: JobWorker, options: TaskOptions, resume: str, *, json: bool
) -> int:
    """Do the jobs of a new run, or the unfinished ones of a run to resume, and show the scores."""
    if resume:
        run = Run.resume(resume)
        stored = load_task_run(run)
        if stored is None:
            raise BadInput(f"{run.path} has no jobs to resume", hint="`moebox task` without --resume starts new ones")
        hint = "leave --with out" if stored.agent == "moebox" else f"--with {stored.agent}"
        text = f"the jobs of {run.path} were done by {stored.agent}, not {worker.name}"
        refuse_if(stored.agent != worker.name, text, hint=hint)
        task_run = dataclasses.replace(stored, url=endpoint.base_url, key_env=endpoint.key_env)
    else:
        run, task_run = create_run("task", endpoint), runner.prepare_task_run(endpoint, wanted, worker, options)
    run.write_json(FILE, task_run)
    if not json:
        print_note(f"run: {run.path}")
    command = f"resume with: moebox task --resume {run.id}"

    try:
        with interrupt_message(command), TaskView(task_run, quiet=json) as view:
            listener = runner.JobListener(on_begin=view.job_began, on_turn=view.turn_ended, on_end=view.job_ended)
            done = runner.run_jobs(task_run, worker, run, options, listener)
    except runner.ServerGone as problem:
        problem.hint = f"when it is back, {command} (at another address: moebox task URL --resume {run.id})"
        show_scores(load_task_run(run) or task_run, run, json=json)
        raise
    finally:
        run.release_lock()
    return show_scores(done, run, json=json)


def _start_servers(mcp: Sequence[str]) -> McpServers:
    """Start the MCP servers; ExternalError if one does not list its tools."""
    servers = McpServers(parse_addresses(mcp))
    try:
        servers.tools()
    except ToolServerDied as problem:
        servers.close()
        raise ExternalError(str(problem), hint="does the command run by itself?") from None
    return servers


def _make_worker(endpoint: Endpoint, options: TaskOptions, client: str, servers: McpServers | None) -> JobWorker:
    """Return our own agent, or a real client with the settings of `moebox connect` and the key in its environment."""
    if not client:
        settings = ReplySettings(endpoint=endpoint, **codec.shared_fields(options, ReplySettings))
        return runner.OwnAgent(settings, servers.tools) if servers else runner.OwnAgent(settings)
    context = served_limits(endpoint).context or connect.DEFAULT_CONTEXT
    live = connect.LiveModel(endpoint=endpoint, key_env=KEY_FOR_CLIENT if endpoint.key else "", context=context)
    if client == "opencode":
        model = f"moebox/{endpoint.model}"
        changes = dict(connect.client_settings("opencode", live).changes)
        changes |= {"model": model, "small_model": model, "share": "disabled", "autoupdate": False}
        changes["permission"] = {"edit": "allow", "bash": "deny", "webfetch": "deny", "external_directory": "deny"}
        files = {".config/opencode/opencode.json": codec.to_json(changes)}
        secret = {KEY_FOR_CLIENT: endpoint.key} if endpoint.key else {}
        return RealClient("opencode", endpoint.model, secret, files)
    own = get_object(connect.client_settings("claude-code", live).changes, "env")
    environment = {name: str(value) for name, value in own.items()}
    environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    environment |= {"CLAUDE_CODE_MAX_RETRIES": "2", "ANTHROPIC_API_KEY": endpoint.key or connect.NO_KEY}
    return RealClient("claude", endpoint.model, environment)


def _write_jobs(wanted: Jobs, folder: Path, *, json: bool) -> int:
    """Write the jobs in Harbor's task format."""
    for name in wanted:
        harbor.write_task(make_job(name.family, name.level, name.seed), folder)
    text = f"{plural(len(wanted), 'task')} written to {folder}\nrun them: harbor run -p {folder} -a AGENT -m MODEL"
    document = {"folder": folder, "jobs": [name.id for name in wanted]}
    return print_result(json, document, lambda: print_lines([text]))


def _run_harbor(dataset: str, endpoint: Endpoint, jobs: int, options: TaskOptions, *, json: bool) -> int:
    """Run a dataset of Harbor with Harbor's agent, and show the results in our scores."""
    engine = harbor.container_engine()
    run = create_run("task", endpoint)
    print_note(f"run: {run.path}")
    folder, parallel, budget_s = run.path / "tasks", options.parallel, options.budget_s
    results = harbor.run_dataset(
        dataset, endpoint, folder, engine=engine, jobs=jobs, parallel=parallel, budget_s=budget_s
    )
    names = tuple(JobName(family=row.family, level=row.level, seed=row.seed) for row in results)
    done = TaskRun(url=endpoint.base_url, model=endpoint.model, key_env=endpoint.key_env, agent="harbor")
    done = dataclasses.replace(done, wanted=names, results=tuple(results), sandbox=engine)
    run.write_json(FILE, done)
    run.release_lock()
    return show_scores(done, run, jobs=results, json=json)


class TaskView(LiveDisplay):
    """Follows jobs of several threads."""

    def __init__(self, task_run: TaskRun, *, quiet: bool) -> None:
        self.console = stdout_console()
        self.quiet, self.total, self.before = quiet, len(task_run.wanted), len(task_run.finished_results)
        self.running: dict[str, tuple[float, int, str]] = {}  # job: start, turns, current tool
        self.done: list[JobResult] = []
        self.lock = threading.Lock()

    def print_final(self) -> None:
        """Print every job, and the reason if it is not solved."""
        print_jobs(self.done)

    def job_began(self, name: JobName) -> None:
        with self.lock:
            self.running[name.id] = (time.monotonic(), 0, "")

    def turn_ended(self, name: JobName, turn: TurnRecord) -> None:
        """Show a job's turn and its last tool."""
        tool = turn.calls[-1].tool if turn.calls else "…"
        with self.lock:
            self.running[name.id] = (self.running[name.id][0], turn.number, tool)

    def job_ended(self, result: JobResult) -> None:
        with self.lock:
            self.running.pop(result.id, None)
            self.done.append(result)
        if not self.live and not self.quiet:
            print_jobs([result])

    def __rich__(self) -> RenderableType:
        with self.lock:
            rows: list[Part] = [job_line(result, stdout_console().width) for result in self.done[-SHOWN:]]
            now = time.monotonic()
            for name, (since, turns, tool) in self.running.items():
                rows.append((f"· {name:<24} {format_seconds(now - since):>7}  turn {turns} {tool}", "dim"))
            solved = sum(result.solved for result in self.done)
            head = f"{len(self.done) + self.before} of {self.total} jobs, {solved} solved"
        return make_group(*rows, (head, "bold"))


def print_jobs(results: Iterable[JobResult]) -> None:
    print_parts(*(job_line(result, stdout_console().width) for result in results))


def show_scores(task_run: TaskRun, run: Run, *, jobs: Iterable[JobResult] = (), json: bool) -> int:
    """Print `jobs` and scores by family, the sum, unfinished jobs, and the path of the transcripts.

    The exit code is good if a job was solved.
    """
    results = task_run.finished_results
    solved, families, left = solved_score(results), family_scores(results), task_run.unfinished_jobs
    document = {name: getattr(task_run, name) for name in ("url", "model", "agent", "agent_version", "api", "sandbox")}
    document |= {"solved": solved, "families": families, "left": [name.id for name in left], "jobs": task_run.results}

    def show() -> None:
        print_jobs(jobs)
        rows = []
        for row in families:
            scores = (row.hidden, row.valid_calls)
            shares = (f"{score.share * 100:.0f}%" if score.trials else "" for score in scores)
            used = (f"{row.turns:.0f}", format_count(round(row.output_tokens)), format_seconds(row.seconds))
            speed = format_tok_s(row.tok_s).removesuffix(" tok/s") if row.tok_s else ""
            rows.append((f"{row.family} {row.level}", row.solved.text, *shares, *used, speed))
        if rows:
            heads = ("family", "solved", "tests", "calls ok", "turns", "tokens", "time", "tok/s")
            print_parts("", make_table(heads, rows, left_columns=("family",), gap=1))
        print_lines([f"solved: {solved.text}"])
        if left:
            print_lines([f"{plural(len(left), 'job')} unfinished: moebox task --resume {run.id}"])
        print_note(f"transcripts: {run.path / 'tasks'}")

    return print_result(json, {**document, "run": str(run.path)}, show, good=any(each.solved for each in results))


def job_line(result: JobResult, width: int = 80) -> Text:
    """Return one line for a job; below it the reason if it is not solved, in lines of at most `width` columns."""
    mark, style = VERDICT_MARKS["pass" if result.solved else "skip" if result.end in UNFINISHED else "fail"]
    turn = f"turn {result.wrong_turn}: " if result.wrong and result.wrong_turn else ""
    reason = turn + " ".join(result.wrong.split())
    if result.end in UNFINISHED:
        reason = f"left for --resume: {END_TITLES[result.end]}"
    passed, total = result.hidden_tests
    took, turns = format_seconds(result.seconds), plural(len(result.turns), "turn")
    text = Text(f"{mark} {result.id:<24} {took:>7}  {turns:>8}  {passed}/{total} tests", style=style)
    for line in textwrap.wrap(reason, max(width - INDENT, 20), max_lines=MAX_LINES, placeholder=" …"):
        text.append(f"\n{' ' * INDENT}{line}", style="dim")
    return text
