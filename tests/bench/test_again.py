"""How to reproduce, in a report, reproduces: the flags it prints are parsed back to what was asked."""

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cyclopts import App
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.assess.commands import bench_commands
from moebox.bench.command import bench_flags
from moebox.bench.search import parse_slo
from moebox.cli import main
from moebox.cli.bench import BenchArgs, BenchPlan, make_bench_plan, parse_counts
from moebox.cli.flags import Settings
from moebox.core import result
from moebox.core.measure import Load, Slo, Workload
from moebox.core.result import PrefillDecode, result_document
from moebox.core.workload_file import shipped_workloads
from moebox.runs import loads
from moebox.runs.record import LoadResult
from moebox.store import Run
from tests.bench.example import measurement
from tests.bench.server import good, serving
from tests.sampling import one_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What `moebox bench` makes of its flags."""

    plan: BenchPlan
    slo: Slo | None = None
    tests: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    repeat: int = 3

    @property
    def asked(self) -> tuple[object, ...]:
        """All of it but a preset's name."""
        return self.plan.workload, self.plan.loads, self.plan.warmup, self.slo, self.tests, self.repeat


def words_of(flags: list[str]) -> Words:
    """The command line's own reading of these flags."""
    app = App()

    @app.default
    def bench(
        asked: BenchArgs = BenchArgs(),
        workload: str = "",
        slo: str = "",
        pp: str = "",
        tg: str = "",
        settings: Settings = None,
    ) -> Words:
        plan = make_bench_plan(asked, workload, settings)
        return Words(
            plan=plan,
            slo=parse_slo(slo) if slo else None,
            tests=(parse_counts("--pp", pp), parse_counts("--tg", tg)),
            repeat=plan.repeat,
        )

    found: Words = app(flags, exit_on_error=False, print_error=False, result_action="return_value")
    return found


def parsed(flags: list[str]) -> BenchPlan:
    """The workload and loads of these flags."""
    return words_of(flags).plan


HALF = settings(max_examples=settings.default.max_examples // 2)  # a command line takes long to parse
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
        extra=st.sampled_from([{}, {"top_k": 1, "chat_template_kwargs": {"thinking": False}}]),
    ),
    st.builds(Workload, kind=st.just("turns"), turns=st.integers(2, 40), think_s=st.sampled_from([0.0, 0.5, 2.0])),
    st.builds(
        Workload,
        kind=st.just("prefix"),
        prefix_tokens=st.integers(1, 9999),
        prefixes=st.integers(1, 9),
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
    lambda gaps, **others: Load(**gaps, **others),
    st.sampled_from([{"arrivals": "constant"}, {"burstiness": 0.25}, {}]),
    rate=st.sampled_from([0.5, 4.0, 100.0]),
    requests=st.integers(1, 500),
    stall_s=st.sampled_from([1800.0, 5.0]),
)


@HALF
@given(workload=WORKLOADS, loads=st.lists(CLOSED, min_size=1, max_size=4) | st.lists(OPEN, min_size=1, max_size=3))
def test_flags_are_read_back_as_what_was_asked(workload: Workload, loads: list[Load]) -> None:
    """Every load of the sweep, and nothing else, over as many commands as it takes."""
    plans = [parsed(flags) for flags in bench_flags(workload, loads)]

    assert all(plan.workload == workload for plan in plans)
    assert sorted(repr(load) for plan in plans for load in plan.loads) == sorted(repr(load) for load in loads)


def flag(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """The flag with one of these values, or not at all."""
    head, _, path = name.partition(" ")
    return st.just([]) | values.map(lambda value: [head, f"{path}={value}" if path else value])


def texts(low: int, high: int) -> st.SearchStrategy[str]:
    """Whole numbers as they are typed."""
    return st.integers(low, high).map(str)


def switch(name: str) -> st.SearchStrategy[list[str]]:
    """The flag, or not."""
    return st.sampled_from([[], name.split()])


TIMES = st.builds("{}{}".format, st.integers(1, 900), st.sampled_from(["", "ms", "s", "m"])) | st.just("0.0125s")
LISTS = st.lists(st.integers(1, 300), min_size=1, max_size=4).map(lambda found: ",".join(map(str, found)))
RATES = st.lists(st.floats(0.001, 99999.0), min_size=1, max_size=3).map(lambda found: ",".join(map(repr, found)))
BOUNDS = (
    flag("--set load.timeout_s", TIMES),
    flag("--set load.stall_s", TIMES),
    flag("--set load.workers", texts(1, 4)),
)
PROMPTS = (
    flag("--set workload.seed", texts(0, 10**9)),
    switch("--set workload.reuse_prompts=true"),
    flag("--set workload.api", st.sampled_from(["chat", "completions"])),
    switch("--set workload.ignore_eos=false"),
    flag("--set workload.extra", st.just('{"top_k": 1, "chat_template_kwargs": {"thinking": false}}')),
)
TIMED = TIMES.filter(lambda text: not text.isdigit())
LIMITS = flag("--slo", st.builds("ttft={},tpot={}".format, TIMED, TIMED) | st.builds("e2e={}".format, TIMED))
LOAD = (
    flag("--requests", texts(1, 5000)),
    flag("--duration", TIMES),
    flag("--set load.ramp_s", TIMES),
    flag("--set warmup", texts(0, 20)),
    LIMITS,
)
PACES = (flag("--concurrency", LISTS),)
OPEN_LOOP = (
    flag("--concurrency", texts(1, 300)),
    RATES.map(lambda rates: ["--rate", rates]),
    st.just(["--set", "load.arrivals=constant"]) | flag("--set load.burstiness", st.floats(0.01, 9.0).map(repr)),
)
KINDS = {
    "random": (),
    "code": (),
    "turns": (flag("--set workload.turns", texts(1, 40)), flag("--set workload.think_s", TIMES)),
    "prefix": (
        texts(1, 9999).map(lambda tokens: ["--set", f"workload.prefix_tokens={tokens}"]),
        flag("--set workload.prefixes", texts(1, 9)),
    ),
}
LENGTHS = (flag("--input", texts(1, 10**5)), flag("--output", texts(1, 10**5)))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Flags of one workload, or of a preset with what replaces parts of it, at any load."""
    if draw(st.booleans()):
        start = ["--workload", draw(st.sampled_from(sorted(shipped_workloads())))]
        kind = shipped_workloads()[start[1]].workload.kind
    else:
        kind = draw(st.sampled_from(sorted(KINDS)))
        start = ["--workload", kind]
    several = (*KINDS[kind], *LENGTHS, *PROMPTS, *BOUNDS, *LOAD)
    several += draw(st.sampled_from([PACES, OPEN_LOOP]))
    return start + [word for each in several for word in draw(each)]


@st.composite
def lines_of_tests(draw: st.DrawFn) -> list[str]:
    """Flags of --pp and --tg."""
    lengths = [["--pp", draw(LISTS)], ["--tg", draw(LISTS)]]
    several = (flag("--set repeat", texts(1, 9)), *PROMPTS, *BOUNDS)
    kept = draw(st.sampled_from([lengths, lengths[:1], lengths[1:]]))
    return [word for each in (*kept, *(draw(one) for one in several)) for word in each]


def typed_levels(stored: dict[str, object]) -> list[LoadResult]:
    """What the report makes of a file with this document."""
    levels = loads.parse_file(json.loads(json.dumps(stored)), Path("result.json"))
    assert levels is not None
    return levels


def printed(levels: list[LoadResult]) -> list[list[str]]:
    """The flags of every `moebox bench` in the report of these levels."""
    return [shlex.split(line)[3:] for line in bench_commands(levels)]


@HALF
@given(command_lines())
def test_what_was_typed_is_stored_and_printed_and_asks_the_same_again(typed: list[str]) -> None:
    """Command line -> files of measurements -> the report's commands -> command line."""
    before = words_of(typed)
    plan = before.plan
    levels = []
    for load in plan.loads:
        stored = result_document(measurement(workload=plan.workload, load=load, warmup=plan.warmup, slo=before.slo))
        levels += typed_levels(stored)
    again = [words_of(flags) for flags in printed(levels)]

    assert all((each.plan.workload, each.plan.warmup) == (plan.workload, plan.warmup) for each in again), again
    assert {each.slo for each in again} == {before.slo}
    loads = [load for each in again for load in each.plan.loads]
    assert sorted(map(repr, loads)) == sorted(map(repr, plan.loads))


ROW = result.PrefillDecodeRow(
    test="", cold=True, tokens=0, mean_tok_s=1.0, std_tok_s=0.0, tries=1, mean_ttft_ms=1.0, prompt_tokens=9.0
)  # fmt: skip


@HALF
@given(lines_of_tests())
def test_tests_that_were_typed_are_printed_as_they_were(typed: list[str]) -> None:
    """The same of --pp and --tg."""
    before = words_of(typed)
    rows = tuple(
        replace(ROW, test=f"{kind}{n}", tokens=n)
        for kind, lengths in zip(("pp", "tg"), before.tests, strict=True)
        for n in dict.fromkeys(lengths)
    )
    stored = PrefillDecode(
        tool="moebox 0", date="", model_id="m", tokenizer_id="", rows=rows, repeat=before.repeat,
        workload=before.plan.workload, load=before.plan.loads[0],
    )  # fmt: skip
    (flags,) = printed(typed_levels(result_document(stored)))
    again = words_of(flags)

    assert again.tests == tuple(tuple(dict.fromkeys(lengths)) for lengths in before.tests)
    assert (again.repeat, again.plan) == (before.repeat, before.plan)


@pytest.mark.parametrize(
    "flags",
    one_in(
        2,
        [
            "--workload turns --set workload.turns=3 --input 64 --output 3 --set workload.think_s=0s --requests 6",
            "--pp 32,64 --tg 8 --set repeat=2",
            "--input 16 --output 4 --concurrency 1,2 --requests 5 --set warmup=2 --set workload.seed=9",
            "--workload prefix --set workload.prefix_tokens=40 --input 8 --output 2 --rate 50 --requests 4",
        ],
    ),
)
def test_a_report_says_how_to_measure_the_same_again(flags: str) -> None:
    """The command in the report of a run asks what the run asked."""
    run = Run.create("again")
    run.write_file("recipe.toml", 'name = "r"\nengine = "vllm"\nmodel = "m"\ncheckpoint = "c"\nserved_name = "m"\n')
    with serving(good) as server:
        assert main(["bench", server.url, "--model", "m", *flags.split(), "--run", run.id]) == 0
    assert main(["report", run.id, "--md", "-o", str(run.path / "report.html")]) == 0
    text = (run.path / "report.md").read_text()
    printed = [line for line in text.splitlines() if line.startswith("moebox bench recipe.toml")]
    assert len(printed) == 1

    output = shlex.split(printed[0])[3:]
    if "--pp" in flags:
        assert output == flags.split()
        return
    now, before = parsed(output), parsed(flags.split())
    assert (now.workload, now.loads, now.warmup) == (before.workload, before.loads, before.warmup)


def test_figures_of_others_say_what_they_can() -> None:
    """Published rows: prefill and decode alone, turns by their name, and counts of requests."""
    levels = [
        LoadResult(name="one stream", tg_tok_s=18.9, pp_tok_s=185.0),
        LoadResult(name="t", workload="16-turn conversations", concurrency=1.0, tg_tok_s=18.85),
        LoadResult(
            name="l", input_tokens=8192.0, output_tokens=2048.0, requests=512.0, concurrency=32.0, output_tok_s=900.0
        ),
    ]

    assert bench_commands(levels) == [
        "moebox bench recipe.toml --pp 512 --tg 128",
        "moebox bench recipe.toml --workload turns --set workload.turns=16 --concurrency 1",
        "moebox bench recipe.toml --input 8192 --output 2048 --requests 512 --concurrency 32",
    ]


def test_a_prompts_file_is_named(tmp_path: Path) -> None:
    """With its path, as it was given."""
    file = tmp_path / "my prompts.jsonl"
    file.write_text('{"prompt": "x"}\n')
    workload = Workload(kind="prompts", file=str(file))
    (flags,) = bench_flags(workload, [Load(concurrency=1, requests=4)])

    assert parsed(flags).workload == workload
