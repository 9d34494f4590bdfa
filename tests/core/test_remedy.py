"""A remedy is never what the user already has: over all symptoms and all rows of the matrix."""

import re

import pytest

from moebox.core.recipe import Recipe
from moebox.core.setting import with_settings
from moebox.core.support_matrix import SupportRow, support_rows
from moebox.core.symptom import Symptom, choose_remedy, missing_changes, symptoms
from moebox.doctor.logs import make_finding

RECIPE = Recipe(name="any", engine="vllm", model="kimi-k2.6", checkpoint="int4", served_name="any")
WITH_CHANGE = [each for each in symptoms() if each.change]
ROWS = [row for rows in support_rows().values() for row in rows if row.change]


@pytest.mark.parametrize("symptom", WITH_CHANGE, ids=lambda symptom: symptom.id)
def test_no_symptom_advises_what_the_recipe_has(symptom: Symptom) -> None:
    """With the change in the recipe, a finding gives another remedy and no change; without it, the usual one."""
    change = {path: 64 if isinstance(value, str) and "{" in value else value for path, value in symptom.change.items()}
    if any(path.startswith("speculate.") for path in change):
        pytest.skip("needs a recipe with drafts")
    cured = with_settings(RECIPE, change)
    groups = "".join(f"(?P<{value[1:-1]}>64)" for value in symptom.change.values() if "{" in str(value))
    match = re.match(groups, "64" * groups.count("64"))
    assert match
    before = make_finding(symptom, match, "a line", 1, RECIPE)
    after = make_finding(symptom, match, "a line", 1, cured)
    assert not missing_changes(cured, before.change)
    assert after.change == {}
    assert after.remedy != symptom.remedy
    assert "already" in after.remedy
    if missing_changes(RECIPE, change) == change:
        assert before.remedy == symptom.remedy


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_row_advises_what_the_recipe_has(row: SupportRow) -> None:
    """The settings of a fix that the recipe has are left out; if all are there, the next best is shown."""
    usable = {path: value for path, value in row.change.items() if not path.startswith(("speculate.", "hybrid."))}
    cured = with_settings(RECIPE, usable)
    remedy, change = choose_remedy(cured, remedy=row.fix, change=usable)
    assert change == {}
    assert not usable or ("already" in remedy and remedy.partition("; ")[2])


def test_a_newer_version_is_no_remedy_for_a_recipe_that_has_it() -> None:
    """A symptom of 0.15 seen with 0.20 has another cause, and the advice says so."""
    symptom = next(each for each in symptoms() if each.id == "moe-flashinfer-device")
    match = re.match("", "")
    assert match
    newer = with_settings(RECIPE, {"engine_version": "0.20.0"})
    finding = make_finding(symptom, match, "a line", 1, newer)
    assert "the recipe runs 0.20.0" in finding.remedy
    older = with_settings(RECIPE, {"engine_version": "0.15.0"})
    assert make_finding(symptom, match, "a line", 1, older).remedy == symptom.remedy


def test_a_change_that_is_there_in_part_names_the_rest() -> None:
    """Two settings, of which the recipe has one."""
    recipe = with_settings(RECIPE, {"env.NCCL_P2P_DISABLE": "1"})
    change = {"env.NCCL_P2P_DISABLE": "1", "flags.disable-custom-all-reduce": True}
    assert choose_remedy(recipe, remedy="both", change=change) == ("both", {"flags.disable-custom-all-reduce": True})
