"""How to reproduce, in a report, reproduces: the flags it prints are parsed back to what was asked."""

import shlex
from pathlib import Path

import pytest
from cyclopts import App
from hypothesis import given
from hypothesis import strategies as st

from moebox.bench.command import flags_of
from moebox.cli import main
from moebox.cli.bench_plan import Asked, Plan, plan_of
from moebox.core.measure import Load, Workload
from moebox.report.sections.reproduce import benched
from moebox.report.story import Level
from moebox.store import Run
from tests.bench.server import good, serving


def parsed(flags: list[str]) -> Plan:
    """What `moebox bench` makes of these flags."""
    app = App()

    @app.default
    def bench(asked: Asked = Asked()) -> Asked:  # noqa: B008
        return asked

    return plan_of(app(flags, exit_on_error=False, print_error=False, result_action="return_value"), "")


WORKLOADS = st.one_of(
    st.builds(
        Workload,
        kind=st.sampled_from(["random", "code"]),
        input_tokens=st.integers(1, 10**5),
        output_tokens=st.integers(1, 10**5),
        seed=st.integers(0, 99),
        reuse_prompts=st.booleans(),
        api=st.sampled_from(["chat", "completions"]),
        ignore_eos=st.booleans(),
        think_s=st.just(1.0),
        extra=st.sampled_from([{}, {"top_k": 1, "chat_template_kwargs": {"thinking": False}}]),
    ),
    st.builds(Workload, kind=st.just("turns"), turns=st.integers(2, 40), think_s=st.sampled_from([0.0, 0.5, 2.0])),
    st.builds(
        Workload,
        kind=st.just("prefix"),
        prefix_tokens=st.integers(1, 9999),
        prefixes=st.integers(1, 9),
        think_s=st.just(1.0),
    ),
)
CLOSED = st.builds(
    Load,
    concurrency=st.integers(1, 64),
    requests=st.integers(64, 5000),
    ramp_s=st.sampled_from([0.0, 2.5]),
    timeout_s=st.sampled_from([7200.0, 60.0]),
    workers=st.integers(0, 3),
)
OPEN = st.builds(
    Load,
    rate=st.sampled_from([0.5, 4.0, 100.0]),
    requests=st.integers(1, 500),
    arrivals=st.sampled_from(["poisson", "constant"]),
    burstiness=st.sampled_from([1.0, 0.25]),
    stall_s=st.sampled_from([1800.0, 5.0]),
)


@given(workload=WORKLOADS, loads=st.lists(CLOSED, min_size=1, max_size=4) | st.lists(OPEN, min_size=1, max_size=3))
def test_flags_are_read_back_as_what_was_asked(workload: Workload, loads: list[Load]) -> None:
    """Every load of the sweep, and nothing else, over as many commands as it takes."""
    plans = [parsed(flags) for flags in flags_of(workload, loads)]

    assert all(plan.workload == workload for plan in plans)
    assert sorted(repr(load) for plan in plans for load in plan.loads) == sorted(repr(load) for load in loads)


@pytest.mark.parametrize(
    "flags",
    [
        ["--workload", "turns", "--turns", "3", "--input", "64", "--output", "3", "--think", "0s", "--requests", "6"],
        ["--pp", "32,64", "--tg", "8", "--repeat", "2"],
        ["--input", "16", "--output", "4", "--concurrency", "1,2", "--requests", "5", "--warmup", "2", "--seed", "9"],
        ["--workload", "prefix", "--prefix", "40", "--input", "8", "--output", "2", "--rate", "50", "--requests", "4"],
    ],
)
def test_a_report_says_how_to_measure_the_same_again(flags: list[str]) -> None:
    """The command in the report of a run asks what the run asked."""
    run = Run.create("again")
    run.write("recipe.toml", 'name = "r"\nengine = "vllm"\nmodel = "m"\ncheckpoint = "c"\nserved_name = "m"\n')
    with serving(good) as server:
        assert main(["bench", server.url, "--model", "m", *flags, "--run", run.id]) == 0
    assert main(["report", run.id, "--md", "-o", str(run.path / "report.html")]) == 0
    text = (run.path / "report.md").read_text()
    printed = [line for line in text.splitlines() if line.startswith("moebox bench recipe.toml")]
    assert len(printed) == 1

    said = shlex.split(printed[0])[3:]
    if "--pp" in flags:
        assert said == flags
        return
    now, before = parsed(said), parsed(flags)
    assert (now.workload, now.loads, now.warmup) == (before.workload, before.loads, before.warmup)


def test_figures_of_others_say_what_they_can() -> None:
    """Published rows: prefill and decode alone, turns by their name, and counts of requests."""
    levels = [
        Level(name="one stream", tg_tok_s=18.9, pp_tok_s=185.0),
        Level(name="t", workload="16-turn conversations", concurrency=1.0, tg_tok_s=18.85),
        Level(
            name="l", input_tokens=8192.0, output_tokens=2048.0, requests=512.0, concurrency=32.0, output_tok_s=900.0
        ),
    ]

    assert benched(levels) == [
        "moebox bench recipe.toml --pp 512 --tg 128",
        "moebox bench recipe.toml --workload turns --turns 16 --concurrency 1",
        "moebox bench recipe.toml --input 8192 --output 2048 --requests 512 --concurrency 32",
    ]


def test_a_prompts_file_is_named(tmp_path: Path) -> None:
    """With its path, as it was given."""
    file = tmp_path / "my prompts.jsonl"
    file.write_text('{"prompt": "x"}\n')
    workload = Workload(kind="prompts", file=str(file), think_s=1.0)
    (flags,) = flags_of(workload, [Load(concurrency=1, requests=4)])

    assert parsed(flags).workload == workload
