"""The public Python functions: their signatures stay, and every example of docs/api.md runs."""

import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from moebox import api, codec
from moebox.core.recipe import Listen, Recipe, Runtime

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
SIGNATURES = {
    "detect_box": "(name: str | None = None, *, ram: str = '', ram_bandwidth: str = '') -> Box",
    "plan": (
        "(model: str | ResolvedModel, *, box: str | None = None, ram: str = '', ram_bandwidth: str = '', "
        "constraints: Constraints | None = None) -> Plan"
    ),
    "forecast": (
        "(recipe: Recipe | str, *, box: str | None = None, contexts: Sequence[int] = (), "
        "streams: Sequence[int] = (), workloads: Sequence[SimulatedWorkload] = ()) -> list[ForecastRow]"
    ),
    "render": "(recipe: Recipe | str, file_format: LaunchFormat | OtherFormat = 'script') -> dict[str, str]",
    "up": "(recipe: Recipe | str, *, runs: Path | None = None, patience_s: float = 900.0) -> EngineSession",
    "verify": (
        "(endpoint: Endpoint, *, options: VerifyOptions | None = None, only: Sequence[str] = (), start: str = '', "
        "keep_going: bool = False, run: Run | None = None, on_check: OnCheck | None = None, "
        "on_progress: OnProgress | None = None, restart: bool = False) -> CheckResults"
    ),
    "quality": (
        "(endpoint: Endpoint, *, references: Sequence[Reference] = (), own_text: QualityText | None = None, "
        "limit: float | None = None, run: Run | None = None, on_progress: Progress | None = None) "
        "-> tuple[QualityResult, bytes]"
    ),
    "bench": (
        "(endpoint: Endpoint, *, workload: Workload | None = None, load: Load | None = None, slo: Slo | None = None, "
        "warmup: int = 0) -> Measurement"
    ),
    "compare": (
        "(a: Endpoint | Recipe, b: Endpoint | Recipe, *, effort: CompareEffort | None = None, "
        "run: Run | None = None) -> Comparison"
    ),
    "load_run": "(name: str = 'latest', *, runs: Path | None = None) -> RunRecord",
    "report": (
        "(names: Sequence[str] = ('latest',), output: Path | None = None, *, pdf: bool = False, "
        "markdown: bool = False, title: str = '', runs: Path | None = None) -> list[Path]"
    ),
}
# Takes an engine's command line and serves a simulation on its port.
ENGINE = """
import os, sys
port = sys.argv[sys.argv.index("--port") + 1]
print("INFO: Application startup complete.", flush=True)
words = [sys.executable, "-m", "moebox", "twin", "kimi-k26-vllm", "--box", "8x-b200", "--open", "--speed", "1000"]
os.execv(sys.executable, [*words, "--port", port])
"""


def test_signatures_stay() -> None:
    """A change here is a change for everyone who calls it: only add parameters with defaults."""
    found = {name: str(inspect.signature(getattr(api, name))).replace("'", "") for name in SIGNATURES}
    assert found == {name: text.replace("'", "") for name, text in SIGNATURES.items()}
    functions = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    assert functions == {*SIGNATURES, "endpoint_from_url"}


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, with an engine that serves a simulation."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    recipe = Recipe(
        name="example",
        engine="vllm",
        model="kimi-k2.6",
        checkpoint="moonshotai/Kimi-K2.6",
        served_name="Kimi-K2.6",
        runtime=Runtime(entry=shlex.join([sys.executable, str(script)])),
        listen=Listen(port=0),
    )
    (tmp_path / "recipe.toml").write_text(codec.to_toml(recipe))
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"^## (\w+)\n.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in examples] == list(SIGNATURES)

    names: dict[str, Any] = {}
    try:
        for _, example in examples:
            exec(example, names)  # noqa: S102
    finally:
        if "engine" in names:
            names["engine"].stop()
    assert names["box"].name == "8x-b200"
    assert [row["concurrency"] for row in api.forecast(names["plan"].recipe, contexts=[0], streams=[1, 8])] == [1, 8]
    assert names["checks"].verdict == "pass"
    assert names["measured"].completed == 8
    assert names["comparison"].as_good
    assert names["record"].recipe.name == "example"
    assert "report.html" in capsys.readouterr().out
