"""Part of many similar cases: `make test` asks a few of them, `make test-siege` all the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(number: int, cases: Iterable[Any], *, unpack: bool = False) -> list[Any]:
    """Return all cases for `parametrize`; all but every `number`th are marked `siege`.

    With `unpack`, a case is the values of several arguments.
    """
    return [
        pytest.param(*(case if unpack else (case,)), marks=[pytest.mark.siege] if at % number else [])
        for at, case in enumerate(cases)
    ]
