"""Harbor (harbor-framework/harbor, the harness of Terminal-Bench 2): our jobs in its task format, its datasets here.

`write` gives a folder that `harbor run -p` takes: task.toml, instruction.md, environment/, tests/, solution/.
`run_dataset` hands the endpoint to an installed `harbor`, which needs docker or podman, and reads its results into our
own types.
"""

import contextlib
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import cast

from moebox.core.endpoint import Endpoint
from moebox.errors import BadInput, ExternalError
from moebox.files import report_write_errors
from moebox.loose import Json, as_object, get_object, get_path, get_text, is_number
from moebox.redact import decode_reply
from moebox.stream.limits import served_limits
from moebox.tasks import gadget
from moebox.tasks.families import FAMILIES
from moebox.tasks.job import LEVELS, AgentJob, Level
from moebox.tasks.result import End, HiddenCheckResult, JobResult, TurnRecord
from moebox.tasks.score import expected_values

AGENT = "terminus-2"  # Harbor's own, which takes any OpenAI-compatible endpoint by `api_base`
AGENT_S, VERIFIER_S, BUILD_S = 1800.0, 120.0, 600.0
ASK_S = 30.0
# Harbor removes its containers when it is interrupted; SIGKILL would leave them.
STOP = ((signal.SIGINT, 90.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0))
SUMMARY_TOKENS = 8000  # of context left, at which terminus-2 begins to summarise by itself
OWN_TASK = re.compile(rf"({'|'.join(FAMILIES)})-({'|'.join(LEVELS)})-(\d{{1,9}})")

DOCKERFILE = """FROM python:3.12-slim
WORKDIR /app
COPY files/ /app/
"""
TEST_SH = """#!/bin/bash
mkdir -p /logs/verifier
python3 -I /tests/check.py /app > /logs/verifier/checks.txt 2>&1 && echo 1 > /logs/verifier/reward.txt \\
  || echo 0 > /logs/verifier/reward.txt
cat /logs/verifier/checks.txt
"""
SOLVE_SH = """#!/bin/bash
cp -r /solution/files/. /app/
"""
# Runs each snippet in one process of its own beside the agent's files, and compares outside of it.
CHECK_PY = '''"""The hidden checks: exit code 0 when all of them pass."""

import json
import math
import pathlib
import subprocess
import sys

app = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).parent
checks = json.loads((here / "checks.json").read_text())
DRIVER = """
import json, sys
sys.path.insert(0, ".")
for place, source in enumerate(json.load(sys.stdin)):
    space = {"__name__": "__snippet__"}
    try:
        exec(compile(source, "<check>", "exec"), space)
        line = json.dumps([place, space["result"]])
    except BaseException as problem:
        line = json.dumps([place, {"!": f"{type(problem).__name__}: {problem}"[:300]}])
    print("moebox-check:" + line, flush=True)
"""


def same(value, wanted):
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, (int, float)) and isinstance(wanted, (int, float)):
        return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(same(value[key], wanted[key]) for key in value)
    return value == wanted


def changed(name, text):
    return not (app / name).is_file() or (app / name).read_text() != text


touched = [name for name, text in checks["protected"].items() if changed(name, text)]
for name, text in checks["protected"].items():
    (app / name).parent.mkdir(parents=True, exist_ok=True)
    (app / name).write_text(text)
snippets = json.dumps(checks["snippets"])
words = [sys.executable, "-B", "-c", DRIVER]
done = subprocess.run(words, input=snippets, capture_output=True, text=True, cwd=app, timeout=90)
rows = [line.split(":", 1)[1] for line in done.stdout.splitlines() if line.startswith("moebox-check:")]
values = dict(json.loads(row) for row in rows)
right = [place in values and same(values[place], wanted) for place, wanted in enumerate(checks["expected"])]
print(f"{sum(right)} of {len(right)} checks passed")
if touched:
    print("changed, and must stay:", ", ".join(touched))
sys.exit(0 if all(right) and len(rows) == len(right) and not touched else 1)
'''
GADGET_MAIN = """

if __name__ == "__main__":
    import pathlib
    import sys

    place = pathlib.Path(__file__).with_name(STATE_FILE)
    rest = place.with_name(".trolley.json")
    store = GadgetStore(place.read_text())
    if rest.exists():
        store.at, store.trolley = json.loads(rest.read_text())
    print(store.run_command(sys.argv[1] if len(sys.argv) > 1 else ""))
    place.write_text(store.state_json())
    rest.write_text(json.dumps([store.at, store.trolley]))
"""


def write_task(job: AgentJob, folder: Path) -> Path:
    """The job as a Harbor task below `folder`; its own folder."""
    place = folder / job.id
    _put(place / "task.toml", _toml(job))
    _put(place / "instruction.md", f"{_instruction(job)}\n\nWork in `/app`.\n")
    _put(place / "environment" / "Dockerfile", DOCKERFILE)
    (place / "environment" / "files").mkdir(parents=True, exist_ok=True)
    for name, text in (_files(job) or {".keep": ""}).items():
        _put(place / "environment" / "files" / name, text)
    _put(place / "tests" / "test.sh", TEST_SH, mode=0o755)
    _put(place / "tests" / "check.py", CHECK_PY)
    _put(place / "tests" / "checks.json", json.dumps(_checks(job)))
    _put(place / "solution" / "solve.sh", SOLVE_SH, mode=0o755)
    for name, text in job.solution.items():
        _put(place / "solution" / "files" / name, text)
    return place


def _files(job: AgentJob) -> dict[str, str]:
    """What lies in the job's folder; the tool that a gadget's job needs as a program."""
    if not job.gadget:
        return dict(job.files)
    return {**job.files, "gadget.py": inspect.getsource(gadget) + GADGET_MAIN, gadget.STATE_FILE: job.gadget}


def _checks(job: AgentJob) -> dict[str, object]:
    """What check.py holds the files against."""
    return {
        "snippets": [snippet for check in job.checks for snippet in check.snippets],
        "expected": list(expected_values(job)),
        "protected": {name: job.files[name] for name in job.protected},
    }


def _instruction(job: AgentJob) -> str:
    """The job in words, for an agent that has a shell and no tools of ours."""
    instruction = job.instruction
    if job.reply_file:
        instruction += f"\n\nWrite the module into the file `{job.reply_file}`."
    if job.gadget:
        instruction = f"{job.system}\n\nHere the tool is a program: `python3 gadget.py LINE`.\n\n{instruction}"
    return instruction


def _toml(job: AgentJob) -> str:
    return f"""version = "1.0"

[metadata]
author_name = "moebox"
difficulty = "{job.level}"
category = "{job.family}"
tags = ["moebox", "seed-{job.seed}"]

[verifier]
timeout_sec = {VERIFIER_S}

[agent]
timeout_sec = {AGENT_S}

[environment]
build_timeout_sec = {BUILD_S}
cpus = 1
"""


def _put(path: Path, text: str, *, mode: int = 0o644) -> None:
    with report_write_errors(path, error_type=BadInput):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)


def harbor_command(
    dataset: str,
    endpoint: Endpoint,
    folder: Path,
    *,
    jobs: int,
    parallel: int,
    engine: str = "docker",
    context: int | None = None,
) -> list[str]:
    """What is run; the key goes by the environment. `context` is what the server has: Harbor assumes a million."""
    where = ["-p", dataset] if Path(dataset).is_dir() else ["-d", dataset]
    words = ["harbor", "run", *where, "-e", engine, "-a", AGENT, "-m", f"openai/{endpoint.model}"]
    words += ["--ak", f"api_base={endpoint.base_url}"]
    if context:
        limits = {"max_input_tokens": context, "max_output_tokens": max(1, context // 4)}
        words += ["--ak", f"model_info={json.dumps(limits)}"]
        words += ["--ak", f"proactive_summarization_threshold={min(SUMMARY_TOKENS, context // 4)}"]
    return [*words, "-o", str(folder), "-n", str(parallel), "-l", str(jobs)]


def container_engine() -> str:
    """What Harbor can run tasks in here; Outside where `harbor` or such an engine is missing."""
    if shutil.which("harbor") is None:
        raise ExternalError("harbor is not installed", hint="uv tool install harbor (it needs Python 3.12)")
    there = [name for name in ("docker", "podman") if shutil.which(name)]
    if not there:
        raise ExternalError(
            "docker is not installed", hint="Harbor runs tasks in docker, or in podman with podman-compose"
        )
    for name in there:
        if _answers(name):
            return name
    raise ExternalError(
        f"{' and '.join(there)} cannot be reached: `{there[0]} info` fails", hint="is its daemon running?"
    )


def _answers(engine: str) -> bool:
    try:
        done = subprocess.run([engine, "info"], capture_output=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def run_dataset(
    dataset: str, endpoint: Endpoint, folder: Path, *, engine: str, jobs: int, parallel: int, budget_s: float | None
) -> list[JobResult]:
    """Run a dataset, or a folder of tasks, and read what came of it."""
    context = served_limits(endpoint).context
    words = harbor_command(dataset, endpoint, folder, jobs=jobs, parallel=parallel, engine=engine, context=context)
    environment = {**os.environ, "OPENAI_API_KEY": endpoint.key or "none", "OPENAI_BASE_URL": endpoint.base_url}
    folder.mkdir(parents=True, exist_ok=True)
    code = _run(words, environment, folder / "harbor.log", budget_s)
    results = read_results(folder, Path(dataset).name)
    if not results:
        raise ExternalError(
            f"harbor left no results (exit code {code})", hint=f"its output is in {folder / 'harbor.log'}"
        )
    return results


def _run(words: list[str], environment: Mapping[str, str], log: Path, budget_s: float | None) -> int:
    """Harbor to its end, or to the end of the budget; its exit code, 0 where the budget was up."""
    with open(log, "wb") as file:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        return process.wait(budget_s)
    except subprocess.TimeoutExpired:
        return 0  # what is there counts
    finally:
        stop_harbor(process)
        log.write_text(decode_reply(log.read_bytes()), encoding="utf-8")  # it was given the key


def stop_harbor(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt a `harbor` that still runs, and wait while it removes its containers."""
    for sign, wait_s in STOP:
        if process.poll() is not None:
            return
        process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


def read_results(folder: Path, dataset: str) -> list[JobResult]:
    """Every trial's result.json below a folder of Harbor's jobs, in the order of their names."""
    found: list[JobResult] = []
    for path in sorted(folder.rglob("result.json")):
        document = _document(path)
        if "task_name" in document and "trial_name" in document:  # the job's own result.json has neither
            found.append(_result(document, path.relative_to(folder).as_posix(), dataset, len(found)))
    return found


def _document(path: Path) -> Json:
    try:
        return as_object(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def _result(document: Json, path: str, dataset: str, number: int) -> JobResult:
    """One trial; somebody else's file, so nothing in it is taken for granted."""
    task = str(document["task_name"])
    rewards = [value for value in get_object(document, "verifier_result.rewards").values() if is_number(value)]
    solved = bool(rewards) and min(rewards) >= 1
    end, why = _ending(get_object(document, "exception_info"))
    family, level, seed = _named(task) or (dataset, "hard", number)
    return JobResult(
        family=family,
        level=level,
        seed=seed,
        solved=solved,
        end=end,
        why=why,
        wrong="" if solved else f"{task}: {why or 'its tests did not pass'}",
        checks=(HiddenCheckResult(name=task, passed=int(solved), of=1),),
        seconds=_span(document),
        turns=(_turn(document),),
        transcript=path,
    )


def _turn(document: Json) -> TurnRecord:
    """All that a client did, as one turn."""
    return TurnRecord(
        number=1,
        at_s=0.0,
        seconds=_span(get_object(document, "agent_execution") or document),
        prompt_tokens=_whole(get_path(document, "agent_result.n_input_tokens")),
        completion_tokens=_whole(get_path(document, "agent_result.n_output_tokens")),
        cached_tokens=_whole(get_path(document, "agent_result.n_cache_tokens")),
    )


def _named(task: str) -> tuple[str, Level, int] | None:
    """Family, level and seed of a job of ours, which `write` calls its task by; None for anybody else's."""
    match = OWN_TASK.fullmatch(task)
    return (match[1], cast(Level, match[2]), int(match[3])) if match else None


def _ending(failure: Json) -> tuple[End, str]:
    """How the trial ended, and why it failed where it did."""
    if not failure:
        return "done", ""
    kind = get_text(failure, "exception_type")
    why = f"{kind}: {get_text(failure, 'exception_message')}"[:300]
    return ("time" if "Timeout" in kind else "client"), why


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _span(document: Json) -> float:
    """Seconds between started_at and finished_at; 0 where they are not told."""
    moments = list(_moments(document))
    return max(0.0, (moments[1] - moments[0]).total_seconds()) if len(moments) == 2 else 0.0


def _moments(document: Json) -> Iterator[datetime]:
    for name in ("started_at", "finished_at"):
        try:
            yield datetime.fromisoformat(str(document.get(name)).replace("Z", "+00:00")).replace(tzinfo=None)
        except ValueError:
            return
