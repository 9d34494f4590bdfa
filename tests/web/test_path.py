"""The path of a user who never leaves the page: pick a model, see what fits, start it, follow it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import api, codec
from moebox.cli import main
from moebox.core.event import CheckDone, LoadDone
from moebox.core.pipeline import RunRequest
from moebox.errors import BadInput
from moebox.flows import pipeline as pipelines
from moebox.flows.recipes import shipped_recipes
from moebox.store import Run
from moebox.web import engines
from tests.report.making import a_run, level
from tests.web.test_cockpit import RECIPE, post, until
from tests.web.test_ui import get

Serve = Callable[..., str]
BOX = "8x-rtx-pro-6000-server"


def test_page_command_and_api_give_the_same_plan(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The page opens with what `moebox plan` answers without flags: context and concurrency are the planner's."""
    page = json.loads(get(f"{serve()}plan.json?box={BOX}&context=0&concurrency=0")[1])
    opened = json.loads(get(f"{serve()}plan.json?box={BOX}")[1])
    assert main(["plan", "kimi-k2.6", "--box", BOX, "--json"]) == 0
    command = json.loads(capsys.readouterr().out)
    assert page["recipe"] == opened["recipe"] == command["recipe"]
    assert page["recipe"] == json.loads(codec.to_json(api.plan("kimi-k2.6", box=BOX).recipe))


def test_the_phantom_is_a_model_of_command_page_and_api(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """`models` lists it, and `plan phantom` gives the recipe that `up phantom` starts."""
    assert main(["models", "--json"]) == 0
    assert "phantom" in [model["name"] for model in json.loads(capsys.readouterr().out)["models"]]
    assert main(["plan", "phantom", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert (recipe["name"], recipe["runtime"]["kind"]) == ("phantom", "embedded")
    assert json.loads(get(f"{serve()}plan.json?model=phantom&box=")[1])["recipe"]["name"] == "phantom"
    assert main(["plan", "phantom", "--context", "4096"]) == 2


def test_models_are_searched_and_each_shows_whether_it_fits(serve: Serve) -> None:
    """By words of names, titles and repositories; a model that does not fit says what is missing."""
    url = serve()
    found = get(f"{url}models?q=kimi+2.6&box=1x-rtx-5090")[1]
    assert "kimi-k2.6-reap-519b" in found
    assert "glm-5" not in found
    assert "phantom" in get(f"{url}models?q=rehearsal")[1]
    assert "No model matches" in get(f"{url}models?q=nosuch")[1]
    short = json.loads(get(f"{url}models/fit?model=kimi-k2.6&box=1x-rtx-5090")[1])
    assert "does not fit" in short["text"]
    assert "vLLM" in json.loads(get(f"{url}models/fit?model=kimi-k2.6&box={BOX}")[1])["text"]


def test_a_recipe_is_checked_with_fit_and_forecast_in_the_command_lines_words(serve: Serve) -> None:
    """A good one gets its speeds with ranges; a wrong one the sentence and the suggestion of `moebox up`."""
    url = serve()
    text = shipped_recipes()["kimi-k26-vllm"].read_text()
    status, reply = post(url, "recipes/check", {"text": text})
    assert status == 200
    assert "Forecast, decode tok/s" in json.loads(reply)["html"]
    for wrong, error, hint in (
        (text.replace("tp = 8", 'tp = "8"'), "parallel.tp must be a whole number", ""),
        (text.replace("max_seqs", "max_seq"), "unknown setting 'max_seq'", "did you mean max_seqs?"),
    ):
        status, reply = post(url, "recipes/check", {"text": wrong})
        assert status == 400
        assert error in json.loads(reply)["error"]
        assert hint in json.loads(reply)["hint"]


def test_a_recipe_is_started_from_the_page(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved under its name and run; a recipe that does not fit, or with a shipped name, is not started."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = serve(runs=tmp_path / "runs")
    small = RECIPE + '[planned_for]\nbox = "1x-rtx-5090"\n'
    large = RECIPE + f'[planned_for]\nbox = "{BOX}"\n[parallel]\ntp = 8\n'
    assert post(url, "recipes/start", {"name": "mine", "text": small, "until": "plan", "twin": "1"})[0] == 409
    assert post(url, "recipes/start", {"name": "kimi-k26-vllm", "text": large})[0] == 400
    assert post(url, "recipes/start", {"name": "mine", "text": large, "until": "nosuch"})[0] == 400
    assert not (tmp_path / "runs").exists()
    status, reply = post(url, "recipes/start", {"name": "mine", "text": large, "until": "plan", "twin": "1"})
    assert status == 201, reply
    run = Run(tmp_path / "runs" / json.loads(reply)["go"].split("/")[2])
    until(lambda: not run.is_locked)
    assert run.read_pipeline()
    assert (tmp_path / "data" / "moebox" / "recipes" / "mine.toml").read_text() == large


def test_a_misspelt_model_gets_the_suggestion_of_the_terminal(serve: Serve, tmp_path: Path) -> None:
    """In the form that starts a run, and in the plan."""
    url = serve(runs=tmp_path)
    status, reply = post(url, "runs", {"model": "kimi-k2.9", "until": "plan"})
    assert (status, json.loads(reply)["error"]) == (400, "unknown model 'kimi-k2.9'")
    assert "did you mean kimi-k2" in json.loads(reply)["hint"]
    assert "did you mean kimi-k2" in get(f"{url}plan?model=kimi-k2.9")[1]


def test_chat_takes_settings_and_refuses_wrong_ones_in_a_line() -> None:
    """Temperature, limit and tools reach the request; empty fields leave them to the server."""
    tools = '[{"type": "function", "function": {"name": "now"}}]'
    given = engines.parse_options({"temperature": "0.2", "max_tokens": "40", "tools": tools, "system": "x"})
    assert given == {"temperature": 0.2, "max_tokens": 40, "tools": json.loads(tools)}
    assert engines.parse_options({"temperature": "", "max_tokens": " "}) == {}
    for name, text in (("temperature", "hot"), ("temperature", "nan"), ("max_tokens", "0"), ("tools", "{}")):
        with pytest.raises(BadInput, match=name.replace("_", " ")):
            engines.parse_options({name: text})
    rows = [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]
    rows.append({"role": "tool", "content": "noon", "tool_call_id": "a"})
    assert engines.parse_messages(json.dumps(rows)) == rows


def test_tasks_without_an_engine_lead_to_a_start(serve: Serve, tmp_path: Path) -> None:
    """The page offers what to start; a request for an engine that is not there, or an option, is one line."""
    url = serve(runs=tmp_path)
    assert 'href="/?model=phantom' in get(f"{url}tasks")[1]
    for engine in ("nosuch", "--write=/tmp/x", ""):
        status, reply = post(url, "tasks", {"engine": engine})
        assert status == 503
        assert "no running engine" in json.loads(reply)["error"]


def test_a_run_shows_its_checks_and_loads_over_time(serve: Serve, tmp_path: Path) -> None:
    """One chart with axes for the checks, one for the rates; steps that were not requested are left out."""
    run = Run.create("timed", runs=tmp_path)
    pipelines.begin_pipeline(RunRequest(model="kimi-k2.6", until="verify"), run)
    for verdict in ("pass", "fail", "pass"):
        run.add_event(CheckDone(name="tools", verdict=verdict))
    for rate in (10.0, 20.0):
        run.add_event(LoadDone(concurrency=1, output_tok_s=rate))
    run.release_lock()
    page = get(f"{serve(runs=tmp_path)}runs/{run.id}/live")[1]
    for text in ("Checks made", "failed or warned", "Output of each load", "minutes since the start"):
        assert text in page
    assert "<b>verify</b>" in page
    assert "<b>bench</b>" not in page


def test_every_compared_run_has_a_verdict_and_no_simulation_wins(serve: Serve, tmp_path: Path) -> None:
    """Six runs, one of them simulated and by far the fastest: all six have their verdict, a measured one is best."""
    runs = [a_run(tmp_path, name=f"run{number}") for number in range(5)]
    runs.append(a_run(tmp_path, name="twin", factor=9.0))
    runs[-1].write_json("measurements/c64.json", level(64, factor=9.0, simulation=True))
    page = get(serve(runs=tmp_path) + "compare?" + "&".join(f"run={run.id}" for run in runs))[1]
    assert page.count('<details class="fold"><summary><span class="swatch') == len(runs)
    assert "No run is the best of all: some runs are simulated and others are measured." in page
    best = re.search(r'class="tile.*?640.*?highest output.*?class="detail">(run\d)<', page, re.DOTALL)
    assert best
