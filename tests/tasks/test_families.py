"""Jobs are what they say: made from their seed, solved by their reference and not by doing nothing."""

import random

import pytest

from moebox.errors import UnknownName
from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.families.code_jobs import evaluate_expression, visible_bugs
from moebox.tasks.families.material import ModulePart, draw_parts, module_parts
from moebox.tasks.result import LEVELS, Level
from moebox.tasks.score import changed_protected_files, run_hidden_checks, values_equal
from tests.sampling import one_in

EACH = [(family, level) for family in FAMILIES for level in LEVELS]


@pytest.mark.parametrize("each", one_in(4, EACH))
def test_the_reference_passes_and_the_start_does_not(each: tuple[str, Level]):
    """Every hidden test runs beside the reference, and some of them fail before any work is done."""
    family, level = each
    job = make_job(family, level, 4)
    start = {name: text.encode() for name, text in job.files.items()}
    solved = {**start, **{name: text.encode() for name, text in job.solution.items()}}

    assert [each.passed for each in run_hidden_checks(job, solved)] == [len(each.snippets) for each in job.checks]
    assert any(each.passed < each.of for each in run_hidden_checks(job, start))
    assert changed_protected_files(job, solved) == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_is_a_job(family: str):
    """The same seed gives the same job, another another."""
    assert make_job(family, "medium", 7) == make_job(family, "medium", 7)
    assert make_job(family, "medium", 7).instruction != make_job(family, "medium", 8).instruction or (
        make_job(family, "medium", 7).files != make_job(family, "medium", 8).files
    )


def test_harder_is_more():
    """More files, more hidden tests, or more to do."""
    for family in FAMILIES:
        easy, hard = make_job(family, "easy", 1), make_job(family, "hard", 1)

        size = [len(str(job.files)) + len(job.instruction) + len(str(job.solution)) for job in (easy, hard)]
        assert size[0] < size[1], family


def test_the_long_reply_is_long():
    """More than 8,000 tokens at four characters a token, which is more than code has."""
    assert len(make_job("long-reply", "easy", 3).solution["reply.py"]) / 4 > 7_500


def test_a_plan_takes_thirty_calls():
    """A read and a write for each room."""
    assert 2 * len(make_job("plan", "medium", 0).solution) >= 30


@pytest.mark.parametrize("part", module_parts(), ids=lambda part: part.name)
def test_every_bug_of_a_part_is_seen_by_a_check_with_any_constants(part: ModulePart):
    """A repair job whose fault no hidden test sees would be solved without work."""
    rng = random.Random(part.name)
    for _ in range(20):
        drawn = next(one for one in draw_parts(rng, len(module_parts())) if one.name == part.name)
        checks = [text for text in drawn.checks if "m.raised" not in text]
        right = [evaluate_expression(drawn.source, text) for text in checks]
        assert len(visible_bugs(drawn)) >= 2
        for bug in visible_bugs(drawn):
            broken = drawn.source.replace(*bug, 1)
            assert broken != drawn.source
            assert [evaluate_expression(broken, text) for text in checks] != right


def test_values_are_compared_as_json_is():
    """Numbers to nine digits, True is not 1, order counts in lists and not in objects."""
    assert values_equal({"a": [1, 2.0000000000001]}, {"a": [1.0, 2]})
    assert not values_equal(True, 1)
    assert not values_equal([1, 2], [2, 1])
    assert not values_equal({"a": 1}, {"a": 1, "b": 2})
    assert not values_equal("1", 1)


def test_unknown_names_are_reported():
    """With the nearest known one."""
    with pytest.raises(UnknownName, match="family"):
        make_job("repairs", "easy", 0)
