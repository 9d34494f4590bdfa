"""A against B: losses are seen, nothing is seen where nothing is, and both sides are measured in turn."""

import dataclasses
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.endpoint import Endpoint
from moebox.flows import compare, pace
from moebox.flows.answers import AnswerChange, ServerAnswer, sign_test
from moebox.flows.compare import CompareEffort, MeasuredSide, SideListener, compare_sides, measure_sides
from moebox.flows.jobs import compare_results, find_lost_work
from moebox.flows.pace import SpeedRounds, paired_gain, student_t, welch_gain
from moebox.store import Run
from moebox.tasks.result import JobResult

from ..bench.server import HEAD, Peer, chunk, event, tail
from ..bench.server import serving as servers
from ..tasks.conftest import serving as agents
from ..verify.oracle.app import MODEL, serving


@pytest.fixture(scope="module")
def oracle() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path))


def side(name: str, said: list[ServerAnswer], tok_s: tuple[float, ...] = (100.0, 101.0, 99.0)) -> MeasuredSide:
    pace = SpeedRounds(concurrency=1, tok_s=tok_s, ttft_ms=(10.0,) * len(tok_s))
    return MeasuredSide(name=name, answers_given=tuple(said), paces=(pace,), acceptance=None)


def said(family: str, number: int, *, right: bool = True, valid: bool = True) -> ServerAnswer:
    return ServerAnswer(family=family, question=f"{family} {number}", text=f"{right} {valid}", right=right, valid=valid)


def test_lost_tool_calls_make_b_worse():
    """Even where the calls were wrong on A too: there they were calls, on B they are not."""
    plain = [said("plain", number) for number in range(20)]
    a = [*plain, *(said("tool_call", number, right=False) for number in range(6))]
    b = [*plain, *(said("tool_call", number, right=False, valid=False) for number in range(6))]
    found = compare_sides(side("A", a), side("B", b))

    assert not found.as_good
    assert found.verdict == "B is worse: valid tool calls: lost 6 of 6"
    assert compare_sides(side("B", b), side("A", a)).as_good


def test_lost_json_makes_b_worse():
    """In the same way."""
    a = [said("json_schema", number, right=False) for number in range(5)]
    b = [dataclasses.replace(one, valid=False) for one in a]

    assert "valid JSON: lost 5 of 5" in compare_sides(side("A", a), side("B", b)).verdict


def test_a_server_that_loses_its_tool_calls_is_worse_for_a_person(oracle: str, capsys: pytest.CaptureFixture[str]):
    """Calls written into the text, as a missing parser does: exit code 1, and the reason."""
    words = ["compare", f"{oracle}/correct/v1", f"{oracle}/calls-as-text/v1", "--model", MODEL]
    code = main([*words, "--set", "questions=10", "--set", "rounds=2", "--concurrency", "1", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert code == 1
    assert not document["as_good"]
    changes = {row["what"]: row for row in document["answers"]["changes"]}
    assert changes["valid tool calls"]["lost"] == 2
    assert changes["valid JSON"]["lost"] == 0


def test_a_server_against_itself_gives_the_same_answers(oracle: str, capsys: pytest.CaptureFixture[str]):
    """In words that a person finds. Its speed may differ by chance: the exit code then says what the verdict says."""
    url = f"{oracle}/correct/v1"
    effort = ["questions=10", "rounds=4", "seed=1"]
    settings = [word for one in effort for word in ("--set", one)]
    code = main(["compare", url, url, "--model", MODEL, *settings, "--concurrency", "1"])
    out = capsys.readouterr().out

    assert code == ("B is slower" in out)
    assert "B is worse" not in out
    assert "10 of 10" in out
    assert max(map(len, out.splitlines())) <= 80


def test_chance_alone_is_seen_as_a_difference_in_one_run_of_twenty_at_most():
    """Two thousand comparisons of the same speeds, with noise and a drift of 5% a round."""
    rng = random.Random(4)
    seen = 0
    for _ in range(2000):
        a, b = [], []
        for number in range(6):
            speed = 100 * 0.95 ** (2 * number)
            order = [speed, speed * 0.95]
            if number % 2:
                order.reverse()
            a.append(order[0] * rng.lognormvariate(0, 0.05))
            b.append(order[1] * rng.lognormvariate(0, 0.05))
        seen += compare_sides(side("A", [], tuple(a)), side("B", [], tuple(b))).different
    assert seen / 2000 <= 0.055

    drifting = [100 * 0.95**number for number in range(12)]
    unpaired = welch_gain(drifting[:6], drifting[6:])
    assert unpaired is not None
    assert unpaired.is_significant  # all of A and then all of B: the drift alone was a difference


@pytest.mark.parametrize(("factor", "slower"), [(0.13, True), (0.9, True), (1.0, False), (0.985, False), (1.5, False)])
def test_a_build_can_fail_for_a_slower_server(factor: float, slower: bool):
    """Not for what is small, nor for what may be chance."""
    found = compare_sides(
        side("A", [], (100.0, 101.0, 99.0)), side("B", [], (100 * factor, 101.1 * factor, 98.9 * factor))
    )

    assert found.slower == slower
    assert found.as_good
    assert found.verdict.startswith("B is slower") == slower


def test_a_slower_server_is_exit_code_1_and_both_are_named(
    oracle: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """As `compare --help` says. The speeds are given: a clock on a busy machine may see another order."""
    urls = [f"{oracle}/correct/v1", f"{oracle}/slow-answers/v1"]
    speeds = [SpeedRounds(concurrency=1, tok_s=(rate, rate + 1, rate - 1), ttft_ms=(20.0,) * 3) for rate in (100, 50)]
    monkeypatch.setattr(compare, "measure_in_turn", lambda a, b, rounds: tuple(speeds))
    words = ["compare", *urls, "--model", MODEL, "--set", "questions=1", "--set", "rounds=3", "--concurrency", "1"]
    code = main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)

    assert code == 1
    assert document["slower"]
    assert [document["target_a"], document["target_b"]] == urls


def test_servers_that_count_differently_are_compared_by_characters(capsys: pytest.CaptureFixture[str]):
    """A sends a token an event and its usage, B seven words an event and none: no event of B's is taken for a token."""

    def words(peer: Peer, body: dict[str, object]) -> bool:
        time.sleep(0.02)
        peer.send(HEAD, *[chunk(event({"content": " word" * 7}))] * 6, tail(0, usage=False))
        return True

    def letters(peer: Peer, body: dict[str, object]) -> bool:
        time.sleep(0.02)
        peer.send(HEAD, *[chunk(event({"content": " word"}))] * 42, tail(42))
        return True

    with servers(letters, models=["m"]) as a, servers(words, counts=False, models=["m"]) as b:
        effort = ["--model", "m", "--set", "questions=2", "--set", "rounds=2", "--concurrency", "1"]
        main(["compare", a.url, b.url, *effort])
        shown = capsys.readouterr().out
        main(["compare", a.url, b.url, *effort, "--json"])
        mixed = json.loads(capsys.readouterr().out)
        main(["compare", a.url, a.url, *effort, "--json"])
        counted = json.loads(capsys.readouterr().out)

    assert "char/s" in shown
    assert "tok/s" not in shown
    assert "speed is in characters, because a server does not count tokens" in mixed["verdict"]
    assert [each["gains"][0]["unit"] for each in (mixed, counted)] == ["char/s", "tok/s"]
    assert "characters" not in counted["verdict"]

    other = side("B", [], (14.0, 14.1, 13.9))
    events = tuple(dataclasses.replace(pace, unit="event/s") for pace in other.paces)
    found = compare_sides(side("A", []), dataclasses.replace(other, paces=events))
    assert (found.gains[0].gain, found.different) == (None, False)
    assert found.verdict.endswith("speed cannot be compared, because a server does not count tokens")


def test_a_real_difference_is_seen():
    """A tenth, with noise of 2%."""
    rng = random.Random(5)
    before = tuple(100 * rng.lognormvariate(0, 0.02) for _ in range(6))
    after = tuple(value * 1.1 * rng.lognormvariate(0, 0.02) for value in before)
    found = compare_sides(side("A", [], before), side("B", [], after))

    assert found.different
    assert found.gains[0].gain is not None
    assert found.gains[0].gain.low > 0


def test_the_quantiles_are_students():
    """Against the tables of any book."""
    book = {(1, 0.95): 12.706, (2, 0.95): 4.303, (3, 0.95): 3.182, (5, 0.95): 2.571, (5, 0.99): 4.032}
    book |= {(9, 0.95): 2.262, (4, 0.975): 3.495, (30, 0.99): 2.750}
    for (freedom, confidence), value in book.items():
        assert student_t(freedom, confidence) == pytest.approx(value, rel=0.015)
    assert paired_gain([1.0], [1.0]) is None


def test_the_sign_test_counts_what_changed():
    """Five lost and none gained is the fewest that chance does not explain."""
    assert sign_test(0, 0) == 1
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert not AnswerChange(what="", of=100, lost=4, gained=0).is_worse
    assert AnswerChange(what="", of=100, lost=5, gained=0).is_worse
    assert not AnswerChange(what="", of=100, lost=6, gained=3).is_worse
    assert AnswerChange(what="", of=4, lost=2, gained=0).is_worse


def test_a_comparison_states_what_it_could_not_have_seen():
    """Thirty questions miss a loss of a fifth, two hundred one of 3%; answers gained on the way hide more."""
    assert AnswerChange(what="", of=30, lost=0, gained=0).least_visible_loss == pytest.approx(0.21, abs=0.01)
    assert AnswerChange(what="", of=200, lost=0, gained=0).least_visible_loss == pytest.approx(0.034, abs=0.002)
    assert AnswerChange(what="", of=200, lost=4, gained=4).least_visible_loss > 0.06
    assert AnswerChange(what="", of=1, lost=0, gained=0).least_visible_loss == 1.0
    pairs = [(True, True)] * 23 + [(True, False)] * 4 + [(False, True)] * 2 + [(False, False)]
    a, b = ([said("plain", number, right=pair[place]) for number, pair in enumerate(pairs)] for place in (0, 1))
    text = compare_sides(side("A", a), side("B", b)).verdict
    assert text.startswith("no loss shown: 27 and 25 of 30 right, other words in ")
    assert "% of right answers would not be seen, nor worse prose (--set quality_limit=0.02 shows it)" in text


def test_both_sides_are_asked_in_turn_and_never_the_same_prompt_twice_for_speed(oracle: str):
    """A B, B A: seen at the server, which is one and the same here."""
    endpoint = Endpoint(base_url=f"{oracle}/correct/v1", model=MODEL)
    effort = CompareEffort(concurrency=(1,), questions=4, rounds=3)
    a, b = measure_sides({"A": endpoint, "B": endpoint}, effort, SideListener(effort))

    assert [one.question for one in a.answers_given] == [one.question for one in b.answers_given]
    assert len(a.paces[0].tok_s) == len(b.paces[0].tok_s) == 3


def result(seed: int, solved: bool) -> JobResult:
    return JobResult(family="repair", level="easy", seed=seed, solved=solved, end="done", wrong="" if solved else "x")


def test_jobs_are_paired_by_seed():
    """What both solve says nothing; what only one solves decides."""
    a = [result(seed, True) for seed in range(20)]
    b = [result(seed, seed >= 6) for seed in range(20)]
    found = compare_results(a, list(reversed(b)))

    assert not found.as_good
    assert (found.lost, found.gained, found.jobs) == (6, 0, 20)
    assert found.high < 0
    assert found.pairs[0].why_b == "x"
    assert compare_results(b, a).verdict.startswith("B is better at the work")
    assert compare_results(a, a).verdict == "no difference: the same result in all 20 jobs"


def test_compare_by_task_finds_the_worse_model(capsys: pytest.CaptureFixture[str]):
    """Against the scripted model: one that works and one that only reports it."""
    with agents() as url:
        words = [
            "compare",
            url,
            url,
            "--by",
            "task",
            "--set",
            "family=errand,question",
            "--set",
            "jobs=6",
            "--set",
            "seed=0",
        ]
        code = main([*words, "--model", "solve", "--model-b", "lazy"])
        out = capsys.readouterr().out
        assert code == 1
        assert "B is worse at the work: lost 6 and gained 0 of 6 jobs" in out
        order = re.findall(r"^([AB]) [✓✗]", out, re.MULTILINE)
        assert order == list("ABBAABBAABBA")

        assert main([*words, "--model", "solve"]) == 0
        assert "no difference: the same result in all 6 jobs" in capsys.readouterr().out


def test_a_climb_finds_the_work_that_a_step_lost(tmp_path: Path):
    """The same jobs on the engine before and after: nothing to compare with, the same, and worse."""
    folders = []
    for name in ("first", "same", "worse"):
        (tmp_path / name).mkdir()
        folders.append(Run(tmp_path / name))
    with agents() as url:
        good, bad = (Endpoint(base_url=url, model=model) for model in ("solve", "lazy"))
        first = find_lost_work(good, folders[0], None, jobs=6, seed=0)
        same = find_lost_work(good, folders[1], folders[0], jobs=6, seed=0)
        worse = find_lost_work(bad, folders[2], folders[0], jobs=6, seed=0)

    assert (first, same) == ("", "")
    assert worse == "lost 6 and gained 0 of 6 jobs"


def test_disturbed_pairs_hardly_widen_the_interval():
    """One stream in ten is up to three times slower: a loss of 15% is still seen in 24 pairs, and its size is right."""
    rng = random.Random(1)

    def draw(speed: float) -> list[float]:
        return [speed * rng.uniform(0.95, 1.05) / (rng.uniform(1.2, 3) if rng.random() < 0.1 else 1) for _ in range(24)]

    found = [paired_gain(draw(100.0), draw(85.0), confidence=0.98) for _ in range(200)]
    missed = [gain for gain in found if gain and not gain.low <= -0.15 <= gain.high]
    seen = [gain for gain in found if gain and gain.high < -0.02]
    assert len(missed) <= 12  # 4 are expected
    assert len(seen) >= 160


@pytest.mark.parametrize(("losses", "looks"), [((0.95, 1.0, 1.0), 2), ((0.85, 0.85, 0.85), 2), ((1.0, 1.0, 1.0), 1)])
def test_a_difference_in_speed_is_seen_twice(
    losses: tuple[float, ...], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six pairs that are slower by chance are followed by six more; equal ones are not."""
    shares = [share for share in (*losses, losses[-1]) for _ in range(6)]
    jitter = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002] * 4
    seen: list[int] = []

    def measure_in_turn(a: object, b: object, *, rounds: int) -> tuple[SpeedRounds, ...]:
        seen.append(rounds)
        count = sum(seen)
        pairs = (jitter, [share / noise for share, noise in zip(shares, jitter, strict=True)])
        return tuple(SpeedRounds(concurrency=1, tok_s=tuple(rates[:count]), ttft_ms=(1.0,)) for rates in pairs)

    monkeypatch.setattr(compare, "measure_in_turn", measure_in_turn)
    monkeypatch.setattr(pace, "read_metrics", lambda endpoint: {})
    monkeypatch.setattr(compare, "collect_answers", lambda *given, **more: [[], []])
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
    effort = CompareEffort(concurrency=(1,), questions=0, rounds=6, most_rounds=24)
    measure_sides({"A": endpoint, "B": endpoint}, effort, SideListener(effort))
    assert len(seen) == looks
