"""Tables at 80 columns: no number is cut, no line is longer."""

import json
import re
from pathlib import Path

import pytest

from moebox.cli import main, output
from moebox.core import catalogue
from moebox.core.event import PipelineBegan
from moebox.core.recipe import Parallel
from moebox.core.upgrade_result import GainAtConcurrency
from moebox.core.verdict import Gain, Score
from moebox.flows.answers import AnswerComparison
from moebox.flows.compare import Comparison
from moebox.runs.listing import list_summaries
from moebox.store import Run
from tests.report.making import a_run
from tests.sampling import one_in

pytestmark = pytest.mark.usefixtures("plans_once")
BOX = ("--box", "8x-rtx-pro-6000-server")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    output.stdout_console.cache_clear()
    yield
    output.stdout_console.cache_clear()


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(list(words))
    return capsys.readouterr().out.splitlines()


def test_the_catalogue_shows_every_figure_whole(capsys: pytest.CaptureFixture[str]):
    """A context of 1,048,576 and the size of the native checkpoint stand there in full."""
    shown = lines(capsys, "models", "--all")
    assert max(map(len, shown)) <= 80
    assert not any("…" in line for line in shown)
    for model in catalogue.models().values():
        row = next(line for line in shown if line.startswith(f"{model.name} "))
        assert f"{model.context:,}" in row


@pytest.mark.parametrize("name", one_in(5, ["minimax-m2.5", *catalogue.models()]))
def test_a_model_names_its_repositories_whole(name: str, capsys: pytest.CaptureFixture[str]):
    """The name to download must not end in an ellipsis."""
    shown = lines(capsys, "models", "show", name, "--all")
    assert max(map(len, shown)) <= 80
    assert not any("…" in line for line in shown)
    screen = lines(capsys, "models", "show", name)
    assert len(screen) <= 23
    assert max(map(len, screen)) <= 80
    assert not any("…" in line for line in screen)


def test_plan_and_forecast_state_the_same_band(capsys: pytest.CaptureFixture[str]):
    """One deployment has one error band, whichever command prints it."""
    planned = next(line for line in lines(capsys, "plan", "kimi-k2.6", *BOX, "--all") if "expect" in line)
    forecast = next(line for line in lines(capsys, "forecast", "kimi-k2.6", *BOX) if "expect" in line)
    assert planned.partition("expect")[2].strip() == forecast.partition("expect")[2].strip()


def test_a_forecast_marks_streams_beyond_max_seqs(capsys: pytest.CaptureFixture[str]):
    """The plan's recipe admits 64 sequences: 128 do not run at a time, however short they are."""
    row = next(line for line in lines(capsys, "forecast", "kimi-k2.6", *BOX) if line.split()[:1] == ["0"])
    assert row.endswith("*")
    assert row.count("*") == 1


def test_a_serving_forecast_warns_of_its_own_requests(capsys: pytest.CaptureFixture[str]):
    """32 requests of 10,240 tokens fit a cache of 1.3 million: what 65,536 would need is not the question."""
    asked = ["forecast", "kimi-k2.6", "--input", "8192", "--output", "2048", "--concurrency"]
    shown = " ".join(" ".join(lines(capsys, *asked, "32", "--box", "8x-b200")).split())
    assert "the rest wait" not in shown
    shown = " ".join(" ".join(lines(capsys, *asked, "64", *BOX)).split())
    assert "requests of 10,240 tokens, not 64" in shown


def test_a_run_can_be_copied_from_the_list(capsys: pytest.CaptureFixture[str]):
    """The name of a run stands in one piece, whatever else the row holds."""
    run = Run.create("verify-gpt-oss-120b-fp8")
    run.add_event(PipelineBegan(simulation=True))
    run.release_lock()
    shown = lines(capsys, "runs")
    assert max(map(len, shown)) <= 80
    assert any(line.startswith(f"{run.id} ") for line in shown)
    assert shown[0].endswith(" tok/s")
    assert any("simulated" in line for line in shown)
    assert next(line for line in shown if line.startswith(run.id)).rstrip().endswith("–")


@pytest.mark.parametrize("columns", [60, 80])
def test_many_runs_leave_the_newest_on_the_screen(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The list fits 24 lines and says how many runs are older; --all lists every one."""
    ids = []
    for number in range(30):
        run = Run.create(f"run{number}")
        run.release_lock()
        ids.append(run.id)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = lines(capsys, "runs")
    listed = [name for name in ids if any(line.startswith(name) for line in shown)]

    assert len(shown) <= 23
    assert shown[-1] == f"{30 - len(listed)} older: --all"
    every = lines(capsys, "runs", "--all")
    assert all(any(line.startswith(name) for line in every) for name in ids)


@pytest.mark.parametrize("columns", [30, 40, 60, 75, 76])
def test_nothing_of_a_run_is_cut_on_a_narrow_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """State, checks and speed stand below the name where there is no room beside it."""
    run = a_run(tmp_path / "runs")
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = lines(capsys, "runs")
    assert max(map(len, shown)) <= columns
    reported = " ".join(" ".join(shown).split())
    for word in ("tok/s", "checks", "ended", f"{list_summaries(tmp_path / 'runs')[0].output_tok_s:,.0f}"):
        assert word in reported
    assert run.id in "".join("".join(shown).split())
    assert "…" not in reported


def test_advice_of_the_doctor_stays_in_its_column(capsys: pytest.CaptureFixture[str]):
    """What to do about a warning is wrapped below it, not broken by the terminal."""
    shown = lines(capsys, "doctor", "box")
    assert max(map(len, shown)) <= 80
    assert all(line[:1] in "✓!✗? " or "checks:" in line for line in shown if line)


def test_a_recipe_that_does_not_fit_is_forecast_with_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """A speed of a recipe on a box without room for it must not be read as a promise."""
    recipe, box = str(tmp_path / "ik.toml"), ("--box", "2x-rtx-pro-6000-max-q", "--ram-bandwidth", "614GB/s")
    assert main(["plan", "kimi-k2.6", *box, "--ram", "768GiB", "-o", recipe]) == 0
    shown = " ".join(" ".join(lines(capsys, "forecast", recipe, *box, "--ram", "64GiB")).split())
    assert re.search(r"fatal: .* does not fit on .*: ram needs [\d.]+ GB and has [\d.]+ GB", shown)
    assert "pp: a prompt of 4,096 tokens" in shown
    assert "does not fit" not in " ".join(lines(capsys, "forecast", recipe, *box, "--ram", "768GiB"))


def test_a_run_is_shown_within_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Checks with long reasons, problems and notes wrap under their own column; only paths and commands stand whole."""
    run = a_run(tmp_path / "runs")
    reason = "the reply to the seventh request ends in the middle of a word and " * 3
    run.write_json("verdicts/03-tools.json", {"name": "tools", "verdict": "fail", "reason": reason})
    shown = lines(capsys, "runs", "show", "latest", "--all")
    assert [line for line in shown if len(line) > 80 and str(tmp_path) not in line] == []
    assert any("seventh request" in line for line in shown)


def test_a_forecast_for_many_loads_is_cut_between_columns(capsys: pytest.CaptureFixture[str]):
    """Ten numbers of streams do not fit beside each other: the rest stands below, and each has its heading."""
    shown = lines(capsys, "forecast", "kimi-k2.6", *BOX, "--concurrency", "1,2,4,8,16,32,64,128,256,512")
    assert max(map(len, shown)) <= 80
    assert not any("…" in line for line in shown)
    assert sum(line.startswith("context ") for line in shown) == 2
    assert any("512 streams" in line for line in shown)


def test_tiers_of_a_cache_are_shown_whole(capsys: pytest.CaptureFixture[str]):
    """Headings and long times of later turns are not cut."""
    words = ["--workload", "agents", "--concurrency", "512", "--set", "workload.turns=40", "--set", "requests=512"]
    shown = lines(capsys, "forecast", "kimi-k2.6", "--box", "8x-rtx-pro-6000-server+16TB", *words)
    assert max(map(len, shown)) <= 80
    assert not any("…" in line for line in shown)
    assert any("later TTFT" in line for line in shown)


def test_a_comparison_shows_both_ends_of_its_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """An interval is broken between words, never inside a number."""
    score = Score(passed=30, trials=30, low=0.9, high=1.0)
    scores = dict.fromkeys(("right_a", "right_b", "json_a", "json_b", "tools_a", "tools_b"), score)
    gain = Gain(share=0.1, low=-0.382, high=0.670)
    speeds = {"a_tok_s": 12345, "b_tok_s": 12399, "a_ttft_ms": 250, "b_ttft_ms": 60}
    found = Comparison(
        a="A",
        b="B",
        answers=AnswerComparison(asked=30, same=30, **scores),
        gains=(GainAtConcurrency(concurrency=64, gain=gain, **speeds),),
        acceptance_a=0.5,
        acceptance_b=0.6,
        verdict="no difference",
        as_good=True,
        slower=False,
        different=False,
    )
    monkeypatch.setattr("moebox.api.compare", lambda *args, **more: found)
    monkeypatch.setattr("moebox.cli.compare.require_engine", lambda deployment: None)
    shown = lines(capsys, "compare", "kimi-k26-vllm", "kimi-k26-sglang")
    assert not any("…" in line for line in shown)
    assert {"(-38.2%", "+67.0%)"} <= set(" ".join(shown).split())
    assert max(map(len, shown)) <= 80


def test_a_fleet_plan_shows_what_each_box_runs(capsys: pytest.CaptureFixture[str]):
    """Engine, checkpoint, layout and context in one line a box, as --json has them, and why the context is that."""
    words = ["fleet", "plan", "kimi-k2.6", "--box", "2x8x-h200@50GB/s,8x-b200+2TB", "--users", "20"]
    words += ["--slo", "ttft=60s", "--set", "search.time_s=60s"]
    main([*words, "--json"])
    planned = {row["box"]: row["recipe"] for row in json.loads(capsys.readouterr().out)["answers"]}
    shown = lines(capsys, *words)
    assert max(map(len, shown)) <= 80
    assert not any("…" in line for line in shown)
    for name, recipe in planned.items():
        layout = Parallel(**recipe["parallel"]).text
        [line] = [line for line in shown if line.startswith(f"{name}: ") and "context" in line]
        assert layout in line
        assert line.endswith(f"{recipe['checkpoint']}, {line.split(', ')[-2]}, context {recipe['context']:,}")
    assert "power of two after 68,700 tokens" in " ".join(" ".join(shown).split())
