"""Rows of the public matrix: written from a run, checked, and imported from other registries."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.matrix_row import NOT_VERIFIED, MatrixRow, row_problems
from moebox.report.pack import row_of_run
from moebox.runs.reader import read_run
from tests.report.making import a_run

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_script(*words: object) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts."""
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)


def test_a_run_gives_a_row_that_the_checker_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Box, versions, digest, checks and speed are in it; keys are not; the script for pull requests takes the file."""
    run = a_run(tmp_path / "runs")
    target = tmp_path / "row.toml"
    assert main(["pack", "--row", str(run.path), "-o", str(target)]) == 0
    text = target.read_text()
    row = codec.decode(MatrixRow, codec.load_toml(target), where="row")
    assert (row.engine, row.model, row.checkpoint, row.settings["tp"]) == ("vllm", "kimi-k2.6", "int4", "8")
    assert row.verified
    assert row.checks == {"arithmetic": "pass"}
    assert [cell.concurrency for cell in row.speed] == [1, 8, 64]
    assert "sk-verysecret99" not in text
    done = run_script(SCRIPTS / "check_rows.py", target)
    assert done.returncode == 0, done.stdout


def test_rows_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    """Verified without checks, a state against the checks, no digest, and imported rows without their mark."""
    row = row_of_run(read_run(a_run(tmp_path / "runs")))
    wrong = [
        dataclasses.replace(row, checks={}),
        dataclasses.replace(row, checks={"arithmetic": "fail"}),
        dataclasses.replace(row, recipe_digest="abc"),
        dataclasses.replace(row, date="yesterday"),
        dataclasses.replace(row, engine="nonesuch"),
        dataclasses.replace(row, source="club-3090"),
        dataclasses.replace(row, checks={}, speed=(), verified=False),
    ]
    assert all(list(row_problems(each)) for each in wrong)
    assert not list(row_problems(row))


def test_a_run_without_results_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a recipe has no row."""
    run = a_run(tmp_path / "runs")
    (run.path / "recipe.toml").unlink()
    assert main(["pack", "--row", str(run.path)]) == 2
    assert "recipe.toml" in capsys.readouterr().err


SAMPLES = {
    "inferencex": json.dumps(
        [
            {"hw": "b200", "conc": 4, "image": "vllm:v0.21", "model": "a/b", "framework": "vllm", "precision": "fp4"}
            | {"spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 1024, "tp": 8, "output_tput_per_gpu": 50.0}
        ]
    ),
    "spark-arena": "model,test_name,t_s_mean,e2e_ttft_mean\na/b,tg128 @ d4096 (c2),40.5,900\na/b,pp2048,3000,\n",
    "local-ai-registry": json.dumps(
        {"hardware": {"rtx-3090-24gb": {"match": {"name": "GeForce RTX 3090"}, "recipes": [
            {"name": "Q", "format": "FP8", "engine": "sglang", "servedName": "q", "cards": 2, "image": "i",
             "weights": [], "serving": {"ctxTokens": 65536}, "capabilities": {"chat": True, "vision": False}}]}}}
    ),
    "club-3090": "## Q\n| Compose | Rig | KV | Narr / Code TPS | Date |\n| --- | --- | --- | --- | --- |\n"
    "| `a.yml` | @x (2× 3090) | fp8 | ~50 / 66 | 2026-05-03 |\n",
}  # fmt: skip


@pytest.mark.parametrize("registry", SAMPLES)
def test_rows_of_other_registries_are_marked(registry: str, tmp_path: Path) -> None:
    """Each format gives rows that the checker takes, none of them verified."""
    (tmp_path / "in").write_text(SAMPLES[registry])
    words = (registry, tmp_path / "in", "--url", "https://example.com/rows", "--date", "2026-07-04")
    done = run_script(SCRIPTS / "import_rows.py", *words)
    assert done.returncode == 0, done.stderr
    (tmp_path / "rows.toml").write_text(done.stdout)
    rows = codec.load_toml(tmp_path / "rows.toml")["row"]
    found = codec.decode(tuple[MatrixRow, ...], rows, where="rows")
    assert len(found) == 1
    assert not found[0].verified
    assert NOT_VERIFIED in found[0].note
    assert not list(row_problems(found[0]))


def test_the_schema_is_current() -> None:
    """`python scripts/check_rows.py --schema` writes it again."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import check_rows
    finally:
        sys.path.pop(0)
    assert (check_rows.ROWS / "schema.json").read_text() == check_rows.schema_text()
