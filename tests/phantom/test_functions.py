"""The functions that questions ask for: what the question says is what its code returns."""

import pytest

from moebox.data import load_table

# By what the question says: the constants, a value, and what a reader of the sentence expects.
EXPECTED = {
    "x plus {k}": ({"k": 3}, 4, 7),
    "x minus {k}": ({"k": 3}, 4, 1),
    "x times {k}": ({"k": 3}, 4, 12),
    "x to the power of {k}": ({"k": 3}, -2, -8),
    "x limited to the range from {k} to {m}": ({"k": 2, "m": 9}, 11, 9),
    "True if x is divisible by {k} and False otherwise": ({"k": 3}, -9, True),
    "True if x is greater than {k} and False otherwise": ({"k": 3}, 3, False),
    "s reversed": ({}, "abc", "cba"),
    "s in upper case": ({}, "aB c", "AB C"),
    "how often the letter {k} occurs in s": ({"k": "a"}, "banana", 3),
    "s repeated {k} times": ({"k": 2}, "ab", "abab"),
    "the first {k} characters of s": ({"k": 2}, "abc", "ab"),
    "the largest number in v": ({}, [3, -5, 2], 3),
    "the smallest number in v": ({}, [3, -5, 2], -5),
    "the sum of the numbers in v": ({}, [3, -5, 2], 0),
    "v sorted in ascending order": ({}, [3, -5, 2], [-5, 2, 3]),
    "a list with each number of v times {k}": ({"k": 2}, [3, -5], [6, -10]),
    "a list of the numbers in v that are greater than {k}": ({"k": 2}, [3, -5, 2], [3]),
}


@pytest.mark.parametrize("row", load_table("questions")["function"], ids=lambda row: row["does"])
def test_the_code_returns_what_the_question_says(row: dict[str, str]) -> None:
    """A wrong row would ask for one thing and expect another."""
    constants, value, wanted = EXPECTED[row["does"]]
    found = eval(row["body"].format(**constants), {row["takes"][-1]: value})  # noqa: S307  our own table
    assert found == wanted
