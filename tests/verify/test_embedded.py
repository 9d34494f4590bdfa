"""The checks against a real engine: the embedded llama.cpp with the phantom."""

from pathlib import Path

from moebox.checkpoint import deploy
from moebox.serve import session
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.embedded import phantom_recipe

# The quick ones; `make test-llama` runs all.
SELECTED = ("alive", "streaming", "json", "thinking")


def test_real_llama_cpp_with_the_phantom_does_not_fail(tmp_path: Path):
    """Protocol and answers through real kernels, a real tokenizer and a real parser."""
    recipe = phantom_recipe(context=640)  # its long answer is as long as the context allows
    with session.engine_session(deploy(recipe), Run.create("embedded", runs=tmp_path)) as live:
        results = run_checks(live.endpoint, VerifyOptions(thinking="yes", seed=4, trials=2), only=SELECTED)

    marks = {check.name: (check.verdict, check.reason) for check in results.rungs}
    enforced = marks.pop("json")
    assert marks == {name: ("pass", "") for name in SELECTED if name != "json"}
    assert enforced[0] in ("pass", "warn")  # llama.cpp does not enforce every schema: references, for one
    assert {failure.kind for failure in results.slips if failure.seen} <= {"schema", "schema/streamed"}
    assert results.engine == "llama.cpp"
