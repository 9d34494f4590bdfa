"""`moebox forecast` as people and scripts call it: modes, keys, pins, lists, recipes, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from moebox.cli import main
from tests.driving import recipe_text

BOX = ["--box", "8x-rtx-pro-6000-server"]
RIG = [*BOX, "--engine", "vllm", "--image", "community", "--checkpoint", "int4", "--tp", "8", "--kv", "fp8"]
ATTIC = ["--box", "2x-rtx-pro-6000-max-q", "--ram", "768GiB", "--ram-bandwidth", "614GB/s"]


def read_forecast(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON document of a forecast that succeeds."""
    assert main(["forecast", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_decode_rows_for_every_context_and_concurrency(capsys: pytest.CaptureFixture[str]) -> None:
    """Six rows for two contexts and three concurrencies, each within its band; a context of 0 is one."""
    document = read_forecast(capsys, "kimi-k2.6", *RIG, "--decode", "--context", "0,16384", "--concurrency", "1,8,32")
    rows = document["rows"]

    assert [(row["context"], row["concurrency"]) for row in rows] == [(c, n) for c in (0, 16384) for n in (1, 8, 32)]
    assert all(row["low_tok_s"] < row["decode_tok_s"] < row["high_tok_s"] for row in rows)
    assert rows[0]["decode_tok_s"] == pytest.approx(91.4, rel=0.15)  # rtx6kpro wiki, kimi-k26-v3


def test_prefill_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompt tokens as people write them; a rate, a time and a band."""
    rows = read_forecast(capsys, "kimi-k2.6", *RIG, "--prefill", "--input", "8192,64k")["rows"]

    assert [row["prompt_tokens"] for row in rows] == [8192, 65536]
    for row in rows:
        assert row["prefill_tok_s"] == pytest.approx(row["prompt_tokens"] / row["ttft_s"], rel=0.01)
        assert row["low_tok_s"] < row["prefill_tok_s"] < row["high_tok_s"]


def test_serving_rows_have_the_serving_benchmarks_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Lambda's run on eight B200: 1,408 tok/s published with a cold start; ours within 25%, in vLLM's field names."""
    words = ["kimi-k2.6", "--box", "8x-b200", "--engine", "vllm", "--tp", "8", "--speculate", "eagle3", "--kv", "fp8"]
    words += ["--checkpoint", "int4"]
    load = ["--input", "8192", "--output", "2048", "--concurrency", "32", "--set", "requests=512"]
    (row,) = read_forecast(capsys, *words, *load)["rows"]

    names = {"request_throughput", "output_throughput", "total_token_throughput", "completed", "duration"}
    names |= {f"{kind}_{what}_ms" for kind in ("mean", "median", "p50", "p99") for what in ("ttft", "tpot", "itl")}
    assert names <= row.keys()
    assert row["completed"] == 512
    assert row["output_throughput"] == pytest.approx(1408, rel=0.25)


def test_the_figures_of_one_stream_agree_with_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """One stream has nothing to interrupt it: ITL is TPOT, its tail too, and no mean lies above a P99 of equal runs."""
    load = ["--input", "200000", "--output", "100", "--concurrency", "1"]
    (row,) = read_forecast(capsys, "kimi-k2.6", "--box", "8x-h200", "--context", "250000", *load)["rows"]

    assert row["mean_itl_ms"] == pytest.approx(row["mean_tpot_ms"], rel=0.001)
    assert row["p99_itl_ms"] == pytest.approx(row["mean_tpot_ms"], rel=0.02)
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert row[f"mean_{name}_ms"] <= row[f"p99_{name}_ms"] * 1.001
        assert row[f"p50_{name}_ms"] <= row[f"p99_{name}_ms"]


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_plan_and_forecast_agree_on_a_form_whose_name_two_formats_share(
    capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    """gpt-oss is called mxfp4 as GGUF and as safetensors: the engine reads one, and both commands take that."""
    words = ["gpt-oss-120b", "--box", "1x-rtx-pro-6000-max-q", "--engine", engine, "--checkpoint", "mxfp4"]
    assert main(["plan", *words, "--context", "1024", "--concurrency", "1", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["forecast"]
    (row,) = read_forecast(capsys, *words, "--decode", "--context", "1024", "--concurrency", "1")["rows"]

    (same,) = (one for one in planned if (one["concurrency"], one["context"]) == (1, 1024))
    assert row["decode_tok_s"] == pytest.approx(same["decode_tok_s"], rel=0.01)


def test_rates_instead_of_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Two request rates, two rows; more load never means a shorter wait."""
    words = ["kimi-k2.6", *RIG, "--input", "1000", "--output", "100", "--rate", "0.2,4", "--set", "requests=100"]
    slow, fast = read_forecast(capsys, *words)["rows"]

    assert slow["request_rate"] == 0.2
    assert fast["mean_ttft_ms"] >= slow["mean_ttft_ms"]


@pytest.mark.parametrize("layers", ["0", "3+3"])
def test_cpu_and_card_rows(capsys: pytest.CaptureFixture[str], layers: str) -> None:
    """One stream: 18.9 and 20.9 tok/s published for none and six expert layers on the cards (loftllc.dev)."""
    words = ["--engine", "ik_llama.cpp", "--checkpoint", "IQ3_K", "--threads", "15", "--ub", "2048"]
    row = read_forecast(capsys, "kimi-k2.6", *ATTIC, *words, "--experts-on-gpu", layers)["rows"][0]

    assert row["tg_tok_s"] == pytest.approx({"0": 18.9, "3+3": 20.9}[layers], rel=0.12)
    assert row["pp_tok_s"] == pytest.approx({"0": 185, "3+3": 223}[layers], rel=0.30)


def test_a_pinned_layout_that_does_not_fit_is_forecast_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Four GPUs cannot hold it; the speed is hypothetical, and the output says so."""
    words = ["--box", "4x-rtx-pro-6000-server", "--engine", "vllm", "--checkpoint", "int4", "--tp", "4", "--decode"]
    document = read_forecast(capsys, "kimi-k2.6", *words, "--force")

    assert "does not fit" in document["warnings"][0]["text"]


def test_a_pinned_layout_that_plan_refuses_has_no_stages_nobody_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Plan refuses an fp8 cache there; the forecast is for the eight GPUs of --tp and --dp, with that reason."""
    words = ["--box", "8x-h200", "--engine", "sglang", "--checkpoint", "fp8", "--tp", "1", "--dp", "8", "--ep", "8"]
    document = read_forecast(capsys, "glm-5.2", *words, "--kv", "fp8", "--decode")

    assert document["recipe"]["parallel"].get("pp", 1) == 1
    assert "no cache scales" in document["warnings"][0]["text"]


def test_a_recipe_file_is_forecast_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What plan wrote, forecast reads; settings cannot be pinned beside it."""
    path = tmp_path / "recipe.toml"
    assert main(["plan", "kimi-k2.6", *RIG, "-o", str(path)]) == 0
    capsys.readouterr()

    document = read_forecast(capsys, str(path), *BOX, "--decode", "--concurrency", "1")

    assert document["recipe"]["runtime"]["preset"] == "community"
    assert main(["forecast", str(path), *BOX, "--tp", "4"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--decode", "--prefill"],
        ["--input", "100"],
        ["--output", "100"],
        ["--input", "0", "--output", "10"],
        ["--input", "10", "--output", "10", "--concurrency", "0"],
        ["--input", "10", "--output", "10", "--concurrency", "x"],
        ["--input", "10", "--output", "10", "--rate", "0"],
        ["--input", "10", "--output", "10", "--rate", "1", "--concurrency", "1"],
        ["--input", "10", "--output", "10", "--set", "requests=-1"],
        ["--input", "10", "--output", "10", "--set", "simulation.prefix_hit=2"],
        ["--context", "99999999999"],
        ["--set", "simulation.prefill_engines=2", "--concurrency", "4"],
        ["--set", "simulation.cold_s=26s"],
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """What cannot be meant is refused before anything is worked out."""
    assert main(["forecast", "kimi-k2.6", *RIG, *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_page_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables for people, with the band and the word forecast, no line above 80 columns."""
    assert main(["forecast", "kimi-k2.6", *RIG, "--input", "1000", "--output", "100", "--concurrency", "1,64"]) == 0
    page = capsys.readouterr().out

    assert "forecast, not a measurement" in page
    assert max(len(line) for line in page.splitlines()) <= 80


def test_a_cache_that_was_given_is_the_one_that_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """It warned of the planned one: 532 requests, where 4,578 tokens hold 12."""
    words = (
        "--engine",
        "sglang",
        "--set",
        "simulation.kv_tokens=4578",
        "--input",
        "256",
        "--output",
        "100",
        "--concurrency",
        "64",
    )
    warnings = [row["text"] for row in read_forecast(capsys, "kimi-k2.5", *BOX, *words)["warnings"]]
    assert "the cache holds 12 requests of 356 tokens, not 64: the rest wait" in warnings


# Published on one DGX Spark and on two, by streams: an image that packs more than the experts (kubis.ai, Mar 2026).
SPARK = {1: 57.5, 2: 78.4, 4: 107.9, 8: 153.5, 16: 218.5, 32: 318.7, 64: 315.2}
SPARKS = {1: 69.0, 2: 104.1, 4: 155.3, 8: 231.0, 16: 342.1, 32: 471.7, 64: 471.8}


@pytest.mark.parametrize(
    ("box", "published"),
    [
        ("1x-gb10", SPARK),
        ("1x-gb10", {1: 33.5}),  # NVIDIA's own image, vLLM 26.02 (dgx-spark-playbooks issue 79)
        ("2x1x-gb10", SPARKS),
    ],
)
def test_memory_shared_with_a_cpu_has_a_band_that_holds_what_was_published(
    capsys: pytest.CaptureFixture[str], box: str, published: dict[int, float]
) -> None:
    """Few have measured it, and they differ: the band reports it and holds them."""
    words = ["gpt-oss-120b", "--box", box, "--engine", "vllm", "--kv", "fp8", "--decode", "--context", "1024"]
    words += ["--tp", "2"] if box.startswith("2") else []
    document = read_forecast(capsys, *words, "--concurrency", ",".join(map(str, published)))

    assert "few results" in document["basis"]
    for row in document["rows"]:
        assert row["low_tok_s"] < published[row["concurrency"]] < row["high_tok_s"], row


def test_llama_cpp_on_memory_shared_with_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp's own bench on one DGX Spark (NVIDIA forum, Dec 2025): 59.05, 53.14 and 42.87 tok/s by depth."""
    words = ["gpt-oss-120b", "--box", "1x-gb10", "--engine", "llama.cpp", "--checkpoint", "mxfp4", "--decode"]
    rows = read_forecast(capsys, *words, "--context", "0,8192,32768", "--concurrency", "1")["rows"]

    for row, published in zip(rows, (59.05, 53.14, 42.87), strict=True):
        assert row["decode_tok_s"] == pytest.approx(published, rel=0.15)
        assert row["low_tok_s"] < published < row["high_tok_s"]


def test_unknown_ram_has_the_band_of_all_that_is_sold(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the RAM turns out to be, the forecast with its rate lies in the band of the one without, as in plan."""
    words = ["kimi-k2.6", "--box", "1x-rtx-5090", "--ram", "768GiB", "--context", "1024"]
    unknown = read_forecast(capsys, *words)
    (row,) = unknown["rows"]

    assert "is assumed" in unknown["basis"]
    for rate in ("55GB/s", "300GB/s", "800GB/s"):
        (known,) = read_forecast(capsys, *words, "--ram-bandwidth", rate)["rows"]
        assert row["tg_low_tok_s"] < known["tg_tok_s"] < row["tg_high_tok_s"]
        assert known["tg_low_tok_s"] / known["tg_tok_s"] > 0.8
    assert main(["plan", *words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (same,) = (one for one in plan["forecast"] if one["context"] == 1024)
    assert plan["basis"] == unknown["basis"]
    assert (same["low_tok_s"], same["high_tok_s"]) == (row["tg_low_tok_s"], row["tg_high_tok_s"])


@pytest.mark.parametrize(
    "words",
    [
        ["kimi-k2.6", "--box", "5x-h200", "--engine", "vllm"],  # five stages
        ["deepseek-v4-pro", "--box", "8x-b300", "--engine", "sglang"],  # several prompts a step
        ["kimi-k2.6", "--box", "8x-h200", "--engine", "vllm"],
    ],
)
def test_the_answers_of_plan_are_what_a_serving_run_of_them_comes_to(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Plan compares by requests of 4,096 tokens answered with 1,024, 32 at once; simulated it is the same rate."""
    assert main(["plan", *words, "--all"]) == 0
    page = capsys.readouterr().out
    answers = float(page.partition("(this plan)")[2].split()[0].replace(",", ""))
    load = ["--input", "4096", "--output", "1024", "--concurrency", "32"]
    (row,) = read_forecast(capsys, *words, *load)["rows"]

    assert row["output_throughput"] == pytest.approx(answers, rel=0.03)


def planned(tmp_path: Path, *words: str) -> str:
    """The recipe file that `plan` writes."""
    path = tmp_path / "r.toml"
    assert main(["plan", *words, "--all", "-o", str(path)]) == 0
    return str(path)


def copied(tmp_path: Path, *words: str) -> str:
    """That file, for tests which do not look at what `plan` prints."""
    path = tmp_path / "r.toml"
    path.write_text(recipe_text(*words), encoding="utf-8")
    return str(path)


def test_a_recipes_own_context_and_slots_are_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last row was of 32,768 tokens where the recipe serves 40,960, and its four slots were nowhere."""
    words = ["qwen3-235b", "--box", "4x-rtx-5090", "--ram", "256GiB", "--engine", "llama.cpp", "--concurrency", "4"]
    path = planned(tmp_path, *words)
    table = capsys.readouterr().out.split("forecast\n")[1]
    assert table.split()[:4] == ["context", "1", "stream", "4"]
    rows = read_forecast(capsys, path, "--decode")["rows"]

    assert {row["context"] for row in rows} == {0, 16384, 32768, 40960}
    assert [row["concurrency"] for row in rows if row["fits"] and row["context"] == 40960] == [1, 4]
    assert read_forecast(capsys, path, "--prefill")["rows"][-1]["prompt_tokens"] == 40960
    assert read_forecast(capsys, path)["rows"][-1]["context"] == 40960


def test_a_recipe_that_leaves_the_context_open_is_forecast_with_the_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its only row was of 0 tokens."""
    path = copied(tmp_path, "qwen3-235b", "--box", "8x-h200")
    written = Path(path).read_text(encoding="utf-8")
    Path(path).write_text(re.sub("(?m)^context = .*$", "context = 0", written), encoding="utf-8")
    capsys.readouterr()

    assert read_forecast(capsys, path, "--decode")["rows"][-1]["context"] == 40960
    assert read_forecast(capsys, path, "--prefill")["rows"][-1]["prompt_tokens"] == 40960


@pytest.mark.parametrize(
    ("was", "is_", "problem"),
    [
        ("tp = 8", "tp = 0", "parallel.tp: 0 is less than 1"),
        ("max_seqs = 64", "max_seqs = -4", "max_seqs: -4 is less than 1"),
        ("tokens = 3", "tokens = 0", "speculate.tokens: 0 is less than 1"),
    ],
)
@pytest.mark.parametrize("command", ["forecast", "twin"])
def test_a_recipe_that_cannot_be_meant_is_refused(
    command: str, was: str, is_: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `up` refuses gave a traceback, a row of -4 streams, or a forecast without its draft."""
    path = copied(tmp_path, "kimi-k2.6", "--box", "8x-h200", "--speculate", "eagle3")
    text = Path(path).read_text(encoding="utf-8")
    assert was in text
    Path(path).write_text(text.replace(was, is_), encoding="utf-8")
    capsys.readouterr()

    assert main([command, path]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--decode", "--context", "96k"], ["--prefill", "--input", "8192,96k"]])
def test_rows_beyond_the_recipes_context_are_reported(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They looked like any other row, and the engine would refuse such a request."""
    path = copied(tmp_path, "kimi-k2.6", "--box", "8x-h200")
    capsys.readouterr()

    texts = [warning["text"] for warning in read_forecast(capsys, path, *words)["warnings"]]
    assert any("98,304 tokens exceed the recipe's context of 65,536" in text for text in texts)


def test_the_title_says_the_layout_as_plan_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, "qwen3-235b", "--box", "8x-h200", "--engine", "vllm", "--ep", "8")
    assert "vLLM, TP8, EP, bf16 cache" in " ".join(capsys.readouterr().out.split())
    assert main(["forecast", path]) == 0
    assert "vLLM, TP8, EP, bf16 cache" in " ".join(capsys.readouterr().out.split())


def test_a_guess_of_ram_is_not_shown_where_the_band_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """GPUs read the prompts: a band of a quarter was said to reach from 51 to 845 GB/s."""
    words = ["gpt-oss-120b", "--box", "2x-rtx-4090", "--ram", "128GiB", "--engine", "llama.cpp"]

    assert "RAM at" in read_forecast(capsys, *words, "--decode")["basis"]
    assert "RAM at" not in read_forecast(capsys, *words, "--prefill")["basis"]
    assert "mapped file" in read_forecast(capsys, *words, "--prefill")["basis"]
