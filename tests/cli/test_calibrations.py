"""`moebox calibrations`: kept, listed, used by plan and forecast, handed on, removed; broken files named."""

import json
import re
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


def import_changed(found: Calibration, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Import a calibration from a file: the exit code and stderr, of a refusal in one line and a hint."""
    file = folder / "shared.json"
    file.write_text(codec.to_json(found))
    code, _, err = run(capsys, "calibrations", "import", str(file))
    words = " ".join(err.split())
    assert code == 0 or re.fullmatch(r"error: .* hint: measure again: `moebox rehearse RECIPE --measure`", words)
    return code, words


@pytest.mark.parametrize(("factor", "code"), [(1e-6, 2), (1e-3, 2), (0.5, 0)])
def test_steps_faster_than_their_weights_can_be_read_are_refused(
    factor: float, code: int, kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times in another unit are below what the box's memory bandwidth allows for the experts of one token."""
    shorter = [
        replace(
            boot,
            decode=tuple(replace(each, seconds=each.seconds * factor) for each in boot.decode),
            prefill=tuple(replace(each, seconds=each.seconds * factor) for each in boot.prefill),
        )
        for boot in kept.boots
    ]
    found, err = import_changed(replace(kept, boots=tuple(shorter)), tmp_path, capsys)
    assert found == code
    assert code == 0 or ("impossible times: a step of 4 layers in " in err)


def test_a_cpu_and_an_unknown_gpu_are_judged_by_what_is_known_of_them() -> None:
    """RAM bandwidth has an upper limit; nothing is known of a GPU, a model or a format that no table has."""
    shape = shape_id(resolve_model("kimi-k2.6")[0])
    on_gpus = store.least_layer_s(shape, "int4-g32", "8x h200", "vllm")
    assert 0 < on_gpus < store.least_layer_s(shape, "int4-g32", "1x h200", "vllm")
    assert on_gpus < store.least_layer_s(shape, "int4-g32", "", "llama.cpp") < 1e-3
    others = ((shape, "int4-g32", "8x future"), ("", "int4-g32", "8x h200"), (shape, "int1", "8x h200"))
    assert all(store.least_layer_s(*words, "vllm") == 0 for words in others)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"date": "2999-01-01"}, "is in the future"),
        ({"date": "2026-13-45"}, "is not a day like"),
        ({"date": ""}, "is not a day like"),
        ({"layers": 0}, "must be 1 or more"),
        ({"fit_spread": -1.0}, "errors must be from 0 to 300"),
        ({"id": ""}, "must be letters"),
        ({"id": "../../outside"}, "must be letters"),
        ({"id": "a\x1b[2Jb"}, r"'a\x1b[2Jb' must be letters"),
        ({"id": "x" * 300}, "must be letters"),
    ],
)
def test_an_impossible_date_or_id_is_refused(
    change: dict[str, object], reason: str, kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id is the name of a file in the store, so it cannot lead out of it or control a terminal."""
    code, err = import_changed(replace(kept, **change), tmp_path, capsys)  # type: ignore[arg-type]
    assert (code, reason in err, "\x1b" in err) == (2, True, False)
    assert [path.name for path in tmp_path.rglob("*.json") if "shared" not in path.name] == ["kimi-vllm-1.json"]


@pytest.mark.parametrize(("field", "value"), [("batch", -1), ("batch", 0), ("spread", 3000.0), ("tokens", 0)])
def test_a_number_that_forecasts_cannot_compute_with_is_refused(
    field: str, value: float, kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were imported, and every plan for that box then ended in a traceback."""
    kind = "prefill" if field == "tokens" else "decode"
    boots = tuple(
        replace(boot, **{kind: (replace(getattr(boot, kind)[0], **{field: value}), *getattr(boot, kind)[1:])})
        for boot in kept.boots
    )
    assert import_changed(replace(kept, boots=boots), tmp_path, capsys)[0] == 2


def test_a_stored_file_with_an_impossible_name_is_shown_escaped_and_removed(
    kept: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions stored such files; each can be removed by the name that the list shows."""
    folder = store.calibrations_dir()
    for name in ("a\x1b[2Jb", "new\nline", "broken"):
        (folder / f"{name}.json").write_text(codec.to_json(replace(kept, id=name)) if name != "broken" else "{")
    shown = "".join(run(capsys, "calibrations")[1:])
    assert "\x1b" not in shown
    for name in (r"a\u001b[2Jb", r"new\u000aline", "broken"):
        assert f"{name}.json" in shown
        code, _, err = run(capsys, "calibrations", "remove", name)
        assert (code, err.strip()) == (0, f"removed {name}")
    assert [path.name for path in folder.iterdir()] == ["kimi-vllm-1.json"]


def test_a_copied_file_is_known_by_its_own_name(kept: Calibration, capsys: pytest.CaptureFixture[str]) -> None:
    """The list shows the name of the file, which removes that file and no other."""
    folder = store.calibrations_dir()
    (folder / "copy.json").write_text((folder / "kimi-vllm-1.json").read_text())
    assert run(capsys, "calibrations", "remove", "copy")[0] == 0
    assert [path.name for path in folder.iterdir()] == ["kimi-vllm-1.json"]


def test_half_a_calibration_is_not_handed_on(
    kept: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One depth says nothing of the whole model."""
    file = tmp_path / "half.json"
    store.write_calibration(replace(kept, boots=kept.boots[:1]), file)
    code, _, err = run(capsys, "calibrations", "import", str(file))
    assert (code, "no two depths" in err) == (2, True)
