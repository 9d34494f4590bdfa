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
    """asyncio does with its task as a signal's handler is put back: megabytes of text for a ladder, and for nobody."""

    written: list[str] = []

    class Ladder:
        def __repr__(self) -> str:
            written.append("once")
            return "Ladder"

    async def ladder() -> Ladder:
        return Ladder()

    assert isinstance(run_to_end(ladder()), Ladder)
    assert written == []


def test_an_interrupt_before_the_first_step_says_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the moment between: a person reads that it was interrupted, not of coroutines."""

    def interrupted(work: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_to_end(answer())
        gc.collect()
    assert [str(one.message) for one in told] == []
