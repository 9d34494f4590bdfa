"""Untrusted JSON: the right kind or nothing, never an exception."""

import math

from hypothesis import given
from hypothesis import strategies as st

from moebox import loose

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_is_read_as_the_requested_kind(value: object) -> None:
    """Wherever a name leads, what comes back is of one kind, and numbers are finite."""
    for name in ("a", "a.b", "a.b.c"):
        number = loose.get_number(value, name, "c")
        assert number is None or math.isfinite(number)
        assert isinstance(loose.get_text(value, name), str)
        assert all(isinstance(row, dict) for row in loose.get_objects(value, name))
        assert all(isinstance(text, str) for text in loose.get_texts(value, name))
        assert isinstance(loose.get_object(value, name), dict)
        assert loose.is_true(value, name) in (True, False)
    assert isinstance(loose.as_object(value), dict)


def test_the_first_name_with_a_usable_value_counts() -> None:
    """Older names stand behind the new one."""
    row = {"new": None, "old": 3, "much": {"deeper": "x"}, "yes": True, "endless": 10**400}
    assert loose.get_number(row, "new", "old") == 3.0
    assert loose.get_text(row, "gone", "much.deeper") == "x"
    assert loose.get_number(row, "yes") is None
    assert loose.get_number(row, "endless") is None
