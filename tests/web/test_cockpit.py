"""The page as a cockpit: runs are started, followed, stopped and compared; engines answer chats; recipes are kept."""

import json
import os
import re
import shlex
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.engine_event import AttemptFailed, AttemptStarted
from moebox.core.event import LoadBegan, VerifyBegan, VerifyEnded
from moebox.core.pipeline import STEPS, Pipeline, PipelineStep, RunRequest
from moebox.core.recipe import Recipe
from moebox.flows import pipeline as pipelines
from moebox.flows.recipes import load_recipe
from moebox.runs.listing import list_summaries
from moebox.store import Run
from moebox.web import live, planning
from tests.report.making import a_run
from tests.web.entry import cookie
from tests.web.test_ui import get

Serve = Callable[..., str]
RECIPE = 'name = "mine"\nengine = "vllm"\nmodel = "kimi-k2.6"\ncheckpoint = "int4"\nserved_name = "k"\n'


def post(url: str, path: str, fields: Mapping[str, object], **changed: str) -> tuple[int, str]:
    """A POST as the page's own script makes it; `changed` replaces headers."""
    headers = {"Origin": url.rstrip("/"), "Cookie": cookie(url), "Content-Type": "application/json", **changed}
    request = urllib.request.Request(url + path, json.dumps(fields).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def until(true: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "path",
    [
        *("runs", "runs/x/stop", "engines/x/stop", "chat", "recipes", "recipes/check", "recipes/start"),
        *("tasks", "tune", "upgrade", "upgrade/rollback"),
    ],
)
def test_changes_are_taken_from_this_page_alone(serve: Serve, path: str):
    """Another page in the same browser has another Origin, even at another port; other users lack the cookie."""
    url = serve()

    for origin in ("http://evil.example", "http://127.0.0.1:9", "null", ""):
        assert post(url, path, {}, Origin=origin)[0] == 403
    assert post(url, path, {}, Cookie="")[0] == 403
    assert post(url, path, {}, Host="evil.example")[0] in (403, 421)


def test_a_run_is_started_followed_and_ends_in_the_list(serve: Serve, tmp_path: Path):
    url = serve(runs=tmp_path)
    status, text = post(url, "runs", {"model": "kimi-k2.6", "box": "8x-b200", "twin": "1", "until": "plan"})

    assert status == 201, text
    name = json.loads(text)["go"].split("/")[2]
    until(lambda: not Run(tmp_path / name).is_locked)
    assert "kimi-k2.6" in get(url + "runs")[1].lower()
    page = get(f"{url}runs/{name}/live")[1]
    assert "✓" in page
    assert '<p class="quiet">ended' in page  # as in the list


def test_a_run_is_stopped_as_ctrl_c_stops_it(serve: Serve, tmp_path: Path):
    url = serve(runs=tmp_path)
    fields = {"model": "kimi-k2.6", "box": "8x-b200", "twin": "1"}
    name = json.loads(post(url, "runs", fields)[1])["go"].split("/")[2]
    run = Run(tmp_path / name)
    until(lambda: "bench" in str(run.read_pipeline()) and run.is_locked)

    assert post(url, f"runs/{name}/stop", {})[0] == 200
    until(lambda: not run.is_locked)
    assert post(url, f"runs/{name}/stop", {})[0] == 400


def test_a_pid_in_a_file_is_not_believed(serve: Serve, tmp_path: Path):
    """The lock's file may name any process; only the one that holds it is interrupted."""
    run = a_run(tmp_path)
    run.acquire_lock()
    (run.path / ".lock").write_text(str(os.getppid()))

    status, text = post(serve(runs=tmp_path), f"runs/{run.id}/stop", {})
    run.release_lock()

    assert status == 503
    assert "not on this machine" in text


@pytest.mark.parametrize(
    "fields", [{"model": "--help"}, {"model": "kimi-k2.6", "until": "nosuch"}, {"model": {"a": 1}}, {"keep": True}]
)
def test_a_start_that_cannot_be_meant_is_one_line(serve: Serve, tmp_path: Path, fields: dict[str, object]):
    """A value that was no text was passed over, and the rehearsal model started instead."""
    status, text = post(serve(runs=tmp_path), "runs", fields)

    assert status == 400
    assert json.loads(text)["error"]
    assert not any(tmp_path.iterdir())


def test_runs_are_filtered_and_compared(serve: Serve, tmp_path: Path):
    one, two = a_run(tmp_path, name="alpha"), a_run(tmp_path, name="beta")
    url = serve(runs=tmp_path)
    listed = get(url + "runs?q=alpha")[1]

    assert one.id in listed
    assert two.id not in listed
    assert "640" in listed
    assert get(f"{url}compare?run={one.id}&run={two.id}")[1].count("Side by side") >= 1
    assert get(f"{url}compare?run={one.id}")[0] == 400
    assert get(f"{url}runs/nosuch")[0] == 404
    assert get(f"{url}runs/..%2F..%2Fetc")[0] == 404


def test_a_step_whose_checks_failed_is_not_ticked_as_good(serve: Serve, tmp_path: Path):
    """A verification that ended is done, but shown as failed if a check failed."""
    run = a_run(tmp_path, name="red")
    steps = [
        {"name": "up", "state": "done", "seconds": 3.0},
        {"name": "verify", "state": "done", "seconds": 9.0, "figures": {"pass": 11, "fail": 1}},
    ]
    (run.path / "pipeline.json").write_text(json.dumps({"request": {}, "steps": steps}))
    page = get(f"{serve(runs=tmp_path)}runs/{run.id}/live")[1]
    shown = {name: state for state, name in re.findall(r'<li class="(\w+)">.*?<b>(\w+)</b>', page)}
    assert shown == {"up": "done", "verify": "failed"}


def test_a_run_is_watched_without_chapters_that_are_empty(tmp_path: Path):
    """A run that did not climb had a heading "What each setting gained" over "0 steps, 0 kept"."""
    shown = [section.title for section in live.live_view(a_run(tmp_path))["sections"]]

    assert "Does it answer right" in shown
    assert "What each setting gained" not in shown
    assert "Problems met" not in shown


def test_the_time_left_goes_by_the_last_run_that_did_each_step(tmp_path: Path):
    """The last run left verify out by hand: seven minutes must not become twenty seconds."""
    took = {"plan": 1.0, "verify": 430.0, "bench": 20.0, "task": 9.0}
    for name, left_out in (("a", ()), ("b", ("verify",)), ("c", ())):
        pipeline = Pipeline(request=RunRequest(model="kimi-k2.6", until="bench", quick=name == "c"))
        for step in STEPS:
            state, why = ("skipped", pipelines.BY_HAND) if step in left_out else ("done", "")
            done = PipelineStep(name=step, state=state, why=why, seconds=took.get(step, 0.0))  # type: ignore[arg-type]
            pipeline = pipeline.with_step(done)
        pipelines.save_pipeline(pipeline, Run.create(name, runs=tmp_path))
    run = Run.create("now", runs=tmp_path)
    asked = pipelines.begin_pipeline(RunRequest(model="kimi-k2.6", until="bench"), run)
    pipelines.save_pipeline(asked.with_step(PipelineStep(name="plan", state="done")), run)

    assert live.live_view(run)["time_left"] == "about 7 min 30 s left"
    never = Run.create("never", runs=tmp_path)
    pipelines.begin_pipeline(RunRequest(model="glm-5"), never)
    assert live.live_view(never)["time_left"] == ""


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A long list is shown from memory; a run that went on is read anew."""
    first, second = a_run(tmp_path, name="a"), a_run(tmp_path, name="b")
    assert {row.id for row in list_summaries(tmp_path)} == {first.id, second.id}
    from moebox.runs import listing

    read: list[str] = []
    original = listing.summarize_run
    monkeypatch.setattr(listing, "summarize_run", lambda run: read.append(run.id) or original(run))
    list_summaries(tmp_path)
    assert read == []
    first.add_event(LoadBegan(concurrency=1))
    list_summaries(tmp_path)
    assert read == [first.id]


def test_a_recipe_is_checked_saved_and_found_by_name(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = serve()
    bad = post(url, "recipes/check", {"text": RECIPE + "contexts = 3\n"})
    assert bad[0] == 400
    assert "contexts" in json.loads(bad[1])["error"]
    too_large = post(url, "recipes/check", {"text": RECIPE + '[planned_for]\nbox = "1x-rtx-5090"\n'})
    assert too_large[0] == 409
    assert "does not fit on 1x-rtx-5090: gpu0 needs " in json.loads(too_large[1])["error"]
    for name in ("../evil", "kimi-k26-vllm", ""):
        assert post(url, "recipes", {"name": name, "text": RECIPE})[0] == 400
    assert post(url, "recipes", {"name": "mine", "text": RECIPE})[0] == 201
    assert load_recipe("mine").served_name == "k"
    (tmp_path / "data" / "moebox" / "recipes" / "torn.toml").write_text("engine = ")
    listed = get(url + "recipes")[1]
    assert "mine" in listed
    assert "kimi-k2.6, IQ3_K, ik_llama.cpp, experts in RAM, context 131,072, 2x-rtx-pro-6000-max-q" in listed
    assert "torn.toml" in listed  # with its error, beside the others


def test_the_plan_shows_first_what_was_chosen(serve: Serve):
    text = get(serve() + "plan?box=8x-b200&context=65536&concurrency=8")[1]

    assert text.index("chosen") < text.index("Memory per GPU")
    command = "moebox plan kimi-k2.6 --box 8x-b200 --context 65536 --concurrency 8 -o recipe.toml"
    assert command in re.sub(r"</?span[^>]*>", "", text)  # flags stand in spans that no line breaks
    assert "Save the recipe" in text


@pytest.mark.parametrize("controls", ["", "concurrency=32&goal=context", "bold=1&engine=sglang&context=16384"])
def test_the_command_on_the_page_gives_the_plan_on_the_page(
    controls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Pasted into a shell it must write the same recipe, not the one of the default settings."""
    monkeypatch.chdir(tmp_path)
    wanted = planning.parse_query(dict(urllib.parse.parse_qsl(controls)))
    _, *words = shlex.split(planning.plan_command(wanted))

    assert main(words) == 0
    assert codec.read_toml(Recipe, tmp_path / "recipe.toml") == planning.plan_fully(wanted).plan.recipe


def test_a_chat_with_no_engine_is_one_line(serve: Serve):
    messages = json.dumps([{"role": "user", "content": "hello"}])
    status, text = post(serve(), "chat", {"engine": "nosuch", "messages": messages})

    assert status == 503
    assert "no running engine" in json.loads(text)["error"]


def test_lists_of_runs_show_how_each_ended(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Terminal and page alike: half of the checks have not passed, a launch that failed has not just ended."""
    whole, cut, failed = (a_run(tmp_path, name=name) for name in ("whole", "cut", "failed"))
    cut.add_event(VerifyBegan(model="k", checks=("reply", "tools")))
    failed.add_event(AttemptStarted(id="a"))
    failed.add_event(AttemptFailed(id="a", message="out of memory"))
    checked = Run.create("verify-m", runs=tmp_path)
    checked.add_event(VerifyBegan(model="only-checked", checks=("reply",)))
    checked.add_event(VerifyEnded(verdict="pass"))
    for run in (whole, cut, failed, checked):
        run.release_lock()
    page = get(serve(runs=tmp_path) + "runs")[1]
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    terminal = capsys.readouterr().out

    def row(text: str, run: Run) -> str:
        return next(
            line for line in text.replace("<tr>", "\n<tr>").replace("\n<td", "<td").splitlines() if run.id in line
        )

    for text in (page, terminal):
        assert "interrupted in verify" in row(text, cut)
        assert "passed" not in row(text, cut)
        assert "failed in up" in row(text, failed)
        assert "ended" in row(text, whole)
        assert "passed" in row(text, whole)
    assert "only-checked" in row(page, checked)
    assert main(["runs", "--runs", str(tmp_path), "--json"]) == 0
    states = {each["id"]: each["state"] for each in json.loads(capsys.readouterr().out)["runs"]}
    assert [states[run.id] for run in (whole, cut, failed)] == ["ended", "interrupted in verify", "failed in up"]
