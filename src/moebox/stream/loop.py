"""An event loop for one piece of work, from code that has none."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do it to its end; an interrupt before its first step leaves no warning on a person's terminal."""
    try:
        return asyncio.run(work)
    finally:
        work.close()
