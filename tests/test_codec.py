"""Files that users edit: errors name the file and the field, and nothing is silently ignored."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import codec
from moebox.core.box import Box
from moebox.core.recipe import Hybrid, Parallel, Recipe, Speculate
from moebox.errors import BadInput

RECIPE = Recipe(name="r", engine="vllm", model="kimi-k2.6", checkpoint="int4", served_name="Kimi-K2.6")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_a_misspelt_setting_is_refused_with_the_right_one(tmp_path: Path):
    """A setting that is silently ignored is the worst kind."""
    path = write(tmp_path, codec.to_toml(RECIPE).replace("context =", "contxt ="))
    with pytest.raises(BadInput, match="unknown setting 'contxt'") as caught:
        codec.read_toml(Recipe, path)
    assert "context" in (caught.value.hint or "")


def test_a_nested_misspelling_is_named_by_its_path(tmp_path: Path):
    """parallel.tpp, not just tpp."""
    path = write(tmp_path, codec.to_toml(RECIPE).replace("tp = 1", "tpp = 1"))
    with pytest.raises(BadInput, match=r"parallel\.tpp"):
        codec.read_toml(Recipe, path)


def test_a_wrong_type_names_the_field(tmp_path: Path):
    """The message has the field and the problem."""
    path = write(tmp_path, codec.to_toml(RECIPE).replace("context = 65536", 'context = "lots"'))
    with pytest.raises(BadInput, match=r"recipe\.toml: context must be"):
        codec.read_toml(Recipe, path)


@pytest.mark.parametrize(("text", "why"), [("a = [", "not valid TOML"), ("\x00", "not valid TOML")])
def test_broken_toml_is_one_line(tmp_path: Path, text: str, why: str):
    """No traceback for a missing bracket."""
    with pytest.raises(BadInput, match=why):
        codec.read_toml(Recipe, write(tmp_path, text))


def test_missing_files_folders_and_binaries_have_their_own_messages(tmp_path: Path):
    """Each has its own line."""
    with pytest.raises(BadInput, match="no such file"):
        codec.load_toml(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="is a folder"):
        codec.load_toml(tmp_path)
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not UTF-8 text"):
        codec.load_toml(tmp_path / "bin.toml")


recipes = st.builds(
    Recipe,
    name=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    engine=st.sampled_from(["vllm", "sglang", "llama.cpp", "ik_llama.cpp"]),
    model=st.just("kimi-k2.6"),
    checkpoint=st.text(min_size=1, max_size=20),
    served_name=st.text(max_size=20),
    context=st.integers(1, 2**20),
    memory_utilization=st.none() | st.floats(0.1, 1.0),
    parallel=st.builds(Parallel, tp=st.integers(1, 16), ep=st.booleans()),
    speculate=st.none() | st.builds(Speculate, draft=st.text(max_size=10)),
    hybrid=st.none() | st.builds(Hybrid, experts=st.lists(st.tuples(st.integers(0, 60))).map(tuple)),
    env=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    flags=st.dictionaries(st.text(max_size=8), st.integers() | st.booleans() | st.text(max_size=8), max_size=3),
)


@given(recipes)
def test_a_recipe_reads_back_as_itself(recipe: Recipe):
    """What was written is what is read, whatever it contains."""
    import tomllib

    assert codec.decode(Recipe, tomllib.loads(codec.to_toml(recipe)), where="test") == recipe


def test_a_box_reads_back_as_itself():
    """box.toml of the capture bundle can be given to --box."""
    import tomllib

    from moebox.detect import load_box

    found = load_box("2x-rtx-pro-6000-max-q", ram="768GiB")
    assert codec.decode(Box, tomllib.loads(codec.to_toml(found)), where="test") == found


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(documents)
def test_json_is_indented_like_the_standard_librarys(document: object):
    """Byte for byte, so that a run folder of an older version differs in nothing; half a character does not end it."""
    assert codec.to_json(document) == json.dumps(document, indent=2, ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            '[parallel]\ntp = "8"',
            "parallel.tp must be a whole number, not a text in quotes",
            "write tp = 8, without quotes and unit",
        ),
        (
            "parallel = 8",
            "parallel must be a table, not a whole number",
            "write [parallel] on a line of its own, and its settings below it",
        ),
        ("[climb]\ncontexts = ['a']", "climb.contexts[0] must be a whole number, not a text in quotes", None),
        ("[runtime]\nkind = 'dokcer'", "runtime.kind: 'dokcer' is not a valid value", "did you mean docker?"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_sentence(text: str, message: str, hint: str | None) -> None:
    """The field comes first, types are in words, and a misspelt choice gets a suggestion."""
    whole = f'name = "x"\nengine = "vllm"\nmodel = "m"\ncheckpoint = "c"\nserved_name = "s"\n{text}'
    with pytest.raises(BadInput) as refused:
        codec.decode(Recipe, codec.parse_toml(whole, where="r.toml"), where="r.toml")
    assert (refused.value.message, refused.value.hint) == (f"r.toml: {message}", hint)
    with pytest.raises(BadInput, match=r"r\.toml: name is missing"):
        codec.decode(Recipe, {}, where="r.toml")
