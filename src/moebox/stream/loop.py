"""An event loop for one piece of work, from code that has none."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Do it to its end; an interrupt before its first step leaves no warning on a person's terminal."""
    answers: list[T] = []

    async def keeping() -> None:  # a task's own answer is written out, for nobody, as asyncio gives SIGINT back
        answers.append(await work)

    kept = keeping()
    try:
        asyncio.run(kept)
    finally:
        kept.close()
        work.close()
    return answers[0]
