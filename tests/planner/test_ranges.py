"""Ranges of forecasts: from results on hosts that had no part in the fit, and stated as such."""

from types import ModuleType

import pytest

from moebox.core import catalogue
from moebox.planner.speed.ranges import NOTHING_ALIKE, OLDER, RANGE_KINDS, SEVERAL_NODES, find_range, range_label
from tests.planner import rows

ACTIVE = 32_000_000_000  # parameters, among those of models with results


@pytest.fixture(scope="module", name="unseen")
def load_unseen() -> ModuleType:
    """Import the script."""
    return rows.unseen()


def test_stored_ranges_are_those_of_the_rows(unseen: ModuleType) -> None:
    """Factors, rows and sources in ranges.toml are what the script computes from unseen.csv."""
    stored = {
        tuple(row.get(name, "") for name in ("kind", "generation", "engine", "models")): row
        for row in catalogue.load_table("ranges")["range"]
    }
    computed = unseen.group_factors(unseen.load_results())
    assert stored.keys() == computed.keys()
    for group, (factor, count, sources) in computed.items():
        assert (stored[group]["rows"], stored[group]["sources"]) == (count, sources), group
        assert stored[group]["factor"] == pytest.approx(factor, abs=0.001), group


@pytest.mark.parametrize("kind", RANGE_KINDS)
def test_a_case_without_rows_is_wide_and_stated(kind: str) -> None:
    """An engine and a generation of which nothing is published: the widest pool, and the words for it."""
    alone = find_range(kind, "no-such-generation", "no-such-engine", "NoSuchModel", ACTIVE)  # type: ignore[arg-type]
    assert alone.text == NOTHING_ALIKE
    assert alone.factor > 1.5


def test_several_nodes_and_old_versions_take_no_range_of_one_new_node() -> None:
    """What was fitted is one node and newer engines: others have a group of their own, or the widest."""
    label = range_label("hopper", "vllm", "0.20.0", 1)
    assert label == "hopper"
    assert range_label("hopper", "vllm", "0.13.0", 1) == OLDER
    assert range_label("hopper", "vllm", "", 2) == SEVERAL_NODES
    kimi = "KimiK25ForConditionalGeneration"
    new, old = (find_range("serving", name, "vllm", kimi, ACTIVE) for name in (label, OLDER))
    assert old.factor > new.factor
    assert old.text.endswith("with older versions")
    nodes = find_range("decode", SEVERAL_NODES, "sglang", "DeepseekV3ForCausalLM", ACTIVE)
    assert nodes.text == NOTHING_ALIKE


def test_ranges_widen_with_the_distance_from_models_with_results(unseen: ModuleType) -> None:
    """A tiny model of a known family is forecast by the same rows, in a wider range that says so."""
    sizes, family = (ACTIVE, 10**9, 10**7), "Qwen3MoeForCausalLM"
    near, small, tiny = (find_range("serving", "hopper", "vllm", family, size) for size in sizes)
    assert near.factor < small.factor < tiny.factor / 2
    assert (near.beyond, "widened: 0.01 B active" in tiny.text) == ("", True)
    stored = catalogue.load_table("ranges")["fitted"]
    assert stored["widening"] == pytest.approx(unseen.widening_by_distance(stored["active_b"][0]), abs=0.01)


def test_small_groups_take_a_wider_one() -> None:
    """No range stands on fewer than ten rows or on a single source."""
    stored = catalogue.load_table("ranges")["range"]
    assert min(row["rows"] for row in stored) >= 10
    assert min(row["sources"] for row in stored) >= 2


def test_an_architecture_is_known_by_the_engine_it_was_fitted_under() -> None:
    """DeepSeek V4 was fitted under vLLM alone: its range under SGLang is that of other models, and wider."""
    under = {
        engine: find_range("serving", "blackwell-rtx", engine, "DeepseekV4ForCausalLM", ACTIVE)
        for engine in ("vllm", "sglang")
    }
    assert (under["vllm"].models, under["sglang"].models) == ("fitted", "other")
    assert under["sglang"].factor > 1.2 * under["vllm"].factor


def test_all_sources_left_out_in_turn_cover_four_of_five(unseen: ModuleType) -> None:
    """Of each kind 75 to 95% of all results lie in a range that their own source had no part in."""
    totals = {name: share for name, _, _, share, _ in unseen.coverage() if name.endswith(", all")}
    assert len(totals) == len(RANGE_KINDS)
    assert all(0.75 <= share <= 0.95 for share in totals.values()), totals
