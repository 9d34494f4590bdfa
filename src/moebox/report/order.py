"""Things in the order they were met: each once, or in groups."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def unique_names(names: Iterable[str]) -> list[str]:
    """Each name once, empty ones left out."""
    return list(filter(None, dict.fromkeys(names)))


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """What has the same key together."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
