"""The symptom base as data: complete, applicable, and its changes are changes a recipe can take."""

import dataclasses
import re

import pytest

from moebox.core.recipe import Recipe, Speculate
from moebox.core.setting import with_settings
from moebox.core.symptom import Symptom, predicted_symptoms, symptoms
from moebox.core.versions import version_in_range
from moebox.errors import BadInput

KIMI = Recipe(
    name="kimi", engine="vllm", model="kimi-k2.6", checkpoint="moonshotai/Kimi-K2.6", served_name="kimi", kv="fp8"
)


def called(name: str) -> Symptom:
    """One symptom by id."""
    return next(one for one in symptoms() if one.id == name)


def test_there_are_at_least_fifty_symptoms_that_logs_show() -> None:
    """Each with cause, remedy and source, under a name of its own."""
    assert sum(bool(one.pattern) for one in symptoms()) >= 50
    assert len({one.id for one in symptoms()}) == len(symptoms())
    assert all(one.cause and one.remedy and one.source for one in symptoms())
    assert all(bool(one.pattern) == (one.kind in ("log", "frame", "words")) for one in symptoms())


@pytest.mark.parametrize("symptom", [one for one in symptoms() if one.change], ids=lambda one: one.id)
def test_a_remedy_is_a_change_that_a_recipe_can_take(symptom: Symptom) -> None:
    """Every path exists, every value has the right type; groups named in a change are in the pattern."""
    groups = set(re.compile(symptom.pattern).groupindex)
    wanted = {value[1:-1] for value in symptom.change.values() if isinstance(value, str) and value.startswith("{")}
    assert wanted <= groups
    filled = {
        path: (64 if isinstance(value, str) and value[:1] == "{" else value) for path, value in symptom.change.items()
    }
    start = dataclasses.replace(KIMI, speculate=Speculate())
    assert with_settings(start, filled) is not start


def test_fp8_cache_on_sm120_is_foreseen_and_bf16_is_not() -> None:
    """The stock wheel crashes with MLA and an fp8 cache on SM120; the community image does not."""
    known = {"engine": "vllm", "version": "0.32.0", "sm": "12.0", "model": "kimi-k2.6"}
    assert "smem-vllm-mla-fp8" in [one.id for one in predicted_symptoms(**known, recipe=KIMI)]
    calm = with_settings(KIMI, {"kv": "bf16", "max_seqs": 64})
    assert "smem-vllm-mla-fp8" not in [one.id for one in predicted_symptoms(**known, recipe=calm)]
    patched = with_settings(KIMI, {"runtime.preset": "community"})
    assert "smem-vllm-mla-fp8" not in [one.id for one in predicted_symptoms(**known, recipe=patched)]
    assert "smem-vllm-mla-fp8" not in [one.id for one in predicted_symptoms(**{**known, "sm": "9.0"}, recipe=KIMI)]


def test_what_is_not_known_contradicts_nothing() -> None:
    """An engine, version or GPU that is not given may match; a different one does not."""
    conditions = called("smem-vllm-mla-fp8").applies
    assert conditions.covers()
    assert conditions.covers(engine="vllm", version="0.32", sm="12.0")
    assert not conditions.covers(engine="sglang")
    assert not conditions.covers(engine="vllm", sm="9.0")


@pytest.mark.parametrize(
    ("version", "wanted", "matches"),
    [
        ("0.25.1", ">=0.24,<0.28", True),
        ("0.28", ">=0.24,<0.28", False),
        ("0.32.0", ">=0.24", True),
        ("0.5.6.post2", "<0.5.7", True),
        ("b11669", ">=b11000", True),
        ("", ">=0.24", True),
        ("", "<0.28", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, wanted: str, matches: bool) -> None:
    """An unknown version is taken for the newest, which old faults do not concern."""
    assert version_in_range(version, wanted) is matches


def test_a_number_in_the_line_becomes_the_change() -> None:
    """vLLM reports how long a context would fit."""
    symptom = called("oom-context-too-long")
    line = "is larger than the available KV cache memory (1.0 GiB). the estimated maximum model length is 155328."
    match = re.search(symptom.pattern, line)
    assert symptom.recipe_changes(match) == {"context": 155328}
    assert symptom.recipe_changes(None) == {}


def test_a_path_reads_and_changes_one_setting() -> None:
    """Fields, nested fields, flags and variables; what is not there reads as None."""
    changed = with_settings(KIMI, {"parallel.dcp": 8, "flags.max-num-seqs": 64, "env.A.B": "1", "speculate.tokens": 2})
    assert [changed.get(path) for path in ("parallel.dcp", "flags.max-num-seqs", "env.A.B")] == [8, 64, "1"]
    assert changed.get("speculate.tokens") == 2
    assert KIMI.get("speculate.tokens") is None
    assert with_settings(changed, {"flags.max-num-seqs": None}).flags == {}
    with pytest.raises(BadInput, match=r"no setting 'parallel\.dpc'"):
        with_settings(KIMI, {"parallel.dpc": 2})
    with pytest.raises(BadInput, match="context must be a whole number"):
        with_settings(KIMI, {"context": "long"})
