"""How long a step takes, from samples that a busy host disturbs."""

import dataclasses
import itertools
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.calibration import Boot
from moebox.core.endpoint import Endpoint
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_boot import MAX_LOOKS, BootMeasurement, TimingPoint, needs_another_look
from moebox.flows.calibrate_timing import StepLook, start_delay
from moebox.loose import Json
from tests.serving import live


def noisy_gaps(seconds: float, count: int, chance: random.Random, *, busy: bool) -> list[float]:
    """Steps as a client sees them: in pairs now and then, paused for 30 ms now and then, all slower on a busy host."""
    gaps: list[float] = []
    while len(gaps) < count:
        step = seconds * (1.3 if busy else 1.0) * chance.uniform(0.99, 1.03)
        gaps += [0.0, 2 * step] if chance.random() < 0.1 else [step]
        gaps[-1] += 0.03 if chance.random() < 0.01 else 0.0
    return gaps


@pytest.mark.parametrize("seed", range(20))
def test_short_steps_on_a_disturbed_host_are_timed_within_three_percent(seed: int) -> None:
    """2 ms steps, every third look in a busy phase: the mean of all was 10 % and more too long."""
    chance = random.Random(seed)
    phases = [chance.random() < 0.33 for _ in range(5)]
    looks: list[StepLook] = []
    for busy in phases:
        looks.append(timing.step_from_gaps(noisy_gaps(0.002, 700, chance, busy=busy)))
        if not needs_another_look(looks):
            break
    step = timing.combine_looks(looks)
    assert step.seconds == pytest.approx(0.00202, rel=0.03) or phases[: len(looks)].count(False) < 2
    assert step.spread < 0.35


def read_late(gaps: list[float], chance: random.Random, *, pause_s: float) -> list[float]:
    """The same tokens seen by a client that is kept from reading for a while, again and again."""
    seen, now, until = [0.0], 0.0, 0.0
    for gap in gaps:
        now += gap
        if now >= until and chance.random() < 0.2:
            until = now + pause_s * chance.uniform(0.2, 1.0)
        seen.append(max(now, until))
    return [later - sooner for sooner, later in itertools.pairwise(seen)]


@pytest.mark.parametrize(("pause_s", "within"), [(0.01, 0.03), (0.05, 0.12), (0.2, 0.4)])  # of 0.77 s in all
@pytest.mark.parametrize("seed", range(5))
def test_tokens_that_arrive_in_bunches_are_timed_right(seed: int, pause_s: float, within: float) -> None:
    """A client without a core reads a hundred tokens at once: most gaps are nought, and the step is not."""
    chance = random.Random(seed)
    gaps = read_late([0.001 * chance.uniform(0.98, 1.02) for _ in range(768)], chance, pause_s=pause_s)
    step = timing.step_from_gaps(gaps)
    assert step.seconds == pytest.approx(0.001, rel=within)
    assert timing.bunch_size(gaps) > 1


@given(st.lists(st.floats(0, 2, allow_nan=False), min_size=8, max_size=200).filter(any))
def test_whatever_arrives_when_a_step_takes_time(gaps: list[float]) -> None:
    """All at once after a single wait, in any pattern: never nought, never longer than the longest wait."""
    step = timing.step_from_gaps(gaps)
    assert 0 < step.seconds <= max(gaps) * 1.001
    assert step.spread >= 0


def test_two_looks_that_agree_are_enough_and_others_are_taken_again() -> None:
    """A step is never settled by one look, however even it was: two streams once took 11.3 ms so, and 7 in truth."""
    once = [StepLook(0.0113, 0.003)]
    assert needs_another_look(once)
    assert not needs_another_look(once, once=True)
    assert needs_another_look([dataclasses.replace(once[0], spread=0.03)], once=True)
    assert needs_another_look([*once, dataclasses.replace(once[0], seconds=0.0071)])
    assert not needs_another_look([*once, dataclasses.replace(once[0], seconds=0.0114)])
    assert not needs_another_look(
        [dataclasses.replace(once[0], seconds=0.002 * 1.1**times) for times in range(MAX_LOOKS)]
    )


def test_what_is_quick_to_look_at_comes_before_what_is_not() -> None:
    """So that short of time the most points have a second look; long prompts whose tries agreed need none."""
    work = BootMeasurement(planned=Boot(layers=5), chunk=512)
    work.looks = {TimingPoint(context=tokens): [StepLook(tokens / 720, 0.001)] for tokens in (832, 64)}
    for batch, context in ((4, 832), (1, 832), (2, 256)):
        work.looks[TimingPoint(batch=batch, context=context)] = [StepLook(0.01, 0.003)]

    assert [point.text for point in work.doubtful_points(all_again=False)] == [
        "a prompt of 64 tokens",
        "2 streams at 256 tokens",
        "1 stream at 832 tokens",
        "4 streams at 832 tokens",
    ]
    assert TimingPoint(context=832) in work.doubtful_points(all_again=True)


def test_a_drift_is_no_doubt_of_prompts_that_were_looked_at_after_it() -> None:
    """Looks that agree, before and after speed moved, say that it was not theirs; a single look says nothing."""
    short, long = TimingPoint(context=128), TimingPoint(context=8192)
    work = BootMeasurement(planned=Boot(layers=8), chunk=8192, drift=-0.31)
    work.looks = {short: [StepLook(0.0110, 0.004)], long: [StepLook(seconds, 0.004) for seconds in (0.0795, 0.0800)]}
    alone, again = work.boot.prefill

    assert alone.spread == 0.155
    assert again.spread == pytest.approx(0.0063, rel=0.01)


def test_what_even_routing_costs_is_no_part_of_a_step() -> None:
    """SGLang computes it behind its routers; prompts have the same few kernels for thousands of tokens."""
    work = BootMeasurement(planned=Boot(layers=8), chunk=8192, routing_s=0.0001)
    work.looks = {
        TimingPoint(batch=1, context=256): [StepLook(0.003, 0.01)],
        TimingPoint(context=128): [StepLook(0.02, 0.01)],
    }
    assert [step.seconds for step in work.boot.decode] == [pytest.approx(0.0029)]
    assert [step.seconds for step in work.boot.prefill] == [0.02]


def test_a_reply_never_goes_beyond_the_context() -> None:
    """Many steps of 2 ms, as far as prompt and reply fit together, and no more than the prompt is long."""
    work = BootMeasurement(planned=Boot(layers=4), chunk=8192, longest=1024, pace_s=0.002)
    assert work.step_count(TimingPoint(batch=1, context=256)) == 256
    assert work.step_count(TimingPoint(batch=1, context=832)) == 1024 - 832 - 3
    assert BootMeasurement(planned=Boot(layers=4), chunk=8192).step_count(TimingPoint(batch=1, context=256)) == 24


def test_a_stream_that_waits_for_anothers_end_differs_from_one_that_is_only_late() -> None:
    """Longer replies bring late streams together; they only make a queue longer."""
    early, late, queued = [1.0, 2.0, 3.0], [2.5, 3.5], [3.5, 4.5]
    assert start_delay([early, late]) == 0.0
    assert start_delay([early, queued]) == 2.5
    assert start_delay([early, []]) == start_delay([]) == 0.0


@pytest.mark.parametrize(
    ("prompt", "known", "wrong"), [(16, 1, False), (16, 15, True), (8192, 8, False), (512, 64, True)]
)
def test_a_token_shared_by_chance_is_no_cached_prompt(prompt: int, known: int, wrong: bool) -> None:
    """SGLang's pages hold one token: one of 64 warm-up prompts began as another did, and ended a whole calibration."""
    event = timing.StreamEvent({}, usage=(prompt, 1, known))
    assert bool(timing.cache_problem(event)) == wrong


class AtOnce(BaseHTTPRequestHandler):
    """Streams tokens as soon as it is asked."""

    tokens, pause_s = 1, 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for _ in range(self.tokens):
            self.wfile.write(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n')
            time.sleep(self.pause_s)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Slow(timing.TimedEngine):
    """Takes its time to make up a prompt: 20,000 ids take as long as a layer."""

    def draw_prompt(self, tokens: int) -> list[int]:
        time.sleep(0.3)
        return super().draw_prompt(tokens)


def test_a_prompt_takes_what_the_server_takes_and_not_what_its_making_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the ids was part of the prompt's time, 5 ms of 20,480."""
    monkeypatch.setattr(timing, "MANY", 1)
    with live(ThreadingHTTPServer(("127.0.0.1", 0), AtOnce)) as server:
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model="m")
        found = timing.time_prefill(Slow(endpoint=endpoint, vocab=2000), 16)
    assert found.seconds < 0.3


def test_short_prompts_are_tried_often_and_long_ones_are_not() -> None:
    """What the host adds to a prompt of 10 ms is multiplied with the layers that were not booted."""
    assert [timing.prompt_tries(seconds) for seconds in (0.01, 0.5, 5.0)] == [15, 3, 2]


class Forty(AtOnce):
    """Forty tokens a reply, one after another."""

    tokens, pause_s = 40, 0.001


class Asking(timing.TimedEngine):
    """Remembers how long the prompts and replies were that it asked for."""

    asked: ClassVar[list[tuple[int, int]]] = []

    def request_body(self, prompt: int, output: int, *, slot: int = 0) -> Json:
        self.asked.append((prompt, output))
        return super().request_body(prompt, output, slot=slot)


def test_a_step_is_timed_at_its_context_on_average() -> None:
    """The prompt is shorter by half of the steps: attention takes longer with every token that was decoded."""
    with live(ThreadingHTTPServer(("127.0.0.1", 0), Forty)) as server:
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model="m")
        timing.time_decode(Asking(endpoint=endpoint, vocab=1000), 1, 256, chunk=8192, steps=200)
    ((prompt, reply),) = Asking.asked

    assert prompt + reply / 2 == pytest.approx(256, abs=2)


def test_streams_of_llama_cpp_take_neighbouring_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decodes no others in one step: two streams took 6.5 ms on slots 0 and 1, and 9.1 on 0 and 2."""
    sent: list[Json] = []

    def send(_: timing.TimedEngine, body: Json) -> tuple[float, list[float]]:
        sent.append(body)
        return 0.0, [0.01 * step for step in range(40)]

    monkeypatch.setattr(timing, "record_stream", send)
    for ggml in (True, False):
        target = timing.TimedEngine(
            endpoint=Endpoint(base_url="http://127.0.0.1:1/v1", model="m"), vocab=1000, ggml=ggml
        )
        timing.time_decode(target, 2, 256, chunk=512, steps=32)

    assert {body.get("id_slot") for body in sent[:2]} == {0, 1}
    assert {body.get("id_slot") for body in sent[2:]} == {None}
