"""Gains come with an interval, settings are changed one at a time, and steps are judged for a reason."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.checkpoint import deploy, resolve_model
from moebox.core import catalogue
from moebox.core.metrics import parse_prometheus
from moebox.core.recipe import Climb, Recipe, Speculate
from moebox.core.verdict import Gain, Mark
from moebox.detect.declared import parse_box
from moebox.errors import BadInput
from moebox.flows.pace import acceptance_rate, bracketing_gain, welch_gain
from moebox.flows.walk import (
    ClimbTrial,
    SettingStep,
    checks_for,
    current_value,
    decide_trial,
    list_steps,
    skip_reason,
    starting_recipe,
    startup_problem,
    unreachable_settings,
    with_setting,
)
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.verify.options import CHECK_NAMES

# vLLM 0.32 with prompt lookup, as its /metrics says it
VLLM_METRICS = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="phantom"} 26.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="phantom"} 102.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="phantom"} 54.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="phantom",position="0"} 19.0
"""

RECIPE = Recipe(
    name="r",
    engine="vllm",
    model="kimi-k2.6",
    checkpoint="moonshotai/Kimi-K2.6",
    served_name="kimi",
    speculate=Speculate(draft="a/draft"),
    climb=Climb(contexts=(65536, 98304), settings={"kv": ["fp8"], "flags.block-size": [32, 64]}),
)
POSITIVE = st.floats(0.1, 1e5)


def trial(
    verdict: Mark = "pass", *, gained: Gain | None = None, kv: int = 100, right: int = 20, why: str = "", path: str = ""
) -> ClimbTrial:
    return ClimbTrial(
        number=0,
        change="",
        path=path,
        value=None,
        recipe=RECIPE,
        verdict=verdict,
        gain=gained,
        kv_tokens=kv,
        right=right,
        asked=20,
        why=why,
    )


def test_a_gain_agrees_with_a_hand_calculation():
    """Logarithms spread by 0.0200 and 0.0182: standard error 0.0156, 3.96 degrees taken as 3, t 3.182, reach 0.0497."""
    found = welch_gain([100, 102, 98], [110, 112, 108])

    assert found
    assert found.share == pytest.approx(0.1, abs=1e-3)
    assert (found.low, found.high) == (pytest.approx(0.0469, abs=1e-3), pytest.approx(0.1563, abs=1e-3))
    assert found.is_significant


@given(st.lists(POSITIVE, min_size=2, max_size=6), st.lists(POSITIVE, min_size=2, max_size=6))
def test_the_interval_holds_the_gain_and_turns_round(before: list[float], after: list[float]):
    """B over A is the inverse of A over B."""
    there, back = welch_gain(before, after), welch_gain(after, before)

    assert there
    assert back
    assert there.low <= there.share <= there.high
    assert (1 + there.share) * (1 + back.share) == pytest.approx(1, rel=1e-6)


def test_too_little_says_nothing_and_the_same_is_no_difference():
    """No difference seen is an answer."""
    assert welch_gain([100], [200]) is None
    assert welch_gain([100, 0], [100, 100]) is None
    same = welch_gain([100, 101, 99], [100, 99, 101])
    assert same
    assert str(same).startswith("no difference seen")


def test_a_bracketed_gain_holds_both_sides_and_no_drift_passes_for_a_gain():
    """A B A: the interval covers B against each A, so what the machine gained meanwhile is inside it."""
    before, after, again = [100.0, 101, 99], [145.0, 146, 144], [144.0, 145, 146]
    gained = bracketing_gain(before, after, again)
    assert gained
    assert not gained.is_significant
    assert gained.low < 0 < 0.4 < gained.high
    steady = bracketing_gain(before, after, [99.0, 100, 101])
    assert steady
    assert steady.low > 0.4
    assert bracketing_gain(before, after, [100.0]) is None


def test_the_walk_is_context_then_guessing_then_settings():
    """One setting at a time, from the first context and without a draft."""
    assert [step.change for step in list_steps(RECIPE)] == [
        "start",
        "context 98304",
        "speculate eagle3",
        "kv fp8",
        "flags.block-size 32",
        "flags.block-size 64",
    ]
    start = starting_recipe(RECIPE)
    assert (start.context, start.speculate) == (65536, None)


def test_settings_are_found_by_path():
    """Nested ones and the engine's own flags too; misspelt ones are refused."""
    assert with_setting(RECIPE, "parallel.tp", 8).parallel.tp == 8
    assert with_setting(RECIPE, "flags.block-size", 32).flags == {"block-size": 32}
    assert with_setting(RECIPE, "hybrid.ubatch", 2048).hybrid.ubatch == 2048  # type: ignore[union-attr]
    assert with_setting(RECIPE, "speculate", "none").speculate is None
    assert with_setting(RECIPE, "speculate", "eagle3").speculate == RECIPE.speculate
    assert current_value(RECIPE, "speculate") == "eagle3"
    assert current_value(RECIPE, "flags.block-size") is None
    for path, value in (("contxt", 1), ("parallel.tq", 1), ("context", "long")):
        with pytest.raises(BadInput):
            with_setting(RECIPE, path, value)


def test_every_change_is_followed_by_checks_that_exist():
    """Whatever the setting."""
    for path in ("context", "speculate", "kv", "hybrid.mla", "flags.anything", "env.X"):
        assert set(checks_for(path)) <= set(CHECK_NAMES)
        assert "plain" in checks_for(path)


@pytest.mark.parametrize(
    ("step", "after", "kept", "says"),
    [
        ("settings", trial(gained=Gain(share=0.2, low=0.1, high=0.3)), True, "faster"),
        ("settings", trial(gained=Gain(share=-0.2, low=-0.3, high=-0.1)), False, "slower"),
        ("settings", trial(gained=Gain(share=0.01, low=-0.1, high=0.1)), False, "no difference seen"),
        ("settings", trial(gained=Gain(share=0.01, low=-0.1, high=0.1), kv=200), True, "more tokens of cache"),
        ("settings", trial(gained=Gain(share=0.5, low=0.4, high=0.6), right=17), False, "answers differ"),
        ("settings", trial("fail", why="tools: broken"), False, "tools: broken"),
        ("settings", trial(gained=Gain(share=-0.2, low=-0.5, high=0.4), kv=200), False, "not shown to be slower"),
        ("context", trial(gained=Gain(share=-0.02, low=-0.1, high=0.1)), True, "at most 10% slower (-10.0% to +10.0%)"),
        (
            "context",
            trial(gained=Gain(share=-0.151, low=-0.477, high=0.378)),
            False,
            "not shown to be slower (-47.7%",
        ),
        ("context", trial(gained=Gain(share=-0.9, low=-0.95, high=-0.8)), False, "longer, but slower: -90.0%"),
        ("context", trial(), True, "speed not measured"),
        ("context", trial(gained=Gain(share=-0.4, low=-0.5, high=-0.3)), False, "slower"),
    ],
)
def test_a_step_is_kept_or_dropped_for_a_reason(step: str, after: ClimbTrial, kept: bool, says: str):
    """Each reason in words."""
    decided, why = decide_trial(dataclasses.replace(after, path=step), trial())

    assert decided is kept
    assert says in why


def test_a_context_that_the_recipe_requires_is_kept_with_its_cost():
    """The recipe asks for 65,536 tokens: they are kept although slower, and the reason reports it."""
    slower = trial(gained=Gain(share=-0.4, low=-0.5, high=-0.3), path="context")

    assert decide_trial(slower, trial(), required_context=slower.recipe.context) == (
        True,
        "required by the recipe; slower: -40.0% (-50.0% to -30.0%)",
    )
    assert not decide_trial(slower, trial(), required_context=slower.recipe.context - 1)[0]


def test_what_need_not_be_tried_is_said():
    """Set already, or no draft to guess with."""
    best = trial()
    assert skip_reason(SettingStep(path="context", value=RECIPE.context), best, [], RECIPE) == "it is set already"
    bare = with_setting(with_setting(RECIPE, "speculate", "none"), "model", "deepseek-v3.2")
    bare = dataclasses.replace(bare, checkpoint="deepseek-ai/DeepSeek-V3.2")
    draftless = dataclasses.replace(best, recipe=bare)
    eagle = SettingStep(path="speculate", value="eagle3")
    assert skip_reason(eagle, draftless, [], bare) == "no EAGLE3 draft of DeepSeek V3.2 is known"
    assert not skip_reason(dataclasses.replace(eagle, value="mtp"), draftless, [], bare)
    unknown = dataclasses.replace(bare, model="mine", checkpoint="me/mine")
    assert skip_reason(eagle, draftless, [], unknown) == "the recipe names no draft model"


def test_a_draft_that_the_recipe_does_not_name_is_the_catalogues():
    """A plan starts without one and says that a climb tries it: it was passed over for want of a name."""
    bare = with_setting(RECIPE, "speculate", "none")
    best = dataclasses.replace(trial(), recipe=bare)
    assert not skip_reason(SettingStep(path="speculate", value="eagle3"), best, [], bare)
    draft = with_setting(bare, "speculate", "eagle3").speculate
    assert draft
    assert draft.draft in catalogue.find_model("kimi-k2.6").drafts
    own = dataclasses.replace(bare, model="deepseek-v3.2", checkpoint="deepseek-ai/DeepSeek-V3.2")
    assert with_setting(own, "speculate", "mtp").speculate == Speculate(method="mtp", tokens=1)


@pytest.mark.parametrize(
    ("own", "walk"),
    [(8192, [8192, 65536, 98304]), (65536, [65536, 98304]), (131072, [65536, 98304]), (0, [65536, 98304])],
)
def test_a_climb_begins_no_higher_than_the_recipe(own: int, walk: list[int]):
    """A recipe planned for 8,192 tokens was begun with 65,536, which did not fit, and the climb was over."""
    recipe = dataclasses.replace(RECIPE, context=own)
    assert starting_recipe(recipe).context == walk[0]
    assert [step.value for step in list_steps(recipe) if step.path == "context"] == walk[1:]
    alone = dataclasses.replace(recipe, climb=Climb(contexts=(), speculate=()))
    assert starting_recipe(alone) == alone


def test_what_the_recipe_has_and_the_walk_never_comes_to_is_said():
    """A recipe of 131,072 tokens whose table ends at 98,304 came out shorter, without a reason."""
    longer = dataclasses.replace(RECIPE, context=131072, speculate=Speculate(method="mtp", tokens=1))

    assert unreachable_settings(longer) == {
        "context 131072": "the recipe's own, which climb.contexts leaves out",
        "speculate mtp": "the recipe's own, which climb.speculate leaves out",
    }
    assert not unreachable_settings(dataclasses.replace(RECIPE, context=8192))


def test_what_is_known_not_to_start_is_not_tried():
    """An fp8 cache on GPUs whose shared memory is too small: said, and no engine is started for it."""
    box = parse_box("8x-rtx-pro-6000-server")
    recipe = choose_plan(box, *resolve_model("kimi-k2.6"), Constraints(engine="vllm", tp=8)).recipe
    assert not startup_problem(deploy(recipe, box))
    assert "shared memory" in startup_problem(deploy(with_setting(recipe, "kv", "fp8"), box))


def test_acceptance_is_read_from_the_engines_counters():
    """Accepted over guessed; SGLang's own rate where it has no counters."""
    vllm = parse_prometheus(VLLM_METRICS)
    later = VLLM_METRICS.replace(" 102.0", " 302.0").replace(" 54.0", " 174.0")

    assert acceptance_rate({}, vllm) == pytest.approx(54 / 102)
    assert acceptance_rate(vllm, parse_prometheus(later)) == pytest.approx(0.6)
    assert acceptance_rate({}, parse_prometheus('sglang:spec_accept_rate{model_name="k2"} 0.7\n')) == 0.7
    assert acceptance_rate({}, {}) is None
