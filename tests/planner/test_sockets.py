"""Two sockets: what a box that is declared by name leaves open, and what published serving on two Xeons shows."""

import json

import pytest

from moebox.cli.app import call_command

XEONS = 'gpus = ["8x-rtx-pro-6000-server"]\ncpu = { model = "Intel Xeon 6730P", sockets = 2, cores = 64 }\n'
# soulmachine/skills, June 2026: vLLM 0.22.1 with Kimi K2.6 in INT4 and a bf16 cache, 1,024 tokens read and 256 written.
PUBLISHED = {1: 44.4, 8: 177.3, 64: 313.2, 128: 326.6}
SERVE = ("--engine", "vllm", "--image", "stock", "--tp", "8", "--dcp", "1", "--kv", "bf16", "--speculate", "none")
LOAD = ("--input", "1024", "--output", "256", "--concurrency", "1,8,64,128", "--set", "engine_version=0.22.1")


def document(capsys: pytest.CaptureFixture[str], *words: str):
    call_command([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_serving_on_two_xeons_is_forecast_by_the_reading_of_one_prompt(tmp_path, capsys) -> None:
    """One time of SGLang's sets the rate between the sockets; vLLM's throughput follows from it at every load."""
    box = tmp_path / "box.toml"
    box.write_text(XEONS)
    rows = document(capsys, "forecast", "kimi-k2.6", "--box", str(box), "--checkpoint", "int4", *SERVE, *LOAD)["rows"]
    for row in rows:
        assert row["output_throughput"] == pytest.approx(PUBLISHED[row["max_concurrency"]], rel=0.1)


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (("kimi-k2.6", "--box", "8x-rtx-pro-6000-server", "--tp", "8"), True),
        (("glm-4.5-air", "--box", "4x-rtx-pro-6000-server"), False),
        (("kimi-k2.6", "--box", "8x-h200"), False),
    ],
    ids=["eight on PCIe", "four on PCIe", "NVLink"],
)
def test_an_unknown_number_of_sockets_is_named_with_what_it_changes(words, warned: bool, capsys) -> None:
    """Only if an all-reduce would have to cross sockets; a box file or the machine itself settles it."""
    found = document(capsys, "plan", *words, "--engine", "vllm")
    assert any("over two sockets" in each["text"] for each in found["warnings"]) is warned


def test_a_plan_for_two_xeons_keeps_all_reduces_within_a_socket(tmp_path, capsys) -> None:
    """TP8 would read prompts at a quarter of the speed: two stages of four GPUs are planned, without the warning."""
    box = tmp_path / "box.toml"
    box.write_text(XEONS)
    found = document(capsys, "plan", "kimi-k2.6", "--box", str(box), "--engine", "vllm")
    assert (found["recipe"]["parallel"]["tp"], found["recipe"]["parallel"]["pp"]) == (4, 2)
    assert not any("over two sockets" in each["text"] for each in found["warnings"])
