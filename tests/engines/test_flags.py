"""The flag catalogues agree with the real parsers."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.registry import engine_names
from moebox.core.versions import version_numbers
from moebox.engines.arguments import canonical_name, flatten
from moebox.engines.flags import check_arguments, flag_catalogue, is_at_least, known_versions, newest_version
from moebox.errors import BadInput
from tests.chain.parse_back import split_argv
from tests.embedded import phantom_recipe

ACCEPTED = Path(__file__).parent / "accepted"
# Where the catalogue cannot know, or knows better: keys deep inside a JSON value, a rule between two flags, a value
# that the parser takes and the loader refuses, and a choice that the help does not list.
DIFFERENT = {
    "vllm-0.32.0": {
        """--compilation-config '{"pass_config":{"no_such_pass":true}}'""",
        "--enable-auto-tool-choice",
        "--quantization nvfp4",
    },
    "ik_llama.cpp-2026-04": {"-sm tensor"},
}


def lines() -> list[tuple[str, str, str, bool]]:
    """Engine, version, a part of a command line, and whether the real server of that version accepted it."""
    found = []
    for file in sorted(ACCEPTED.glob("*.txt")):
        engine, _, version = file.stem.partition("-")
        tried = [line for line in file.read_text().splitlines() if line[2:] not in DIFFERENT.get(file.stem, ())]
        found += [(engine, version, line[2:], line[0] == "+") for line in tried]
    return found


def find_problem(engine: str, version: str, text: str) -> str:
    """Return what is wrong with a part of a command line, or ""."""
    known = flag_catalogue(engine, version)  # type: ignore[arg-type]
    try:
        check_arguments(engine, version, split_argv(shlex.split(text), known))  # type: ignore[arg-type]
    except BadInput as refused:
        return f"{refused.message} ({refused.hint})"
    return ""


def test_every_line_is_checked_as_by_the_real_server():
    """240 lines tried on vLLM 0.32.0, llama.cpp b11669 and two ik_llama.cpp: accepted there, accepted here."""
    wrong = [one for one in lines() if bool(find_problem(*one[:3])) == one[3]]

    assert wrong == []
    assert len(lines()) > 235


@pytest.mark.parametrize(
    ("engine", "version", "text", "now"),
    [
        ("vllm", "", "--chat-template-kwargs '{}'", "--default-chat-template-kwargs"),
        ("vllm", "", "--quantization nvfp4", "modelopt_fp4"),
        ("vllm", "", "--speculative-model x", "--speculative-config"),
        ("vllm", "", """--compilation-config '{"level":3}'""", "mode"),
        ("vllm", "", "--compilation_config.pass_config.enable_fi_allreduce_fusion true", "fuse_allreduce_rms"),
        ("sglang", "", "--cuda-graph-max-bs 8", "--cuda-graph-max-bs-decode"),
        ("sglang", "", "--quantization nvfp4", "modelopt_fp4"),
        ("llama.cpp", "", "--no-mmap", "--load-mode none"),
        ("llama.cpp", "", "-mla 3", "ik_llama.cpp"),
        ("llama.cpp", "", "--draft 4", "--spec-draft-n-max"),
        ("ik_llama.cpp", "", "-fmoe", "--no-fused-moe"),
        ("ik_llama.cpp", "", "-lv 4", "--verbosity"),
        ("vllm", "", "--max-model-length 8", "--max-model-len"),
    ],
)
def test_a_removed_name_is_refused_with_its_new_name(engine: str, version: str, text: str, now: str):
    """The error names the version and the replacement."""
    problem = find_problem(engine, version, text)

    assert now in problem
    assert newest_version(engine) in problem  # type: ignore[arg-type]


def test_an_older_version_keeps_its_flags():
    """A recipe for an engine older than the catalogue may use what has been renamed since, but nothing made up."""
    assert find_problem("vllm", "0.20.0", "--chat-template-kwargs '{}'") == ""
    assert find_problem("sglang", "0.5.8", "--quantization nvfp4") == ""
    assert "no flag --no-such" in find_problem("vllm", "0.20.0", "--no-such")


@pytest.mark.parametrize(
    ("engine", "version", "release", "holds"),
    [
        ("vllm", "", "0.32", True),
        ("vllm", "0.30", "0.30.0", True),
        ("vllm", "0.29.9", "0.30.0", False),
        ("vllm", "nightly", "0.32", True),
        ("vllm", "main", "0.32", True),
        ("vllm", "1a2b3c4d", "0.32", True),
        ("vllm", "0.1.dev19253+g5f76ae224", "0.32", True),  # built without a tag
        ("sglang", "nightly-dev-20261101-ab12cd34", "0.5.18", True),
        ("sglang", "v0.5.15.post1", "0.5.18", False),
        ("ik_llama.cpp", "0a510ab01", "2026-08", True),
        ("ik_llama.cpp", "2026-04", "2026-08", False),
    ],
)
def test_a_version_without_a_place_among_releases_counts_as_the_newest(
    engine: str, version: str, release: str, holds: bool
):
    """Nightly builds, branches and commits have what the newest known release has."""
    recipe = phantom_recipe(engine=engine, engine_version=version)
    assert is_at_least(recipe, release) == holds


@pytest.mark.parametrize("version", ["nightly", "main", "1a2b3c4d", "0.1.dev19253+g5f76ae224"])
def test_new_builds_refuse_what_the_newest_release_refuses(version: str):
    """A retired flag is refused with its new name, though the build has no number."""
    assert "--default-chat-template-kwargs" in find_problem("vllm", version, "--chat-template-kwargs '{}'")
    assert find_problem("vllm", version, "--default-chat-template-kwargs '{}'") == ""


def test_a_value_must_be_one_of_the_choices():
    """The engine's own list is shown."""
    assert "marlin" in find_problem("vllm", "", "--moe-backend nope")
    assert "takes one value" in find_problem("vllm", "", "--max-model-len")
    assert "takes no value" in find_problem("vllm", "", "--headless=1")
    assert find_problem("llama.cpp", "", "--fim-qwen-1.5b-default --metrics") == ""  # a dot that does not start a key


@pytest.mark.parametrize("engine", engine_names())
def test_catalogues_are_small_and_whole(engine: str):
    """Every spelling leads to one flag, and the file stays small."""
    for version in known_versions(engine):  # type: ignore[arg-type]
        known = flag_catalogue(engine, version)  # type: ignore[arg-type]
        assert len({id(spec) for spec in known.specs.values()}) > 200
        for name in ("--host", "--port"):
            assert known.find_spec(name) is not None
    numbers = [version_numbers(version) for version in known_versions(engine)]  # type: ignore[arg-type]
    assert numbers == sorted(numbers)


WORDS = st.lists(st.sampled_from(sorted(flag_catalogue("vllm").specs)) | st.text(max_size=8), max_size=8)


@given(WORDS, st.sampled_from(engine_names()))
def test_any_words_are_split_without_loss_and_checked(argv: list[str], engine: str):
    """Splitting loses nothing, and checking raises BadInput or nothing."""
    known = flag_catalogue(engine)  # type: ignore[arg-type]
    plain = [word for word in argv if "=" not in word and not word.startswith("-O")]
    words = split_argv(plain, known)

    assert list(flatten(words)) == plain
    for word in words:
        canonical_name(word[0], known)
    find_problem(engine, "", shlex.join(argv))
