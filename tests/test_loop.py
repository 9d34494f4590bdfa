"""Work on an event loop, begun from code that has none."""

import asyncio
import gc
import warnings

import pytest

from moebox.stream import run_to_end


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_its_answer_is_given() -> None:
    assert run_to_end(answer()) == 42


def test_an_answer_is_not_written_out_on_the_way() -> None:
    """asyncio does, when it puts a signal's handler back: megabytes of text that no reader wants."""

    written: list[str] = []

    class Ladder:
        def __repr__(self) -> str:
            written.append("once")
            return "Ladder"

    async def ladder() -> Ladder:
        return Ladder()

    assert isinstance(run_to_end(ladder()), Ladder)
    assert written == []


def test_an_interrupt_before_the_first_step_prints_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the moment between: the user reads that it was interrupted, nothing about coroutines."""

    def interrupted(work: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    gc.collect()  # what other tests left is not of this one
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_to_end(answer())
        gc.collect()
    assert [str(warning.message) for warning in found] == []
