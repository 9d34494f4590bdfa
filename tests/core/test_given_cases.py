"""Each row of the matrix covers the setup it describes, and each given case of owners leads to its row or symptom."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.core.catalogue import find_model
from moebox.core.model import Checkpoint
from moebox.core.recipe import Hybrid, Parallel, Recipe, Speculate
from moebox.core.setting import with_settings
from moebox.core.support import support_for
from moebox.core.support_matrix import Setup, SupportRow, support_rows
from moebox.core.support_settings import BUILD_KEYS, FIELDS
from moebox.core.versions import in_versions
from moebox.doctor.logs import search_pieces

HERE = Path(__file__).parent
ROWS = {row.id: row for rows in support_rows().values() for row in rows}
WITH_KIND = {"linear": "qwen3.5-397b", "dsa": "glm-5", "sliding": "gpt-oss-120b", "mla": "kimi-k2.6", "gqa": "glm-4.7"}
OFFLOAD_FLAGS = {
    "native": {"kv-offloading-size": 64},
    "native tiering": {"kv-offloading-backend": "tiering"},
    "simple": {"kv-transfer-config": '{"kv_connector":"SimpleCPUOffloadConnector"}'},
    "hicache": {"enable-hierarchical-cache": True},
    "lmcache": {"kv-transfer-config": '{"kv_connector":"LMCacheConnectorV1"}'},
}


def version_of(row: SupportRow) -> str:
    """A version in the row's range."""
    bounds = re.findall(r"b?\d[\w.-]*\w|\d+", row.versions.replace("..", " "))
    lower = [re.sub(r"\d+$", lambda digits: str(max(int(digits[0]) - 1, 0)), bound) for bound in bounds]
    newest = {"llama.cpp": "b11669", "ik_llama.cpp": "2026-08", "sglang": "0.5.23"}
    for version in (
        newest.get(row.engine, "0.32.0"),
        *bounds,
        *lower,
        "0.6.0",
        "0.5.0",
        "0.8.0",
        "0.10.0",
        "0.12.0",
        "2026-08-20",
    ):
        if in_versions(version, row.versions):
            return version
    raise AssertionError(f"{row.id}: no version found in {row.versions}")


def parallel_of(row: SupportRow) -> Parallel:
    sizes: dict[str, int] = {"tp": 1}
    for name, sign, number in re.findall(r"(\w+?)(>=|=|>)?(\d+)?(?:\s|$)", row.layout):
        sizes[name] = int(number or 1) + (sign == ">")
    experts = sizes.pop("ep", 0) > 0
    sizes["tp"] = max(sizes["tp"], sizes.pop("gpus", 1))
    return Parallel(ep=experts, **sizes)


def setup_of(row: SupportRow) -> Setup:
    """A setup that a row describes."""
    model = find_model(next((WITH_KIND[kind] for kind in row.layer_kind), "kimi-k2.6"))
    model = replace(model, architecture=row.architecture[0]) if row.architecture else model
    quant = row.quant[0] if row.quant else "bf16"
    checkpoint = Checkpoint(
        name="x", model="x", quant=quant, format="gguf" if quant == "gguf" else "safetensors", bytes_by_component={}
    )
    kv = row.kv[0] if row.kv else "bf16"
    recipe = Recipe(
        name="x", engine=row.engine, model="x", checkpoint="x", served_name="", kv=kv, parallel=parallel_of(row)
    )
    fork, ram, driver, cuda = "", 0, "", ""
    for key, wanted in row.settings.items():
        text = str(wanted[0] if isinstance(wanted, list) else wanted)
        value = text.lstrip("<>=") if re.match(r"[<>]=?\d", text) else text
        number: float | None = int(value) + (1 if text.startswith(">") else 0) if value.isdigit() else None
        if key == "memory_utilization":
            number = float(value)
        if key in BUILD_KEYS:
            fork = f"{fork} {text}"
        elif key == "speculate":
            recipe = replace(recipe, speculate=Speculate(method=text))
        elif key in FIELDS and text not in ("unset", "< layers"):
            if FIELDS[key].startswith("hybrid") and recipe.hybrid is None:
                recipe = replace(recipe, hybrid=Hybrid())
            recipe = with_settings(recipe, {FIELDS[key]: number if number is not None else text})
        elif text == "< layers":
            recipe = replace(recipe, hybrid=Hybrid(gpu_layers=10))
        elif key in ("flags.cpu-moe", "flags.n-cpu-moe") or (key == "offload" and text == "cpu experts"):
            recipe = replace(recipe, hybrid=recipe.hybrid or Hybrid())
        elif key == "offload":
            recipe = replace(recipe, flags={**recipe.flags, **OFFLOAD_FLAGS.get(text, {})})
        elif key.startswith(("flags.", "env.")) and text != "unset":
            plain = {"set": 1 if key.startswith("flags.") else "1"}.get(text, number if number is not None else text)
            recipe = with_settings(recipe, {key: str(plain) if key.startswith("env.") else plain})
        elif key in ("attention_backend", "moe_backend", "linear_attention", "hicache_storage"):
            name = {
                "attention_backend": "attention-backend",
                "moe_backend": "moe-backend",
                "linear_attention": "linear-attn-backend",
                "hicache_storage": "hicache-storage-backend",
            }[key]
            recipe = replace(recipe, flags={**recipe.flags, name: text})
        elif key == "expert_width":
            assert model.moe
            model = replace(model, moe=replace(model.moe, intermediate=1000))
        elif key == "shared_experts":
            assert model.moe
            model = replace(model, moe=replace(model.moe, shared_intermediate=1000))
            checkpoint = replace(checkpoint, quant="fp8-block")
        elif key == "heads_per_rank":
            recipe = replace(recipe, parallel=Parallel(tp=64 // int(text)))  # Kimi has 64 heads
        elif key == "prefix_caching":
            recipe = replace(recipe, prefix_caching=text == "true")
        elif key == "cudagraph_mode":
            recipe = replace(recipe, flags={**recipe.flags, "compilation-config": f'{{"cudagraph_mode":"{text}"}}'})
        elif key == "dp_attention":
            recipe = replace(recipe, flags={**recipe.flags, "enable-dp-attention": True})
        elif key == "slot_save":
            recipe = replace(recipe, flags={**recipe.flags, "slot-save-path": "/tmp/slots"})
        elif key == "ram":
            ram = 64 * 10**9
        elif key == "driver" and text[0].isdigit():
            driver = text
        elif key == "cuda":
            cuda = text if text[0].isdigit() else "12.8"
    gpu = row.gpu[0] if row.gpu else "sm120"
    if "gpus" in row.settings:
        gpu = ""
    return Setup(
        engine=row.engine,
        version=version_of(row),
        fork=fork.strip(),
        gpu=gpu,
        gpu_title=gpu,
        model=model,
        checkpoint=checkpoint,
        kv=kv,
        recipe=recipe,
        ram=ram,
        driver=driver,
        cuda=cuda,
    )


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_a_row_covers_the_setup_that_it_describes(row: SupportRow) -> None:
    """The row is among the rows that decide, are possible, or were overridden by a narrower one."""
    assert is_covered(row)


def is_covered(row: SupportRow) -> bool:
    support = support_for(setup_of(row))
    found = (*support.contradicted, *(match.row for match in (*support.matches, *support.possible)))
    return row in found


def test_given_cases_lead_to_a_row_or_a_symptom() -> None:
    """Of the 44 given cases at least 36 are covered: a row warns of the setup, or a line of the report is explained."""
    with (HERE / "given_cases.csv").open(encoding="utf-8", newline="") as file:
        cases = [case for case in csv.DictReader(file) if case["id"].startswith("F")]
    with (HERE.parent / "doctor/quoted_lines.csv").open(encoding="utf-8", newline="") as file:
        quotes = {row["symptom"]: row["line"] for row in csv.DictReader(file)}
    covered: list[str] = []
    open_cases: dict[str, str] = {}
    for case in cases:
        rows = [ROWS[name] for name in case["rows"].split()]
        warned = [row for row in rows if row.state != "runs" and is_covered(row)]
        lines = {name: quotes[name] for name in case["symptoms"].split() if name in quotes}
        explained = [name for name, line in lines.items() if name in search_pieces([f"{line}\n".encode()]).findings]
        if warned or explained:
            covered.append(case["id"])
        else:
            open_cases[case["id"]] = case["title"]
    assert len(cases) == 44
    assert len(covered) >= 36, open_cases
    print(f"{len(covered)} of {len(cases)} given cases covered; open: {open_cases}")
