"""JSON of other people, whatever it holds: the right kind or nothing, never an exception."""

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
def test_any_value_is_read_as_the_kind_that_was_asked_for(value: object) -> None:
    """Wherever a name leads, what comes back is of one kind, and numbers are finite."""
    for name in ("a", "a.b", "a.b.c"):
        number = loose.figure(value, name, "c")
        assert number is None or math.isfinite(number)
        assert all(map(math.isfinite, loose.figures(value, name)))
        assert isinstance(loose.words(value, name), str)
        assert all(isinstance(row, dict) for row in loose.rows(value, name))
        assert all(isinstance(text, str) for text in loose.texts(value, name))
        assert isinstance(loose.inner(value, name), dict)
        assert loose.truth(value, name) in (True, False)
    assert isinstance(loose.as_json(value), dict)


def test_the_first_name_that_holds_something_usable_counts() -> None:
    """Older names stand behind the new one."""
    row = {"new": None, "old": 3, "much": {"deeper": "x"}, "yes": True, "endless": 10**400}
    assert loose.figure(row, "new", "old") == 3.0
    assert loose.words(row, "gone", "much.deeper") == "x"
    assert loose.figure(row, "yes") is None
    assert loose.figure(row, "endless") is None
