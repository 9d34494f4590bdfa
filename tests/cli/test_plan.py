"""`moebox plan` as people and scripts call it: exit codes, keys, files, and a page that fits the terminal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moebox import codec, phantom
from moebox.cli import main
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.catalogue import known_divergences
from moebox.core.recipe import Recipe
from moebox.phantom.folder import write_hf_folder as write_folder
from tests.checkpoint import tiny

pytestmark = pytest.mark.usefixtures("plans_once")
BOX = ["--box", "8x-rtx-pro-6000-server"]
ATTIC = ["--box", "2x-rtx-pro-6000-max-q", "--ram", "768GiB", "--ram-bandwidth", "614GB/s"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON document of a plan that succeeds."""
    assert main(["plan", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_little_free_ram_is_no_tick(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan states what system and server keep of the RAM, and one that leaves 2% or less is marked."""
    words = ["plan", "kimi-k2.6", "--box", "1x-rtx-pro-6000-server", "--checkpoint", "UD-Q2_K_XL"]
    for ram, mark, left in (("256GiB", "! fits", True), ("384GiB", "✓ fits", False)):
        assert main([*words, "--ram", ram, "--ram-bandwidth", "460GB/s"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert mark in text
        assert "for system and server" in text
        assert (" left; cache" in text) == left


def test_json_has_the_keys_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    """recipe, memory.per_device and kv_tokens, forecast, reasons, warnings, alternatives; parts sum to each card."""
    document = planned(capsys, "kimi-k2.6", *BOX)
    names = {"device", "total_bytes", "weights_bytes", "kv_bytes", "overhead_bytes", "free_bytes"}

    assert {"recipe", "memory", "forecast", "reasons", "warnings", "alternatives"} <= document.keys()
    assert document["memory"]["kv_tokens"] > 65536
    assert len(document["memory"]["per_device"]) == 8
    for one in document["memory"]["per_device"]:
        assert names <= one.keys()
        parts = ("weights_bytes", "kv_bytes", "overhead_bytes", "free_bytes")
        assert sum(one[part] for part in parts) == one["total_bytes"]
    row = document["forecast"][0]
    assert {"context", "concurrency", "decode_tok_s", "low_tok_s", "high_tok_s"} <= row.keys()
    assert row["low_tok_s"] < row["decode_tok_s"] < row["high_tok_s"]


def test_the_same_input_gives_the_same_bytes(capsys: pytest.CaptureFixture[str], plans_once: dict[str, Any]) -> None:
    """Two runs, each with a plan of its own, print the same document."""
    plans_once.clear()
    assert main(["plan", "kimi-k2.6", *BOX, "--json"]) == 0
    first = capsys.readouterr().out
    plans_once.clear()
    assert main(["plan", "kimi-k2.6", *BOX, "--json"]) == 0

    assert capsys.readouterr().out == first


def test_the_order_of_python_sets_does_not_reach_the_plan() -> None:
    """Two processes with different hash seeds print the same bytes."""
    command = [sys.executable, "-m", "moebox", "plan", "kimi-k2.6", *BOX, "--json"]
    outputs = {
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }

    assert len(outputs) == 1


def test_the_recipe_that_is_written_is_the_recipe_that_was_planned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """-o writes TOML that parses to the same recipe, with the reasons above it; stdout stays one document."""
    file = tmp_path / "new" / "recipe.toml"
    document = planned(capsys, "kimi-k2.6", *BOX, "-o", str(file))

    assert codec.read_toml(Recipe, file) == codec.decode(Recipe, document["recipe"], where="json")
    assert file.read_text().startswith("# kimi-k2.6-vllm-tp8")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["kimi-k2.6", "--box", "1x-rtx-4090"], 1, "GB more"),
        (["kimi-k2.6", *BOX, "--context", "10M"], 2, "--context 10485760: kimi-k2.6 has 262,144"),
        (["qwen3-235b", "--box", "8x-rtx-5090", "--context", "65536"], 2, "--context 65536: qwen3-235b has 40,960"),
        (["kimi-k2.6", *BOX, "--tp", "16"], 2, "takes 16 GPUs and 8x-rtx-pro-6000-server has 8"),
        (["kimi-k2.6", *ATTIC, "--ub", "0"], 2, "--ub 0"),
        (["kimi-k2.6", *BOX, "--ram-bandwidth", "0GB/s"], 2, "--ram-bandwidth 0GB/s is less than 1 GB/s"),
        (["kimi-k2.6", *BOX, "--tp", "3"], 2, "64 attention heads"),
        (["kimi-k2.6", *BOX, "--context", "many"], 2, "token count"),
        (["kimi-k2.6", *BOX, "--kv", "fp7"], 2, "fp7"),
        (["kimi-k2.6", *BOX, "--checkpoint", "int5"], 2, "did you mean int4"),
        (["kimi-k2.6", *BOX, "--memory-utilization", "90"], 2, "0.90"),
        (["kimi-k2.6", *ATTIC, "--experts-on-gpu", "3+3+3"], 2, "GPUs"),
        (["kimi-k2.6", *ATTIC, "--experts-on-gpu", "a"], 2, "3+3"),
        (["kimi-k2.7", "--box", "8x-h200"], 2, "kimi-k2"),
        (["kimi-k2.6", "--box", "8x-h300"], 2, "h200"),
        (["kimi-k2.6", *BOX, "--engine", "tgi"], 2, "engine"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    """Exit 1 when nothing fits and 2 for what cannot be meant; nothing on stdout, no traceback."""
    assert main(["plan", *words]) == code

    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("error: ")
    assert says in seen.err


def test_the_answer_no_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json a model that fits nowhere is exit code 1 and a document with what is missing and what would help."""
    assert main(["plan", "kimi-k2.6", "--box", "1x-rtx-4090", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)

    assert document["fits"] is False
    assert document["shortfall_bytes"] > 100e9
    assert any("RAM" in remedy for remedy in document["remedies"])


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_page_shows_what_matters_and_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """Bars with letters for terminals without colour, cache in tokens and requests, forecast, runners-up, warnings."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plan", "kimi-k2.6", *BOX, "--all"]) == 0
    page = capsys.readouterr().out

    assert max(map(len, page.splitlines())) <= int(width)
    assert "gpu0-7 EEEEEE" in page
    text = " ".join(page.split())
    for words in ("161,152 tokens", "requests of 65,536", "routed experts 66.45", "alternatives", "--max-num-seqs 64"):
        assert words in text
    assert "--image community" in text


def test_why_can_be_checked_with_a_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of the document multiply out: claim less everything is the budget, budget by token is the pool."""
    lines = {line["what"]: line for line in planned(capsys, "kimi-k2.6", *BOX)["why"]}
    taken = sum(line["value"] for what, line in lines.items() if what.startswith("- "))

    assert lines["utilized"]["value"] - taken == lines["= KV budget"]["value"]
    block = lines["cache a token"]["value"] * 16
    assert lines["= KV budget"]["value"] // block * 16 == lines["KV tokens"]["value"]
    assert main(["plan", "kimi-k2.6", *BOX, "--why"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--tensor-parallel-size 8 splits every layer over 8 GPUs" in shown
    assert "61 layers × 1152 B" in shown


def test_cpu_and_gpu_pins_are_honoured(capsys: pytest.CaptureFixture[str]) -> None:
    """--experts-on-gpu, --ub, --mla and --threads stand in the recipe as given."""
    words = ["--engine", "ik_llama.cpp", "--checkpoint", "IQ3_K", "--experts-on-gpu", "3+3", "--ub", "2048"]
    hybrid = planned(capsys, "kimi-k2.6", *ATTIC, *words, "--mla", "1", "--threads", "15")["recipe"]["hybrid"]

    assert [len(layers) for layers in hybrid["experts"]] == [3, 3]
    assert (hybrid["ubatch"], hybrid["mla"], hybrid["threads"]) == (2048, 1, 15)


def test_serving_pins_are_honoured(capsys: pytest.CaptureFixture[str]) -> None:
    """Every pin of a serving engine stands in the recipe as given, where it starts."""
    words = ["--engine", "vllm", "--checkpoint", "nvfp4", "--tp", "4", "--pp", "2", "--ep", "4", "--dcp", "2"]
    words += ["--kv", "fp8", "--memory-utilization", "0.93", "--speculate", "ngram", "--image", "stock"]
    recipe = planned(capsys, "kimi-k2.6", "--box", "8x-h200", *words, "--context", "32k", "--concurrency", "4")[
        "recipe"
    ]

    assert (recipe["engine"], recipe["checkpoint"], recipe["kv"]) == ("vllm", "nvfp4", "fp8")
    parallel = recipe["parallel"]
    assert (parallel["tp"], parallel["pp"], parallel["dcp"], parallel["ep"]) == (4, 2, 2, True)
    assert (recipe["memory_utilization"], recipe["context"], recipe["runtime"]["preset"]) == (0.93, 32768, "")
    assert recipe["speculate"]["method"] == "ngram"


def test_models_on_disk_are_planned_like_those_of_the_catalogue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A folder with config.json and a .gguf file, with and without cards; the recipe points at the path."""
    folder = tiny.folder(tmp_path / "kimi", tiny.KIMI)
    assert planned(capsys, str(folder), "--box", "8x-b200")["recipe"]["engine"] == "vllm"
    file = tiny.gguf(tmp_path / "tiny.gguf", tiny.DEEPSEEK2, tiny.TENSORS)
    for words in (["--box", "1x-rtx-5090"], ["--box", "2x-rtx-4090", "--ram", "64GiB"], ["--ram", "32GiB"]):
        recipe = planned(capsys, str(file), *words)["recipe"]

        assert recipe["engine"] == "ik_llama.cpp"
        assert recipe["checkpoint"] == str(file)


def test_a_plan_without_experts_on_gpus_gives_no_order_of_layers(capsys: pytest.CaptureFixture[str]):
    """Head and tail of nothing are not worth a line; what stays in RAM and what is left are two figures of one RAM."""
    assert main(["plan", "kimi-k2.6", "--box", "1x-rtx-5090", "--ram", "768GiB", "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    reported = "none of 60 expert layers is on the GPUs; 449.05 GiB of weights stay in RAM, "
    left = text.partition(reported)[2].partition(" GiB of RAM is left free")[0]
    assert re.search(rf"free \S+ {re.escape(left)} ", text), "the table's last row says the same"
    assert "head of the stack" not in text


def test_a_recipe_that_up_would_refuse_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose name holds an escape sequence: one line, and no file that is refused later."""
    recipe = tmp_path / "recipe.toml"
    folder = tiny.folder(tmp_path / "ev\x1b[2Jil", tiny.KIMI)
    assert main(["plan", str(folder), "--box", "8x-h200", "-o", str(recipe), "--json"]) == 2
    reported = capsys.readouterr()
    assert (reported.out, "control character" in reported.err, "\x1b" in reported.err) == ("", True, False)
    assert not recipe.exists()


def test_what_every_node_runs_is_shown_without_asking_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that `plan` prints for a group over two nodes, dry: not even an ssh client is needed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    recipe, hosts = tmp_path / "two.toml", tmp_path / "hosts.txt"
    hosts.write_text("alpha 10.0.0.1\nbeta 10.0.0.2\n")
    assert main(["plan", "deepseek-v3.2", "--box", "2x8x-rtx-pro-6000-server", "-o", str(recipe)]) == 0
    capsys.readouterr()
    assert main(["up", str(recipe), "--hosts", str(hosts), "--dry-run"]) == 0
    first, _, second = capsys.readouterr().out.partition("# beta\n")
    assert "--tensor-parallel-size 16" in first
    assert "--nnodes 2" in second
    assert "--node-rank 0 --master-addr 10.0.0.1" in first
    assert "--host 10.0.0.1" in first  # as it is launched: the other node must reach it
    assert "--node-rank 1 --master-addr 10.0.0.1" in second
    assert main(["up", str(recipe), "--hosts", str(hosts), "--dry-run", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [*nodes] == ["alpha", "beta"]
    assert nodes["beta"] in second


@pytest.mark.parametrize(
    ("words", "says", "never"),
    [
        (("--speculate", "eagle3"), "a careful start: text only;", "no draft"),
        (("--kv", "fp8"), "an fp8 cache holds 2 times the tokens", "twice"),
        (("--concurrency", "2000"), "% faster at 105 streams against 40", "at 40 streams"),
        (("--context", "4096"), "3,277 in / 819 out", "1,024 out"),
    ],
)
def test_sentences_are_of_the_plan_beside_them(
    words: tuple[str, ...], says: str, never: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fixed sentences had gone past what was pinned."""
    assert main(["plan", "kimi-k2.6", *BOX, *words, "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert says in text
    assert never not in text


def test_a_short_context_is_weighed_by_whole_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """At 4,096 tokens the answer had one, and half of the GPUs stayed free."""
    short, longer = (
        planned(capsys, "kimi-k2.6", "--box", "2x8x-rtx-pro-6000-server", "--context", size)
        for size in ("4096", "8192")
    )
    assert short["recipe"]["parallel"] == longer["recipe"]["parallel"]


def test_an_image_beyond_what_it_was_built_for_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """It was planned for any model on any GPU without a word."""
    for words, reported in ((("gpt-oss-120b", "--box", "1x-h200"), True), (("kimi-k2.6", *BOX), False)):
        warnings = planned(capsys, *words, "--image", "community")["warnings"]
        assert any("it is untested" in warning["text"] for warning in warnings) == reported


@pytest.mark.parametrize("box", ["1x-b300", "8x-h200"])
def test_the_goals_figure_is_given_with_runners_up_and_without(box: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts and people find what this plan is compared by, though nothing else fits beside it."""
    document = planned(capsys, "minimax-m3", "--box", box)
    assert document["answer_tok_s"] > 0
    assert main(["plan", "minimax-m3", "--box", box, "--all"]) == 0
    page = capsys.readouterr().out
    shown = re.search(r"\(this plan\) +([\d,.]+)", page)
    assert shown
    assert float(shown[1].replace(",", "")) == pytest.approx(document["answer_tok_s"], rel=0.01)


def test_weights_of_unequal_stages_are_reported_by_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    """Five stages of 57 layers: the page said what the first GPU holds, and the fourth holds 15 GiB more."""
    document = planned(capsys, "minimax-m3", "--box", "5x-mi300x", "--pp", "5", "--tp", "1")
    most = max(sum(device["by_component"].values()) for device in document["memory"]["per_device"])
    assert f"leaves up to {most / 2**30:.2f} GiB of weights on each GPU" in " ".join(document["reasons"])


@pytest.mark.parametrize(
    "words", [["minimax-m2.7", "--goal", "latency"], ["gpt-oss-120b"], ["gpt-oss-120b", "--engine", "sglang"]]
)
def test_one_memory_is_counted_once(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A DGX Spark's CPU and GPU share 119.21 GiB: the system and the server's own part come out of them too."""
    plan = planned(capsys, *words, "--box", "1x-gb10")
    (device,) = plan["memory"]["per_device"]

    assert device["device"] == "gpu0"
    assert device["overhead_bytes"] >= 12 * 2**30  # 8 GiB for the system, 4 for the server's process
    assert device["free_bytes"] >= 0
    assert not any("stay in RAM" in reason for reason in plan["reasons"])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_arithmetic_is_of_the_stage_that_decides(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    """Stages are not equally full: the cache is as large as the fullest leaves, and every sentence reports it."""
    plan = planned(capsys, "kimi-k2-thinking", "--box", "5x-h200", "--engine", engine, "--pp", "5")
    lines = {line["what"]: line for line in plan["why"]}
    fullest = max(plan["memory"]["per_device"], key=lambda one: one["weights_bytes"])

    assert lines["KV tokens"]["value"] == plan["memory"]["kv_tokens"]
    assert "of 5 holds the fewest" in lines["KV tokens"]["formula"]
    assert lines["- routed_experts"]["value"] == fullest["by_component"]["routed_experts"]
    output = [reason for reason in plan["reasons"] if "by default SGLang would use" in reason]
    for text in output:
        share, tokens = re.search(r"use ([\d.]+) and hold ([\d,]+)", text).groups()  # type: ignore[union-attr]
        assert float(share) == pytest.approx(0.9, abs=0.02)
        assert int(tokens.replace(",", "")) == pytest.approx(plan["memory"]["kv_tokens"], rel=0.2)


@pytest.mark.parametrize("ub", [[], ["--ub", "4096"]])
def test_no_prompt_is_said_to_be_read_by_a_cpu_that_has_no_experts(
    capsys: pytest.CaptureFixture[str], ub: list[str]
) -> None:
    """All experts lie on the GPU: there is no batch from which on it would take over."""
    words = ["gpt-oss-120b", "--box", "1x-h100", "--engine", "ik_llama.cpp", *ub]
    reasons = planned(capsys, *words)["reasons"]

    assert any("all 36 expert layers fit" in reason for reason in reasons)
    assert not any(reason.startswith("-ub") for reason in reasons)


def test_the_claim_that_is_offered_is_one_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """On a memory that the system shares 0.9 leaves it too little: the hint names the share that does not."""
    words = ["plan", "gpt-oss-120b", "--box", "1x-gb10", "--engine", "vllm", "--memory-utilization"]
    assert main([*words, "0.9"]) != 0
    offered = re.search(r"--memory-utilization ([\d.]+) fits", capsys.readouterr().err)

    assert offered
    assert main([*words, offered[1]]) == 0


@pytest.mark.parametrize(
    ("cpu", "says"),
    [
        ("sockets = 0", "sockets = 0"),
        ("sockets = 1, channels = 2", "ram_bandwidth 900 GB/s, channels = 2: they give at most 141 GB/s"),
        ("cores = 4, threads = 2", "cores = 4, threads = 2"),
        ("cores = 1, sockets = 2", "cores = 1, sockets = 2"),
    ],
)
def test_a_box_that_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: str, says: str
) -> None:
    """Contradictions of a box file were planned for without a word."""
    file = tmp_path / "attic.toml"
    file.write_text(f'gpus = ["2x-rtx-5090"]\nram = "768GiB"\nram_bandwidth = "900GB/s"\ncpu = {{ {cpu} }}\n')
    assert main(["plan", "kimi-k2.6", "--box", str(file)]) == 2

    reported = capsys.readouterr()
    assert reported.out == ""
    assert f"{file}: {says}" in reported.err


def test_a_folder_on_a_machine_without_a_gpu_is_not_sent_to_an_engine_that_cannot_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The hint led to llama.cpp, which refused the folder and named it as the known form."""
    folder = tmp_path / "phantom"
    folder.mkdir()
    write_folder(phantom.gguf_path(draft=True), folder)  # the smaller one is written sooner
    monkeypatch.setattr("moebox.detect.machine.detect_machine", lambda *, measure=True: Box(name="bare", ram=2**36))

    assert main(["plan", str(folder)]) == 1
    assert "llama.cpp runs on CPUs, from a GGUF of the model" in capsys.readouterr().err
    assert main(["plan", str(folder), "--engine", "llama.cpp"]) == 2
    assert "it reads GGUF; known checkpoints: phantom (safetensors)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("box", "more", "remedy"),
    [
        ("8x-rtx-pro-6000-server", [], "shorter contexts"),  # it has DCP already, and fp8 does not start there
        ("8x-h200", ["--dcp", "1", "--kv", "bf16"], "shorter contexts or decode context parallelism (--dcp) or an fp8"),
    ],
)
def test_a_short_cache_is_answered_with_what_this_recipe_can_do(
    box: str, more: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice was DCP for a recipe that has it, and an fp8 cache that the same page says does not start."""
    words = ["kimi-k2.6", "--box", box, "--context", "128k", "--concurrency", "16", *more]
    (reported,) = [one for one in planned(capsys, *words)["warnings"] if one["text"].startswith("the cache holds")]

    assert reported["remedy"].startswith(remedy)
    assert ("fp8" in reported["remedy"]) == (box == "8x-h200")


def test_an_empty_folder_hides_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One that the weights are to come into, or the rehearsal's; with ./ before it the folder is meant."""
    monkeypatch.chdir(tmp_path)
    for name in ("kimi-k2.6", "phantom"):
        Path(name).mkdir()

    assert main(["plan", "kimi-k2.6", *BOX]) == 0
    assert "the folder kimi-k2.6 contains no model" in capsys.readouterr().out
    assert main(["plan", "./kimi-k2.6", *BOX]) == 2
    assert main(["up", "phantom", "--dry-run"]) == 0


def test_known_divergence_of_formats_is_shown_with_its_source(capsys: pytest.CaptureFixture[str]):
    """The chosen format's published distance in the answer, all of the model's on --all and in JSON; others unknown."""
    words = ["plan", "qwen3.5-397b", "--box", "4x-rtx-pro-6000"]
    assert main([*words, "--checkpoint", "nvfp4"]) == 0
    assert "nvfp4: 0.035 nats from fp8-block" in capsys.readouterr().out
    assert main([*words, "--checkpoint", "nvfp4", "--json"]) == 0
    rows = {row["format"]: row for row in json.loads(capsys.readouterr().out)["known_divergence"]}
    assert rows["int4-g128"]["kl"] == 0.0241
    assert rows["nvfp4"]["source"].startswith("https://")
    assert main(["plan", "glm-5.1", "--box", "8x-h200", "--all"]) == 0
    text = capsys.readouterr().out
    assert "fp8-block: unknown" in text
    assert "0.0374" in text


def test_every_published_divergence_is_about_a_model_of_the_catalogue():
    """Rows decode, name known models, and have a source with a date."""
    for row in catalogue.load_table("divergence")["divergence"]:
        for model in row["models"]:
            found = list(known_divergences(catalogue.find_model(model).name))
            assert all(each.source.startswith("https://") and "20" in each.date for each in found)
            assert all(0 <= (each.kl or 0) < 5 and 0.9 < (each.perplexity or 1) < 5 for each in found)


def test_the_longest_context_is_not_bought_with_an_unusable_speed(capsys: pytest.CaptureFixture[str]):
    """The whole context of Kimi on eight RTX PRO 6000 is planned at a speed that one can read at."""
    found = planned(capsys, "kimi-k2.6", *BOX, "--goal", "context")
    assert found["recipe"]["context"] == catalogue.find_model("kimi-k2.6").context
    alone = [row["decode_tok_s"] for row in found["forecast"] if row["concurrency"] == 1]
    assert min(alone) > 15


def test_gpus_that_the_plan_leaves_free_are_counted_on_the_first_screen(capsys: pytest.CaptureFixture[str]):
    """With three GPUs and TP2 the owner of the third one must not have to look for it on --all."""
    assert main(["plan", "glm-5.3-flash", "--box", "3x-h200", "--tp", "2"]) == 0
    assert "each of 2 GPUs; 1 of 3 GPUs stay free" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "glm-5.3-flash", "--box", "4x-h200", "--tp", "4"]) == 0
    assert "stay free" not in capsys.readouterr().out
