"""`moebox task`: agents at work against an endpoint, scored by what the files do afterwards."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags, kept_in
from moebox.cli import target as targets
from moebox.cli.output import answer, people, talk
from moebox.cli.signals import told_when_interrupted
from moebox.errors import BadInput, Outside
from moebox.units import parse_seconds, plural

if TYPE_CHECKING:
    from moebox.core.endpoint import Endpoint
    from moebox.store import Run
    from moebox.tasks.result import JobName, TaskRun
    from moebox.tasks.runner import Options, Worker

Words = Annotated[list[str] | None, Parameter(negative=())]
Switch = Annotated[bool, Parameter(negative=())]
MOST_SEED = 10**6
KEY_FOR_CLIENT = "MOEBOX_ENDPOINT_KEY"  # the variable a real client finds the key in


def task(
    target: str = "",
    /,
    *,
    family: Words = None,
    level: Literal["easy", "medium", "hard"] = "easy",
    jobs: int = 9,
    parallel: int = 1,
    seed: int | None = None,
    budget: str = "",
    job_time: str = "30m",
    api: Literal["openai", "anthropic"] = "openai",
    thinking: Literal["auto", "yes", "no"] = "auto",
    temperature: float = 0.0,
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
        level: How hard the jobs are.
        jobs: How many jobs, families in turn.
        parallel: Jobs at the same time.
        seed: The first seed; a fresh one is drawn when left out. The same seed gives the same jobs.
        budget: Time for all jobs together, such as 20m; jobs not finished by then are left for --resume.
        job_time: Time limit of one job.
        api: The API our own agent uses.
        thinking: Whether the model is asked to think; auto leaves it to the server.
        temperature: Sampling temperature of our own agent.
        with_: Let a real client do the jobs instead of our own agent: claude or opencode.
        mcp: More tools: NAME=COMMAND or NAME=URL of an MCP server (repeated). Needs `moebox[mcp]`.
        harbor: Run a dataset of Harbor (such as terminal-bench@2.0) with an installed `harbor` instead of our jobs.
        write: Only write the jobs into this folder, in Harbor's task format.
        resume: Go on with this run (`latest` is the newest): only unfinished jobs are done again.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        json: Print JSON.
    """
    if not (1 <= jobs <= 10_000 and 1 <= parallel <= 256):
        raise BadInput("--jobs is 1 to 10000 and --parallel 1 to 256")
    chosen = _possible(families(family), with_)
    first = random.randrange(MOST_SEED) if seed is None else seed
    from moebox.tasks import runner

    wanted = runner.names(chosen, level, jobs, first)
    if write is not None:
        return _write(wanted, write)
    options = runner.Options(
        parallel=parallel,
        budget_s=_seconds(budget) if budget else None,
        job_s=_seconds(job_time),
        api=api,
        temperature=temperature,
        thinking={"auto": None, "yes": True, "no": False}[thinking],
    )
    if resume and not target:
        target, model = _resumed(resume, model)
    endpoint = targets.endpoint(target, model=model, key_env=key_env)
    if harbor:
        return _harbor(harbor, endpoint, jobs, options, json)
    worker, close = _worker(endpoint, options, with_, mcp or [], key_env)
    try:
        return _work(endpoint, wanted, worker, options, resume, json)
    finally:
        close()


def families(given: list[str] | None) -> list[str]:
    """The families named; UnknownName for one that is not there."""
    from moebox.errors import UnknownName
    from moebox.tasks.families import FAMILIES

    chosen = flags.names(*(given or ()))
    for name in chosen:
        if name not in FAMILIES:
            raise UnknownName("family", name, FAMILIES)
    return chosen


def _possible(chosen: list[str], client: str) -> list[str]:
    """The families that a real client can do; BadInput for one it cannot."""
    if not client:
        return chosen
    from moebox.tasks.clients import LEFT_OUT
    from moebox.tasks.families import FAMILIES

    for name in set(chosen) & set(LEFT_OUT):
        raise BadInput(f"--family {name} needs a tool that only our own agent has", hint="leave --with out")
    return chosen or [name for name in FAMILIES if name not in LEFT_OUT]


def _seconds(text: str) -> float:
    try:
        found = parse_seconds(text)
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    if found <= 0:
        raise BadInput(f"{text}: a time is more than nothing")
    return found


def _work(
    endpoint: "Endpoint", wanted: "tuple[JobName, ...]", worker: "Worker", options: "Options", resume: str, json: bool
) -> int:
    """Do the jobs, show them, and say how it went."""
    from moebox.cli.task_view import View, summary
    from moebox.tasks import runner

    run, task_run = _begin(endpoint, wanted, worker, options, resume)
    runner.save(task_run, run)
    if not json:
        talk().print(f"run: {run.path}", soft_wrap=True)
    try:
        with told_when_interrupted(_go_on(run)), View(task_run, quiet=json) as view:
            done = runner.work_all(task_run, worker, run, options, view.listener())
    except runner.ServerGone as problem:
        done = runner.take_up(run) or task_run
        problem.hint = f"once it is back, {_go_on(run)} (at another address: moebox task URL --resume {run.id})"
        answer(json, summary(done) | {"run": str(run.path)}, lambda: view.close(done, run.path))
        raise
    finally:
        run.release()
    answer(json, summary(done) | {"run": str(run.path)}, lambda: view.close(done, run.path))
    return 0 if any(result.solved for result in done.finished) else 1


def _go_on(run: "Run") -> str:
    return f"go on with: moebox task --resume {run.id}"


def _resumed(resume: str, model: str) -> tuple[str, str]:
    """Where the jobs of a run were done; the key is never kept, so its variable must be named again."""
    from moebox.store import Run
    from moebox.tasks import runner

    task_run = runner.take_up(Run.open(resume))
    return (task_run.url, model or task_run.model) if task_run else ("", model)


def _begin(
    endpoint: "Endpoint", wanted: "tuple[JobName, ...]", worker: "Worker", options: "Options", resume: str
) -> "tuple[Run, TaskRun]":
    """A new run, or one taken up."""
    from moebox.store import Run
    from moebox.tasks import runner

    if not resume:
        return kept_in.new_run("task", endpoint), runner.begin(endpoint, wanted, worker, options)
    run = Run.taken_up(resume)
    task_run = runner.take_up(run)
    if task_run is None:
        raise BadInput(f"{run.path} has no jobs to go on with", hint="`moebox task` without --resume begins anew")
    if task_run.agent != worker.name:
        hint = "leave --with out" if task_run.agent == "moebox" else f"--with {task_run.agent}"
        raise BadInput(f"{run.path} was worked on by {task_run.agent}, not {worker.name}", hint=hint)
    return run, dataclasses.replace(task_run, url=endpoint.base_url)


def _worker(
    endpoint: "Endpoint", options: "Options", client: str, mcp: list[str], key_env: str
) -> "tuple[Worker, Callable[[], None]]":
    """Who does the jobs, and how to end what was started for it."""
    from moebox.tasks.reply import Ask
    from moebox.tasks.runner import Agent

    if client and mcp:
        raise BadInput("--mcp adds tools to our own agent; a real client has its own settings for them")
    if client:
        return _client(endpoint, client, key_env), lambda: None
    ask = Ask(endpoint=endpoint, api=options.api, temperature=options.temperature, thinking=options.thinking)
    if not mcp:
        return Agent(ask), lambda: None
    from moebox.tasks.mcp_tools import McpServers, addresses
    from moebox.tasks.tools import ToolServerDied

    servers = McpServers(addresses(mcp))
    try:
        servers.tools()
    except ToolServerDied as problem:
        servers.close()
        raise Outside(str(problem), hint="does the command run by itself?") from None
    return Agent(ask, servers.tools), servers.close


def _client(endpoint: "Endpoint", client: str, key_env: str) -> "Worker":
    """A real client with the settings that `moebox connect` gives it, and the key in its environment alone."""
    from moebox import codec
    from moebox.errors import UnknownName
    from moebox.loose import inner
    from moebox.serve import connect
    from moebox.stream.limits import served_limits
    from moebox.tasks.clients import CLIENTS, RealClient, Setup

    if client not in CLIENTS:
        raise UnknownName("client", client, CLIENTS)
    context = served_limits(endpoint).context or connect.MODEST_CONTEXT
    reached = connect.Reached(endpoint=endpoint, key_env=key_env and KEY_FOR_CLIENT, context=context)
    secret = {KEY_FOR_CLIENT: endpoint.key} if endpoint.key else {}
    if client == "opencode":
        model = f"moebox/{endpoint.model}"
        changes = dict(connect.settings("opencode", reached).changes)
        changes |= {"model": model, "small_model": model, "share": "disabled", "autoupdate": False}
        changes["permission"] = {"edit": "allow", "bash": "deny", "webfetch": "deny", "external_directory": "deny"}
        files = {".config/opencode/opencode.json": codec.to_json(changes)}
        return RealClient(Setup(client="opencode", model=endpoint.model, environment=secret, files=files))
    own = inner(connect.settings("claude-code", reached).changes, "env")
    environment = {name: str(value) for name, value in own.items()}
    environment |= {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }
    environment["ANTHROPIC_API_KEY"] = endpoint.key or connect.NO_KEY
    return RealClient(Setup(client="claude", model=endpoint.model, environment=environment))


def _write(wanted: "tuple[JobName, ...]", folder: Path) -> int:
    """The jobs in Harbor's task format."""
    from moebox.tasks import harbor
    from moebox.tasks.families import make

    for name in wanted:
        harbor.write(make(name.family, name.level, name.seed), folder)
    people().print(f"{plural(len(wanted), 'task')} written to {folder}", soft_wrap=True)
    people().print(f"run them: harbor run -p {folder} -a AGENT -m MODEL", soft_wrap=True)
    return 0


def _harbor(dataset: str, endpoint: "Endpoint", jobs: int, options: "Options", json: bool) -> int:
    """Harbor's dataset, done by Harbor, in our scores."""
    from moebox.cli.task_view import summary, tell_all
    from moebox.tasks import harbor, runner
    from moebox.tasks.result import JobName, TaskRun

    engine = harbor.container_engine()
    run = kept_in.new_run("task", endpoint)
    talk().print(f"run: {run.path}", soft_wrap=True)
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
    runner.save(done, run)
    run.release()
    answer(json, summary(done) | {"run": str(run.path)}, lambda: tell_all(done, run.path))
    return 0 if any(result.solved for result in results) else 1
