"""The start rules in data/start_rules are consistent, and give the answers that the engines' sources give."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts.support_rules.interpreter import Interpreter
from scripts.support_rules.rows import engine_tables, facts_of
from scripts.support_rules.stand_ins import Target, libraries_for
from scripts.support_rules.values import Raised

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src/moebox/data/start_rules"
FILES = ("vllm.json", "sglang.json", "llama_cpp.json", "ik_llama_cpp.json")
GPUS = {"sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121", "gfx942", "gfx950"}
HIGHEST_BYTES = 300_000  # all files together: they are read at every plan
Row = dict[str, Any]


@functools.cache
def key(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d+", version))


def load(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@functools.cache
def ends(spec: str) -> tuple[str, str]:
    """Return both ends of a version range."""
    found = re.fullmatch(r"==(\S+)|>=(\S+),<=(\S+)", spec)
    assert found, spec
    return (found[1], found[1]) if found[1] else (found[2], found[3])


def rows(data: dict[str, Any], table: str, version: str, **wanted: str) -> list[Row]:
    """Return the rows of a release whose lists contain what is wanted."""
    found = []
    for row in data[table]:
        first, last = ends(row["versions"])
        if key(first) <= key(version) <= key(last) and all(v in row.get(k, [v]) for k, v in wanted.items()):
            found.append(row)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_row_names_releases_that_were_read_and_its_evidence(name: str) -> None:
    """Ranges run between releases in `releases`, GPU names are known, evidence is file:line."""
    data = load(name)
    releases = data["releases"]
    assert releases == sorted(set(releases), key=key)
    for table, entries in data.items():
        for row in entries if isinstance(entries, list) and table != "releases" else ():
            if "versions" in row:
                first, last = ends(row["versions"])
                assert first in releases, (table, row)
                assert last in releases, (table, row)
                assert key(first) <= key(last), (table, row)
            assert set(row.get("gpus", ())) <= GPUS, (table, row)
            assert re.fullmatch(r"[\w./+-]+:\d+", row.get("at", "x:1")), (table, row)


@pytest.mark.parametrize("name", FILES)
def test_names_occur_once_in_a_release(name: str) -> None:
    """A name such as an architecture is listed at most once for each release."""
    data = load(name)
    for table, entries in data.items():
        if isinstance(entries, list) and entries and isinstance(entries[0], dict) and "names" in entries[0]:
            for release in data["releases"]:
                names = [n for row in rows(data, table, release) for n in row["names"]]
                assert len(names) == len(set(names)), (table, release)


def test_vllm_attention_has_one_answer_for_each_question() -> None:
    """No two attention rows cover the same release, GPU, layer and cache type."""
    data = load("vllm.json")
    seen = set()
    for row in data["attention"]:
        assert ("refused" in row) != bool(row.get("order")), row
        first, last = ends(row["versions"])
        covered = [r for r in data["releases"] if key(first) <= key(r) <= key(last)]
        for case in ((r, g, x, kv) for r in covered for g in row["gpus"] for x in row["layers"] for kv in row["kv"]):
            assert case not in seen, case
            seen.add(case)


def test_backends_in_an_order_are_declared_for_that_gpu() -> None:
    """A backend that an attention row accepts has a declaration for the same release and GPU."""
    data = load("vllm.json")
    for row in data["attention"]:
        for release in ends(row["versions"]):
            for gpu in row["gpus"]:
                declared = {r["name"] for r in rows(data, "attention_backend", release, gpus=gpu)}
                own = {b for b in row.get("order", ()) if b.endswith(("DSV4", "DSV41", "V4_FLASHMLA_SPARSE"))}
                assert set(row.get("order", ())) - own <= declared, (release, gpu, row)


def test_the_files_stay_small() -> None:
    """The rules are read at every plan, so they stay below a fixed size."""
    assert sum((DATA / name).stat().st_size for name in FILES) < HIGHEST_BYTES


@pytest.mark.parametrize(
    ("version", "gpu", "layer", "kv", "answer"),
    [
        ("0.32.0", "sm80", "mla", "fp8", "requires SM89+"),
        ("0.32.0", "sm80", "mla", "auto", "TRITON_MLA"),
        ("0.32.0", "sm120", "mla", "fp8", "TRITON_MLA"),
        ("0.32.0", "sm90", "mla", "auto", "FLASH_ATTN_MLA"),
        ("0.32.0", "sm100", "mla", "fp8", "FLASHINFER_MLA"),
        ("0.32.0", "sm100", "gqa-128", "auto", "FLASHINFER"),
        ("0.32.0", "sm120", "gqa-128", "auto", "FLASH_ATTN"),
        ("0.20.0", "sm120", "deepseek-v4", "fp8", "compute capability not supported"),
        ("0.24.0", "sm120", "deepseek-v4", "fp8", "FLASHINFER_MLA_SPARSE_DSV4"),
        ("0.20.0", "sm120", "mla-sparse", "fp8", "not supported"),
        ("0.13.0", "sm120", "mla-sparse", "auto", "compute capability not supported"),
        ("0.14.0", "sm120", "gqa-64-sink", "auto", "TRITON_ATTN"),
        ("0.12.0", "sm90", "gqa-128", "bfloat16", "kv_cache_dtype not supported"),
    ],
)
def test_vllm_attention_default(version: str, gpu: str, layer: str, kv: str, answer: str) -> None:
    """Defaults and refusals agree with a reading of vLLM's sources by hand."""
    (row,) = rows(load("vllm.json"), "attention", version, gpus=gpu, layers=layer, kv=kv)
    assert answer in (row["refused"] if "refused" in row else row["order"][0])


@pytest.mark.parametrize(
    ("version", "gpu", "model", "attention"),
    [
        ("0.5.23", "sm120", "kimi-k2", "triton"),
        ("0.5.23", "sm90", "kimi-k2", "fa3"),
        ("0.5.23", "sm100", "deepseek-v3", "trtllm_mla"),
        ("0.5.23", "sm90", "glm-5", "dsa"),
        ("0.5.10", "sm90", "glm-5", "nsa"),
        ("0.5.6", "sm120", "gpt-oss", "triton"),
        ("0.5.6", "sm90", "qwen3-moe", "fa3"),
    ],
)
def test_sglang_attention_default(version: str, gpu: str, model: str, attention: str) -> None:
    """Defaults agree with a reading of SGLang's argument resolution by hand."""
    (row,) = rows(load("sglang.json"), "default", version, gpus=gpu, models=model, kv="auto", drafts="none")
    assert row["attention"] == attention


def test_sglang_uses_aiter_for_kimi_on_amd_up_to_tp_4() -> None:
    """AITER's MLA kernel takes 16 or 128 heads a rank, so Kimi's 64 heads leave it above TP 4."""
    found = {}
    data = load("sglang.json")
    for row in rows(data, "default", "0.5.23", gpus="gfx942", models="kimi-k2", kv="auto", drafts="none"):
        found.update(dict.fromkeys(row["tp"], row["attention"]))
    assert found[4] == "aiter"
    assert found[8] == "triton"


@pytest.mark.parametrize(
    ("version", "gpu", "format", "kernels"),
    [
        ("0.11.1", "sm120", "mxfp4-gpt-oss", "TRITON"),
        ("0.12.0", "sm120", "mxfp4-gpt-oss", "MARLIN"),
        ("0.15.0", "sm120", "nvfp4", "VLLM_CUTLASS MARLIN"),
        ("0.15.1", "sm120", "nvfp4", "FLASHINFER_CUTLASS VLLM_CUTLASS MARLIN"),
        ("0.13.0", "sm90", "int4", "MARLIN"),
    ],
)
def test_vllm_experts_of_older_releases(version: str, gpu: str, format: str, kernels: str) -> None:
    """Releases without an oracle for a format chose a kernel by a function, or had one; read by hand in the tags."""
    (row,) = rows(load("vllm.json"), "moe", version, gpus=gpu, quantizations=format)
    assert row["order"] == kernels.split()


@pytest.mark.parametrize("name", FILES)
def test_facts_can_be_read_back_from_a_file(name: str) -> None:
    """A later run keeps the releases that it does not read: the rows of a file, taken apart, give the same rows."""
    data = load(name)
    tables: dict[str, list[Row]] = {}
    for table, row in engine_tables(data["engine"], facts_of(data)):
        tables.setdefault(table, []).append(row)
    for table, made in tables.items():
        expected, found = ({json.dumps(row, sort_keys=True) for row in some} for some in (data[table], made))
        assert found == expected, table


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        ("vllm 0.33.0 sm90 --layer mla", 0, "0.33.0 is not known; the newest known release, 0.32.0, is used"),
        ("vllm 0.32.0 sm80 --architecture KimiK25ForConditionalGeneration --kv fp8", 1, "refused"),
        ("vllm 0.10.0 sm90", 2, "older than the oldest release read"),
        ("llama.cpp b9999 --architecture deepseek2 --kv q8_0", 0, "architecture: deepseek2 known"),
    ],
)
def test_check_prints_an_answer_and_its_exit_code(arguments: str, code: int, answer: str) -> None:
    """`python -m scripts.support_rules check` answers from the files: 0 accepted, 1 refused, 2 bad input."""
    command = [sys.executable, "-m", "scripts.support_rules", "check", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert answer in done.stdout + done.stderr


SOURCE = """
import torch
import library_that_is_not_installed as other
open("ran", "w").write("the module was run")

class Base:
    kv = ["auto", "fp8"]
    @classmethod
    def supports(cls, kv):
        return kv in cls.kv and torch.cuda.get_device_capability() >= (8, 9)

class Backend(Base):
    def __init__(self, kv):
        if other.is_disabled():
            raise ValueError("disabled")
        if not self.supports(kv):
            raise NotImplementedError(f"{kv} needs SM89, got {torch.cuda.get_device_name()}")
"""


def test_sources_are_followed_without_running_them(tmp_path: Path) -> None:
    """A check is answered for an absent GPU; unknown conditions are not met, and nothing of the source runs."""
    (tmp_path / "engine.py").write_text(SOURCE, encoding="utf-8")
    answers = {}
    for gpu in ("sm80", "sm90"):
        reader = Interpreter(tmp_path, libraries=libraries_for(Target(gpu)), replaced={}, hooks={})
        backend = reader.module("engine").names["Backend"]
        try:
            backend("fp8")
            answers[gpu] = "accepted"
        except Raised as raised:
            answers[gpu] = f"{raised.text} at {raised.at}"
        assert any("other.is_disabled()" in line for line in reader.assumed)
    assert answers == {"sm80": "fp8 needs SM89, got sm80 at engine.py:17", "sm90": "accepted"}
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()
