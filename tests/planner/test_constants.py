"""The fitted constants are plausible, and tables name their sources."""

import pytest

from moebox.core import catalogue

SHARES = (
    "dense_bw",
    "experts",
    "gemm",
    "attention_bw",
    "attention_flops",
    "prefill_attention",
    "bandwidth",
    "bus",
    "accept",
    "ram",
    "ram_measured",
    "numa",
    "gpu_bw",
    "upload",
)
ROWS = [
    (table, place, row)
    for table in ("engine", "experts", "link", "draft", "host")
    for place, row in enumerate(catalogue.load_table("efficiency")[table])
]


@pytest.mark.parametrize(("table", "place", "row"), ROWS, ids=lambda value: str(value)[:20])
def test_shares_are_shares(table: str, place: int, row: dict[str, object]) -> None:
    """No share is above 1: 1.1 of 1,792 GB/s came from a misread 1,597 GB/s.

    Operations are shares of the bf16 rate, which 8-bit products have twice and 4-bit ones four times on Blackwell.
    """
    for name in SHARES:
        value = row.get(name)
        if isinstance(value, float):
            assert 0 < value <= 1.0, (table, name)
    if table == "experts":
        fastest = {"nvfp4": 4.0, "mxfp4": 2.0}.get(str(row["quant"]), 1.0) if row["generation"] == "blackwell" else 1.0
        assert row["flops"] <= fastest, row  # type: ignore[operator]


def test_editions_differ() -> None:
    """The Server Edition has slower memory than the Workstation and Max-Q editions (NVIDIA's datasheets)."""
    rates = {name: catalogue.find_gpu(f"rtx-pro-6000-{name}").bandwidth for name in ("server", "workstation", "max-q")}
    assert rates == {"server": 1_597 * 10**9, "workstation": 1_792 * 10**9, "max-q": 1_792 * 10**9}


def test_every_checkpoint_names_its_source() -> None:
    """Each checkpoint names where its bytes come from, or that it was not verified."""
    for model in catalogue.models():
        for checkpoint in catalogue.published_checkpoints(model):
            assert checkpoint.source, (model, checkpoint.name)
            if "was not seen" in checkpoint.source:
                assert checkpoint.unverified, (model, checkpoint.name)
