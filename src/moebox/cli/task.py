"""`moebox task`: agents at work against an endpoint, scored by what the files do afterwards."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags, kept_in
from moebox.cli import target as targets
from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.errors import BadInput, ExternalError, refuse_if, refuse_out_of_range
from moebox.units import parse_seconds, plural

if TYPE_CHECKING:
    from moebox.core.endpoint import Endpoint
    from moebox.serve.connect import LiveModel
    from moebox.store import Run
    from moebox.tasks.clients import ClientSetup
    from moebox.tasks.mcp_tools import McpServers
    from moebox.tasks.result import JobName, TaskRun
    from moebox.tasks.runner import JobWorker, TaskOptions

Words = Annotated[list[str] | None, Parameter(negative=())]
Switch = Annotated[bool, Parameter(negative=())]
MOST_SEED = 10**6
JOBS = 9  # a job of each family
JOB_S = 30 * 60.0  # of one job
_AGENT = ("job_time", "api", "thinking", "temperature")
# What is asked for, what it does, and what it has no use for.
UNUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "write": (
        "--write only writes jobs",
        ("parallel", "budget", *_AGENT, "mcp", "harbor", "resume", "model", "key_env"),
    ),
    "harbor": (
        "--harbor runs its own jobs with its own agent",
        ("family", "level", "seed", *_AGENT, "with_", "mcp", "resume"),
    ),
    "resume": ("--resume goes on with the jobs of that run", ("family", "level", "jobs", "seed")),
    "with_": ("a real client asks in its own way", ("api", "thinking", "temperature")),
}
THINKING = {None: None, "auto": None, "yes": True, "no": False}
KEY_FOR_CLIENT = "MOEBOX_ENDPOINT_KEY"  # the variable a real client finds the key in


def task(
    target: str = "",
    /,
    *,
    family: Words = None,
    level: Literal["easy", "medium", "hard"] | None = None,
    jobs: int | None = None,
    parallel: int | None = None,
    seed: int | None = None,
    budget: str = "",
    job_time: str = "",
    api: Literal["openai", "anthropic"] | None = None,
    thinking: Literal["auto", "yes", "no"] | None = None,
    temperature: float | None = None,
    with_: Annotated[str, Parameter(name="--with")] = "",
    mcp: Words = None,
    harbor: str = "",
    write: Path | None = None,
    resume: str = "",
    model: str = "",
    key_env: str = "",
    json: Switch = False,
) -> int:
    """Give a model seeded coding jobs with tools, and score what its files do afterwards.

    Families, from easy to hard: errand, question, repair, clean, implement, refactor, gadget, plan and long-reply.
    Jobs are made from their seed and done in a sandbox; hidden tests decide. Exit code 1 when no job was solved.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started; the running one when left out, with
            --resume the one of that run.
        family: Only these families (comma-separated or repeated).
        level: How hard the jobs are; easy when left out.
        jobs: How many jobs, families in turn; 9 when left out.
        parallel: Jobs at the same time; 1 when left out.
        seed: The first seed; a fresh one is drawn when left out. The same seed gives the same jobs.
        budget: Time for all jobs together, such as 20m; jobs not finished by then are left for --resume.
        job_time: Time limit of one job; 30m when left out.
        api: The API our own agent uses; openai when left out, with --resume the one of that run.
        thinking: Whether the model is asked to think; auto (when left out) leaves it to the server.
        temperature: Sampling temperature of our own agent; 0 when left out.
        with_: Let a real client do the jobs instead of our own agent: claude or opencode.
        mcp: More tools: NAME=COMMAND or NAME=URL of an MCP server (repeated). Needs `moebox[mcp]`.
        harbor: Run a dataset of Harbor (such as terminal-bench@2.0) with an installed `harbor` instead of our jobs.
        write: Only write the jobs into this folder, in Harbor's task format.
        resume: Go on with this run (`latest` is the newest): only unfinished jobs are done again.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        json: Print JSON.
    """
    from moebox.tasks import runner

    refuse_out_of_range("--jobs", jobs, 1, 10_000)
    refuse_out_of_range("--parallel", parallel, 1, 256)
    chosen_jobs: dict[str, object] = {"family": family, "level": level, "jobs": jobs, "seed": seed}
    agent: dict[str, object] = {"job_time": job_time, "api": api, "thinking": thinking, "temperature": temperature}
    others: dict[str, object] = {"target": target, "parallel": parallel, "budget": budget, "mcp": mcp}
    others |= {"harbor": harbor, "resume": resume, "with_": with_, "model": model, "key_env": key_env, "write": write}
    _refuse_unused(chosen_jobs | agent | others)
    number = jobs or JOBS
    first = random.randrange(MOST_SEED) if seed is None else seed
    wanted = runner.job_names(_possible(parse_families(family), with_), level or "easy", number, first)
    if write is not None:
        return _write(wanted, write, json)
    before = _before(resume) if resume else None
    if before and not target:
        target, model = before.url, model or before.model
    options = runner.TaskOptions(
        parallel=parallel or 1,
        budget_s=_seconds(budget),
        job_s=_seconds(job_time) or JOB_S,
        api=api or _api(before),
        temperature=temperature or 0.0,
        thinking=THINKING[thinking],
    )
    endpoint = targets.find_endpoint(target, model=model, key_env=key_env)
    if harbor:
        return _harbor(harbor, endpoint, number, options, json)
    worker, close = _worker(endpoint, options, with_, mcp or [])
    try:
        return _work(endpoint, wanted, worker, options, resume, json)
    finally:
        close()


def _refuse_unused(given: Mapping[str, object]) -> None:
    """BadInput for flags that have no effect with another one."""
    for flag, (why, names) in UNUSED.items():
        if given[flag]:
            flags.refuse_unused(why, **{name: given[name] for name in names})
    asked = given["write"] and given["target"]
    refuse_if(asked, f"--write asks nobody: it does not take {given['target']}")


def parse_families(given: list[str] | None) -> list[str]:
    """The families named; UnknownName for one that is not there."""
    from moebox.errors import UnknownName
    from moebox.tasks.families import FAMILIES

    chosen = flags.split_names(*(given or ()))
    for name in chosen:
        if name not in FAMILIES:
            raise UnknownName("family", name, FAMILIES)
    return chosen


def _possible(chosen: list[str], client: str) -> list[str]:
    """The families that a real client can do; BadInput for one it cannot."""
    if not client:
        return chosen
    from moebox.tasks.clients import UNSUPPORTED_FAMILIES
    from moebox.tasks.families import FAMILIES

    for name in set(chosen) & set(UNSUPPORTED_FAMILIES):
        raise BadInput(f"--family {name} needs a tool that only our own agent has", hint="leave --with out")
    return chosen or [name for name in FAMILIES if name not in UNSUPPORTED_FAMILIES]


def _seconds(text: str) -> float | None:
    """A time that is more than nothing; None where nothing is written."""
    if not text:
        return None
    try:
        found = parse_seconds(text)
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    refuse_if(found <= 0, f"{text}: a time is more than nothing")
    return found


def _work(
    endpoint: "Endpoint",
    wanted: "tuple[JobName, ...]",
    worker: "JobWorker",
    options: "TaskOptions",
    resume: str,
    json: bool,
) -> int:
    """Do the jobs, show them, and say how it went."""
    from moebox.cli.task_view import TaskView, task_document
    from moebox.tasks import runner
    from moebox.tasks.result import load_task_run

    run, task_run = _begin(endpoint, wanted, worker, options, resume)
    runner.save_task_run(task_run, run)
    if not json:
        stderr_console().print(f"run: {run.path}", soft_wrap=True)
    try:
        with interrupt_message(_go_on(run)), TaskView(task_run, quiet=json) as view:
            done = runner.run_jobs(task_run, worker, run, options, view.make_listener())
    except runner.ServerGone as problem:
        done = load_task_run(run) or task_run
        problem.hint = f"once it is back, {_go_on(run)} (at another address: moebox task URL --resume {run.id})"
        print_result(json, task_document(done) | {"run": str(run.path)}, lambda: view.print_scores(done, run.path))
        raise
    finally:
        run.release_lock()
    print_result(json, task_document(done) | {"run": str(run.path)}, lambda: view.print_scores(done, run.path))
    return exit_code(any(result.solved for result in done.finished_results))


def _go_on(run: "Run") -> str:
    return f"go on with: moebox task --resume {run.id}"


def _before(resume: str) -> "TaskRun | None":
    """What a run says of its jobs; the key is never kept, so its variable must be named again."""
    from moebox.store import Run
    from moebox.tasks.result import load_task_run

    return load_task_run(Run.open(resume))


def _api(before: "TaskRun | None") -> Literal["openai", "anthropic"]:
    """The API that the jobs of a run were begun with."""
    return "anthropic" if before and before.api == "anthropic" else "openai"


def _begin(
    endpoint: "Endpoint", wanted: "tuple[JobName, ...]", worker: "JobWorker", options: "TaskOptions", resume: str
) -> "tuple[Run, TaskRun]":
    """A new run, or one taken up."""
    from moebox.store import Run
    from moebox.tasks import runner
    from moebox.tasks.result import load_task_run

    if not resume:
        return kept_in.create_run("task", endpoint), runner.prepare_task_run(endpoint, wanted, worker, options)
    run = Run.resume(resume)
    task_run = load_task_run(run)
    if task_run is None:
        raise BadInput(f"{run.path} has no jobs to go on with", hint="`moebox task` without --resume begins anew")
    hint = "leave --with out" if task_run.agent == "moebox" else f"--with {task_run.agent}"
    text = f"{run.path} was worked on by {task_run.agent}, not {worker.name}"
    refuse_if(task_run.agent != worker.name, text, hint=hint)
    return run, dataclasses.replace(task_run, url=endpoint.base_url)


def _worker(
    endpoint: "Endpoint", options: "TaskOptions", client: str, mcp: list[str]
) -> "tuple[JobWorker, Callable[[], None]]":
    """Who does the jobs, and how to end what was started for it."""
    from moebox.tasks.reply import ReplySettings
    from moebox.tasks.runner import OwnAgent

    if client:
        refuse_if(mcp, "--mcp adds tools to our own agent; a real client has its own settings for them")
        return _client(endpoint, client), lambda: None
    ask = ReplySettings(endpoint=endpoint, api=options.api, temperature=options.temperature, thinking=options.thinking)
    if not mcp:
        return OwnAgent(ask), lambda: None
    servers = _servers(mcp)
    return OwnAgent(ask, servers.tools), servers.close


def _servers(mcp: list[str]) -> "McpServers":
    """The servers of more tools, started; Outside where one does not list them."""
    from moebox.tasks.mcp_tools import McpServers, parse_addresses
    from moebox.tasks.tools import ToolServerDied

    servers = McpServers(parse_addresses(mcp))
    try:
        servers.tools()
    except ToolServerDied as problem:
        servers.close()
        raise ExternalError(str(problem), hint="does the command run by itself?") from None
    return servers


def _client(endpoint: "Endpoint", client: str) -> "JobWorker":
    """A real client with the settings that `moebox connect` gives it, and the key in its environment alone."""
    from moebox.errors import UnknownName
    from moebox.serve import connect
    from moebox.stream.limits import served_limits
    from moebox.tasks.clients import CLIENTS, RealClient

    if client not in CLIENTS:
        raise UnknownName("client", client, CLIENTS)
    context = served_limits(endpoint).context or connect.DEFAULT_CONTEXT
    reached = connect.LiveModel(endpoint=endpoint, key_env=KEY_FOR_CLIENT if endpoint.key else "", context=context)
    return RealClient(_opencode(reached) if client == "opencode" else _claude(reached))


def _opencode(reached: "LiveModel") -> "ClientSetup":
    from moebox import codec
    from moebox.serve import connect
    from moebox.tasks.clients import ClientSetup

    endpoint = reached.endpoint
    model = f"moebox/{endpoint.model}"
    changes = dict(connect.client_settings("opencode", reached).changes)
    changes |= {"model": model, "small_model": model, "share": "disabled", "autoupdate": False}
    changes["permission"] = {"edit": "allow", "bash": "deny", "webfetch": "deny", "external_directory": "deny"}
    files = {".config/opencode/opencode.json": codec.to_json(changes)}
    secret = {KEY_FOR_CLIENT: endpoint.key} if endpoint.key else {}
    return ClientSetup(client="opencode", model=endpoint.model, environment=secret, files=files)


def _claude(reached: "LiveModel") -> "ClientSetup":
    from moebox.loose import get_object
    from moebox.serve import connect
    from moebox.tasks.clients import ClientSetup

    endpoint = reached.endpoint
    own = get_object(connect.client_settings("claude-code", reached).changes, "env")
    environment = {name: str(value) for name, value in own.items()}
    environment |= {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }
    environment["ANTHROPIC_API_KEY"] = endpoint.key or connect.NO_KEY
    return ClientSetup(client="claude", model=endpoint.model, environment=environment)


def _write(wanted: "tuple[JobName, ...]", folder: Path, json: bool) -> int:
    """The jobs in Harbor's task format."""
    from moebox.tasks import harbor
    from moebox.tasks.families import make_job

    for name in wanted:
        harbor.write_task(make_job(name.family, name.level, name.seed), folder)
    lines = [f"{plural(len(wanted), 'task')} written to {folder}"]
    lines += [f"run them: harbor run -p {folder} -a AGENT -m MODEL"]
    written = {"folder": folder, "jobs": [name.id for name in wanted]}
    print_result(json, written, lambda: stdout_console().print("\n".join(lines), soft_wrap=True, markup=False))
    return 0


def _harbor(dataset: str, endpoint: "Endpoint", jobs: int, options: "TaskOptions", json: bool) -> int:
    """Harbor's dataset, done by Harbor, in our scores."""
    from moebox.cli.task_view import print_results, task_document
    from moebox.tasks import harbor, runner
    from moebox.tasks.result import JobName, TaskRun

    engine = harbor.container_engine()
    run = kept_in.create_run("task", endpoint)
    stderr_console().print(f"run: {run.path}", soft_wrap=True)
    results = harbor.run_dataset(
        dataset,
        endpoint,
        run.path / "tasks",
        engine=engine,
        jobs=jobs,
        parallel=options.parallel,
        budget_s=options.budget_s,
    )
    wanted = tuple(JobName(family=row.family, level=row.level, seed=row.seed) for row in results)
    done = TaskRun(
        url=endpoint.base_url,
        model=endpoint.model,
        agent="harbor",
        wanted=wanted,
        results=tuple(results),
        sandbox=engine,
    )
    runner.save_task_run(done, run)
    run.release_lock()
    print_result(json, task_document(done) | {"run": str(run.path)}, lambda: print_results(done, run.path))
    return exit_code(any(result.solved for result in results))
