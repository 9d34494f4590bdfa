"""`moebox calibrations`: kept, listed, used by plan and forecast, handed on, removed; broken files named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moebox import cli, codec, detect
from moebox.checkpoint import resolve_model
from moebox.core.calibration import Calibration, calibrated_box, calibrated_layout, shape_id
from moebox.core.recipe import Recipe
from moebox.store import calibrations as store
from tests.driving import recipe_text
from tests.planner.test_measured import calibration, step

BOX = "8x-h200"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = cli.main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The recipe that plan writes for Kimi on eight H200."""
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text("kimi-k2.6", "--box", BOX))
    return path


@pytest.fixture
def kept(planned: Path) -> Calibration:
    """A calibration of that very recipe, in the store."""
    recipe = codec.read_toml(Recipe, planned)
    model, forms = resolve_model("kimi-k2.6")
    form = next(one for one in forms if recipe.checkpoint in (one.name, one.repo))
    found = calibration(
        id="kimi-vllm-1",
        engine=recipe.engine,
        shape=shape_id(model),
        quant=form.quant,
        place=calibrated_box(detect.load_box(BOX)),
        layout=calibrated_layout(recipe),
    )
    store.store_calibration(found)
    return found


def test_plan_and_forecast_use_it_and_say_so(
    kept: Calibration, planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps are the measured ones, at the depth of the whole model, with the measured band."""
    _, out, _ = run(capsys, "forecast", str(planned), "--box", BOX, "--decode", "--json")
    document = json.loads(out)
    row = next(row for row in document["rows"] if row["concurrency"] == 1)
    assert row["decode_tok_s"] == pytest.approx(1 / step(61, 1, row["context"]), rel=0.02)
    assert document["measured"].startswith("measured on this box 2026-11-15, 61 layers from 4 and 8: ±")
    _, out, _ = run(capsys, "plan", "kimi-k2.6", "--box", BOX, "--json")
    assert json.loads(out)["measured"] == document["measured"]
    for words in (("plan", "kimi-k2.6"), ("forecast", str(planned), "--decode")):
        screen = " ".join(run(capsys, *words, "--box", BOX)[1].split())
        assert "measured on this box 2026-11-15" in screen
        assert "expect" not in screen  # the ranges stand beside the figures; a second one contradicted them


def test_removed_it_is_used_no_more(kept: Calibration, planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forecasts are the fitted ones again."""
    assert run(capsys, "calibrations", "remove", "kimi")[0] == 0
    assert json.loads(run(capsys, "forecast", str(planned), "--box", BOX, "--decode", "--json")[1])["measured"] == ""
    assert run(capsys, "calibrations", "remove", "kimi")[0] == 2


def test_it_is_listed_shown_and_handed_on(
    kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Export, remove, import: the same steps, marked as another's."""
    code, out, _ = run(capsys, "calibrations")
    assert (code, "kimi-vllm-1" in out, "61 from 4 and 8" in out) == (0, True, True)
    code, out, _ = run(capsys, "calibrations", "show", "kimi-vllm-1")
    assert code == 0
    assert "not measured: acceptance of draft tokens" in out
    assert max(map(len, out.splitlines())) <= 80
    file = tmp_path / "shared.json"
    assert run(capsys, "calibrations", "export", "kimi-vllm-1", str(file))[0] == 0
    assert str(tmp_path) not in file.read_text()
    store.remove_calibration(kept.id)
    assert run(capsys, "calibrations", "import", str(file))[0] == 0
    assert store.find_calibration(kept.id) == replace(kept, imported="shared.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a calibration"),
        ('{"format": 99}', "not a calibration"),
        ('{"format": 1, "id": "x"}', "is missing"),
    ],
)
def test_a_broken_file_is_named_and_does_not_stop_a_plan(
    content: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the file's name; planning goes on without it."""
    path = store.calibrations_dir() / "broken.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    code, _, err = run(capsys, "calibrations", "import", str(path))
    assert code == 2
    assert "broken.json" in err
    assert reason in err
    assert "broken.json" in run(capsys, "calibrations")[2].replace("\n", "")
    assert run(capsys, "plan", "kimi-k2.6", "--box", BOX)[0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"layer_s": 0.0},
        {"layer_s": -1.0},
        {"layer_s": 1e300},
        {"fixed_s": -1e300},
    ],
)
def test_impossible_times_of_a_shared_file_are_one_line(
    wrong: dict[str, float], kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calibrations are handed from owner to owner: what was expected of a step is checked like what was timed."""
    usual = {"batch": 1, "context": 128, "fixed_s": 1e-3, "layer_s": 2e-4}
    file = tmp_path / "shared.json"
    file.write_text(json.dumps({**codec.to_plain(kept), "expected": [usual | wrong]}))
    code, _, err = run(capsys, "calibrations", "import", str(file))
    assert (code, "impossible times" in err) == (2, True)
    file.write_text(json.dumps({**codec.to_plain(kept), "expected": [usual]}))
    assert run(capsys, "calibrations", "import", str(file))[0] == 0


def test_half_a_calibration_is_not_handed_on(
    kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One depth says nothing of the whole model."""
    file = tmp_path / "half.json"
    store.write_calibration(replace(kept, boots=kept.boots[:1]), file)
    code, _, err = run(capsys, "calibrations", "import", str(file))
    assert (code, "no two depths" in err) == (2, True)
