"""Harbor (harbor-framework/harbor, the harness of Terminal-Bench 2): jobs in its task format, and its datasets.

`write_task` writes a folder that `harbor run -p` takes: task.toml, instruction.md, environment/, tests/, solution/.
`run_dataset` passes the endpoint to an installed `harbor`, which needs docker or podman, and reads its results as
JobResults. The files of a task are in data/harbor.
"""

import contextlib
import inspect
import json
import re
import shutil
import signal
import subprocess
from datetime import datetime
from pathlib import Path
from typing import cast

from moebox.core.endpoint import Endpoint
from moebox.data import FOLDER
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError
from moebox.files import report_write_errors
from moebox.loose import Json, as_object, get_object, get_path, get_text, is_number
from moebox.redact import decode_reply
from moebox.stream.limits import served_limits
from moebox.tasks import gadget
from moebox.tasks.families import FAMILIES
from moebox.tasks.result import LEVELS, AgentJob, End, HiddenCheckResult, JobResult, Level, TurnRecord
from moebox.tasks.score import expected_values

AGENT = "terminus-2"  # Harbor's own, which takes any OpenAI-compatible endpoint as `api_base`
AGENT_S, VERIFIER_S, BUILD_S = 1800.0, 120.0, 600.0
INFO_S = 30.0  # for `docker info`
# Harbor removes its containers when it is interrupted; SIGKILL would leave them.
STOP_SIGNALS = ((signal.SIGINT, 90.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0))
SUMMARY_TOKENS = 8000  # of context left, at which terminus-2 begins to summarise by itself
OWN_TASK = re.compile(rf"({'|'.join(FAMILIES)})-({'|'.join(LEVELS)})-(\d{{1,9}})")


def write_task(job: AgentJob, folder: Path) -> Path:
    """Write the job as a Harbor task below `folder`; return the task's folder."""
    place = folder / job.id
    shipped = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "harbor").iterdir()}
    instruction, files = job.instruction, dict(job.files)
    if job.reply_file:
        instruction += f"\n\nWrite the module into the file `{job.reply_file}`."
    if job.gadget:  # a program here, for an agent that has a shell and none of moebox's tools
        instruction = f"{job.system}\n\nHere the tool is a program: `python3 gadget.py LINE`.\n\n{instruction}"
        files |= {"gadget.py": inspect.getsource(gadget) + shipped["gadget_main.py.txt"]}
        files |= {gadget.STATE_FILE: job.gadget}
    checks = {
        "snippets": job.snippets,
        "expected": list(expected_values(job.family, job.level, job.seed)),
        "protected": {name: job.files[name] for name in job.protected},
    }
    settings = {"level": job.level, "family": job.family, "seed": job.seed}
    times = {"verifier_s": VERIFIER_S, "agent_s": AGENT_S, "build_s": BUILD_S}
    texts = {
        "task.toml": shipped["task.toml.txt"].format(**settings, **times),
        "instruction.md": f"{instruction}\n\nWork in `/app`.\n",
        "environment/Dockerfile": shipped["Dockerfile"],
        "tests/test.sh": shipped["test.sh"],
        "tests/check.py": shipped["check.py.txt"],
        "tests/checks.json": json.dumps(checks),
        "solution/solve.sh": shipped["solve.sh"],
        **{f"environment/files/{name}": text for name, text in (files or {".keep": ""}).items()},
        **{f"solution/files/{name}": text for name, text in job.solution.items()},
    }
    for name, text in texts.items():
        path = place / name
        with report_write_errors(path, error_type=BadInput):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name in ("tests/test.sh", "solution/solve.sh") else 0o644)
    return place


def harbor_command(
    dataset: str, endpoint: Endpoint, folder: Path, *, engine: str, jobs: int, parallel: int, context: int | None
) -> list[str]:
    """The command line; the key is in the environment. Harbor assumes a context of a million tokens by default."""
    where = ["-p", dataset] if Path(dataset).is_dir() else ["-d", dataset]
    command = ["harbor", "run", *where, "-e", engine, "-a", AGENT, "-m", f"openai/{endpoint.model}"]
    command += ["--ak", f"api_base={endpoint.base_url}"]
    if context:
        limits = {"max_input_tokens": context, "max_output_tokens": max(1, context // 4)}
        command += ["--ak", f"model_info={json.dumps(limits)}"]
        command += ["--ak", f"proactive_summarization_threshold={min(SUMMARY_TOKENS, context // 4)}"]
    return [*command, "-o", str(folder), "-n", str(parallel), "-l", str(jobs)]


def container_engine() -> str:
    """The container engine that Harbor can use. Raise ExternalError if `harbor` or an engine is missing."""
    if shutil.which("harbor") is None:
        raise ExternalError("harbor is not installed", hint="uv tool install harbor (it needs Python 3.12)")
    installed = list(filter(shutil.which, ("docker", "podman")))
    if not installed:
        hint = "Harbor runs tasks in docker, or in podman with podman-compose"
        raise ExternalError("docker is not installed", hint=hint)
    for name in installed:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run([name, "info"], capture_output=True, timeout=INFO_S, check=False).returncode == 0:
                return name
    text = f"{' and '.join(installed)} cannot be reached: `{installed[0]} info` fails"
    raise ExternalError(text, hint="is its daemon running?")


def run_dataset(
    dataset: str, endpoint: Endpoint, folder: Path, *, engine: str, jobs: int, parallel: int, budget_s: float | None
) -> list[JobResult]:
    """Run a dataset, or a folder of tasks, to its end or to the end of the budget, and read the results."""
    context = served_limits(endpoint).context
    command = harbor_command(dataset, endpoint, folder, jobs=jobs, parallel=parallel, engine=engine, context=context)
    environment = chosen_environment({"OPENAI_API_KEY": endpoint.key or "none", "OPENAI_BASE_URL": endpoint.base_url})
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "harbor.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    code = 0
    try:
        code = process.wait(budget_s)
    except subprocess.TimeoutExpired:
        code = 0  # the results so far count
    finally:
        stop_harbor(process)
        log.write_text(decode_reply(log.read_bytes()), encoding="utf-8")  # without the key
    results = read_results(folder, Path(dataset).name)
    if not results:
        raise ExternalError(f"harbor left no results (exit code {code})", hint=f"its output is in {log}")
    return results


def stop_harbor(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt a `harbor` that still runs, and wait while it removes its containers."""
    for sign, wait_s in STOP_SIGNALS:
        if process.poll() is not None:
            return
        process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


def read_results(folder: Path, dataset: str) -> list[JobResult]:
    """Results of all trials below a folder of Harbor's jobs, in the order of their names."""
    results: list[JobResult] = []
    for path in sorted(folder.rglob("result.json")):
        try:
            document = as_object(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            continue
        if "task_name" in document and "trial_name" in document:  # the job's own result.json has neither
            results.append(_trial_result(document, path.relative_to(folder).as_posix(), dataset, len(results)))
    return results


def _trial_result(document: Json, path: str, dataset: str, number: int) -> JobResult:
    """One trial, read defensively; all that the agent did is one turn."""
    task = str(document["task_name"])
    rewards = list(filter(is_number, get_object(document, "verifier_result.rewards").values()))
    solved = bool(rewards) and min(rewards) >= 1
    failure = get_object(document, "exception_info")
    end: End = "done"
    why = ""
    if failure:
        kind = get_text(failure, "exception_type")
        why = f"{kind}: {get_text(failure, 'exception_message')}"[:300]
        end = "time" if "Timeout" in kind else "client"
    own = OWN_TASK.fullmatch(task)  # a job that `write_task` wrote
    tokens = [get_path(document, f"agent_result.n_{name}_tokens") for name in ("input", "output", "cache")]
    prompt, completion, cached = (
        value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None for value in tokens
    )
    turn = TurnRecord(
        number=1,
        at_s=0.0,
        seconds=_duration(get_object(document, "agent_execution") or document),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
    )
    return JobResult(
        family=own[1] if own else dataset,
        level=cast(Level, own[2]) if own else "hard",
        seed=int(own[3]) if own else number,
        solved=solved,
        end=end,
        why=why,
        wrong="" if solved else f"{task}: {why or 'its tests did not pass'}",
        checks=(HiddenCheckResult(name=task, passed=int(solved), of=1),),
        seconds=_duration(document),
        turns=(turn,),
        transcript=path,
    )


def _duration(document: Json) -> float:
    """Seconds between started_at and finished_at; 0 if one is missing."""
    texts = [str(document.get(name)) for name in ("started_at", "finished_at")]
    try:
        started, finished = (datetime.fromisoformat(text).replace(tzinfo=None) for text in texts)
    except ValueError:
        return 0.0
    return max(0.0, (finished - started).total_seconds())
