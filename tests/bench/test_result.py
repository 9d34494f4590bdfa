"""Measurements in files: written in vLLM's names, read back as they were, and opened when they are old."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import codec
from moebox.cli import main
from moebox.core.result import Measurement, is_own_document, parse_measurement, parse_prefill_decode, result_document
from moebox.errors import BadInput
from moebox.runs import loads
from tests.bench.example import measurement as example
from tests.bench.server import good, serving

OLD = Path(__file__).parent / "results" / "moebox-first-format.json"


@pytest.mark.parametrize(
    "extra", [[], ["--slo", "ttft=5s", "--set", "warmup=1"], ["--rate", "50", "--workload", "code"]]
)
def test_a_file_is_read_back_as_it_was_written(extra: list[str], tmp_path: Path) -> None:
    """The type that was written, from the file, to the last figure."""
    file = tmp_path / "result.json"
    with serving(good, tokenizes=True, metrics=lambda: "vllm:num_requests_running 2\n") as server:
        words = ["--model", "m", "--requests", "3", "--output", "60", "-o", str(file), *extra]
        assert main(["bench", server.url, *words]) == 0
    kept = json.loads(file.read_text())
    read = parse_measurement(kept, str(file))

    assert isinstance(read, Measurement)
    assert json.loads(codec.to_json(result_document(read))) == kept
    assert read.server is not None
    assert read.ttft.mean == kept["mean_ttft_ms"]


def test_tests_alone_are_read_back_too(tmp_path: Path) -> None:
    """--pp and --tg."""
    file = tmp_path / "result.json"
    with serving(good) as server:
        words = ["--model", "m", "--pp", "8", "--tg", "4", "--set", "repeat=1", "-o", str(file)]
        assert main(["bench", server.url, *words]) == 0
    kept = json.loads(file.read_text())

    assert json.loads(codec.to_json(result_document(parse_prefill_decode(kept, str(file))))) == kept


def test_a_file_of_the_first_version_still_opens() -> None:
    """Written before salts, flags and checks were kept: what it lacks has a default, and the report shows it."""
    kept = json.loads(OLD.read_text())
    read = parse_measurement(kept, str(OLD))
    (level,) = [level for level in loads.read_loads(OLD.parent)[0] if level.name == OLD.stem]

    assert is_own_document(kept)
    assert (read.completed, read.workload.salt, read.flags) == (kept["completed"], "", ())
    assert level.measurement == read
    assert level.ttft == read.ttft
    assert level.output_tok_s == kept["output_throughput"]


@given(field=st.sampled_from(sorted(result_document(example()))), value=st.sampled_from(["x", -1, None, [], {}, 1e400]))
def test_a_damaged_file_is_bad_input_or_read(field: str, value: object) -> None:
    """Never a traceback, and never a type that is not what it says."""
    try:
        read = parse_measurement({**result_document(example()), field: value}, "file")
    except BadInput:
        return
    assert isinstance(read, Measurement)


def test_a_cut_file_is_named_by_the_report(tmp_path: Path) -> None:
    """Half a file is a gap, not a crash."""
    text = json.dumps(result_document(example()))
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    levels, gaps, _ = loads.read_loads(tmp_path)

    assert not levels
    assert "half.json" in gaps[0]
