"""One streamed request, timed when its bytes arrive.

`StreamExchange` yields the events of a reply as they come. Times are the kernel's receive timestamps if it has them.
The load generator uses the same parts (bench/generator).
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code; an interrupt before its first step prints no warning."""
    import asyncio

    results: list[T] = []

    async def keep_result() -> None:  # asyncio formats a task's result when it restores SIGINT, which may be slow
        results.append(await work)

    keeping = keep_result()
    try:
        asyncio.run(keeping)
    finally:
        keeping.close()
        work.close()
    return results[0]
