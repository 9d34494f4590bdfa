"""What is written as YAML is read back as it was, by a YAML reader that is not ours."""

import yaml as reader
from hypothesis import given
from hypothesis import strategies as st

from moebox import yaml_text as yaml

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@given(VALUES)
def test_yaml_comes_back_as_it_was(value: object) -> None:
    assert reader.safe_load(yaml.dump_yaml(value)) == value


def test_words_stay_plain_and_what_could_be_something_else_is_quoted() -> None:
    text = yaml.dump_yaml(
        {"kind": "Service", "port": "8000", "on": True, "say": "no", "empty": {}, "list": [{"a": [1]}]}
    )

    assert text.splitlines() == [
        "kind: Service",
        'port: "8000"',
        '"on": true',
        'say: "no"',
        "empty: {}",
        "list:",
        "  - a:",
        "      - 1",
    ]
