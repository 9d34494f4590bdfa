"""`moebox quality` as a user meets it, against servers in the wire formats of the engines."""

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.quality import measure, reference
from tests.quality.toy_server import ToyServer, with_cached_text
from tests.sampling import one_in
from tests.serving import live

Quality = Callable[..., tuple[int, dict]]


@pytest.fixture
def quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Quality:
    """Call the command with --json; return its exit code and document (or its error line)."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def call(server: ToyServer, *more: object) -> tuple[int, dict]:
        with live(server):
            code = main(["quality", server.url, "--json", *map(str, more)])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {"error": err.strip()}

    return call


@pytest.fixture(scope="module")
def saved(fewer_texts: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference of the toy model."""
    folder = tmp_path_factory.mktemp("saved")
    path = folder / "first.moeq"
    with pytest.MonkeyPatch.context() as patch, live(ToyServer("prompt_logprobs")) as server:
        patch.setenv("XDG_DATA_HOME", str(folder))
        assert main(["quality", server.url, "--save", str(path)]) == 0
    return path


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "generate", "prefixes"])
def test_the_same_model_in_another_wire_format_does_not_differ(quality: Quality, saved: Path, dialect: str):
    """A reference of one engine compares with another engine's format, position by position."""
    code, found = quality(ToyServer(dialect), "--reference", saved)
    figures = found["judged"]["figures"]
    assert code == 0
    assert figures["mean_kl"]["value"] < 1e-4
    assert figures["same_top"]["value"] > 0.99
    assert figures["positions"] > 500


def test_what_a_coarse_cache_costs_shows_after_cached_prefixes(
    quality: Quality, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An engine scores whole prompts without its cache: texts after a cached prefix are judged for themselves."""
    monkeypatch.setattr(measure, "standard_texts", with_cached_text)
    files = [tmp_path / f"{seed}.moeq" for seed in (1, 2)]
    for seed, path in enumerate(files, 1):
        assert quality(ToyServer("prompt_logprobs", noise=0.05, seed=seed), "--save", path)[0] == 0
    references = [word for path in files for word in ("--reference", path)]
    code, healthy = quality(ToyServer("prompt_logprobs", noise=0.05, seed=3), *references)
    assert (code, healthy["judged"]["verdict"][:13]) == (0, "no difference")
    code, coarse = quality(ToyServer("prompt_logprobs", noise=0.05, seed=3, fault="coarse cache"), *references)
    assert code == 1
    assert " nats after cached prefixes (" in coarse["judged"]["verdict"]
    code, uncached = quality(ToyServer("prompt_logprobs", noise=0.05, seed=3, fault="no prefix cache"), *references)
    assert code == 0
    assert uncached["judged"]["verdict"].endswith("no text was read from the cache, so what it costs is not known")


def test_a_server_that_fails_at_half_characters_is_asked_for_fewer_tokens(quality: Quality, saved: Path):
    """ik_llama.cpp answers 500 if one of the most likely tokens is no whole character."""
    code, found = quality(ToyServer("prefixes", fault="half characters"), "--reference", saved)
    assert code == 0, found
    assert found["judged"]["figures"]["mean_kl"]["value"] < 1e-4


def test_echo_servers_compare_by_token_texts(quality: Quality, tmp_path: Path):
    """A server with `echo` and no token ids makes and takes references too."""
    path = tmp_path / "echo.moeq"
    assert quality(ToyServer("echo"), "--save", path)[0] == 0
    code, found = quality(ToyServer("echo", noise=0.5), "--reference", path)
    assert code == 0, found
    assert found["judged"]["figures"]["mean_kl"]["value"] > 0.02


def test_a_difference_beyond_the_noise_between_references_is_named(quality: Quality, saved: Path, tmp_path: Path):
    """Two healthy servers set the noise: a third is no difference, a worse one is, with exit code 1."""
    second = tmp_path / "second.moeq"
    assert quality(ToyServer("generate", noise=0.1, seed=2), "--save", second)[0] == 0
    both = ("--reference", saved, "--reference", second)
    code, healthy = quality(ToyServer("generate", noise=0.1, seed=3), *both)
    assert (code, healthy["judged"]["verdict"][:13]) == (0, "no difference")
    code, worse = quality(ToyServer("generate", noise=0.3, seed=4), *both)
    figures = worse["judged"]["figures"]
    assert (code, worse["judged"]["verdict"][:9]) == (1, "different")
    assert figures["mean_kl"]["low"] < figures["mean_kl"]["value"] < figures["mean_kl"]["high"]
    assert figures["mean_kl_most"] > figures["mean_kl"]["value"]
    assert {row["name"] for row in worse["judged"]["by_kind"]} >= {"pseudo-words", "numbers", "prose", "long context"}
    assert [row["name"] for row in worse["judged"]["by_depth"]] == ["0 to 63", "64 to 255", "256 to 1,023"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    one_in(
        3,
        [
            ("none", "gives no log-probabilities"),
            ("one", "gives no log-probabilities of more than one token"),
            ("rounded", "rounded to 3 decimals"),
            ("clamped", "clamped at -4"),
            ("constant", "do not depend on the text"),
            ("random", "figures|most likely token"),
            ("lies", "does not write its most likely token"),
            ("ids as text", "prompt tokens where"),
            ("cut", "prompt tokens where"),
            ("fails often", "no log-probabilities at"),
        ],
        unpack=True,
    ),
)
def test_figures_that_cannot_be_trusted_give_no_number(quality: Quality, fault: str, reason: str):
    """Missing, rounded, clamped, invented or contradictory log-probabilities are one line and exit code 2."""
    code, found = quality(ToyServer("prefixes", fault=fault))
    assert code == 2
    assert any(part in found["error"] for part in reason.split("|")), found


def test_a_server_with_echo_that_lies_is_refused(quality: Quality):
    """What it writes must be what it calls most likely, without token ids too."""
    code, found = quality(ToyServer("echo", fault="lies"))
    assert (code, "does not write its most likely token" in found["error"]) == (2, True)


def test_another_tokenizer_is_refused_and_a_missing_bos_is_aligned(quality: Quality, saved: Path):
    """Texts must have the reference's tokens; the first special token is sent as the reference has it."""
    code, found = quality(ToyServer("generate", fault="other tokenizer"), "--reference", saved)
    assert (code, "another tokenizer" in found["error"]) == (2, True)
    code, found = quality(ToyServer("generate", fault="no BOS"), "--reference", saved)
    assert code == 0
    assert found["judged"]["figures"]["mean_kl"]["value"] < 1e-4


def test_hostile_reference_files_are_refused(
    quality: Quality, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A changed byte, a bomb, another file, and lists that do not fit are one line each."""
    monkeypatch.setattr(reference, "MAX_JSON_BYTES", 16 << 20)

    def sealed(packed: bytes) -> bytes:
        return b"moebox-quality-1 " + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed

    raw = saved.read_bytes()
    plain = json.loads(zlib.decompress(raw.partition(b"\n")[2]))
    plain["texts"][0]["depths"][0] = 10**9
    for content, reason in (
        (raw[:-1], "its hash does not fit"),
        (b"GGUF" + raw, "is not a reference"),
        (sealed(zlib.compress(b"[" * (17 << 20))), "unpacks to more"),
        (sealed(zlib.compress(b"[" * 100_000)), "cannot be unpacked"),
        (sealed(zlib.compress(b'{"about": 1}')), "about"),
        (sealed(zlib.compress(json.dumps(plain).encode())), "depths lie in the text"),
    ):
        path = tmp_path / "hostile.moeq"
        path.write_bytes(content)
        code, found = quality(ToyServer("generate"), "--reference", path)
        assert (code, reason in found["error"]) == (2, True), (reason, found)


def test_the_users_own_text_is_scored_and_kept_apart(quality: Quality, saved: Path, tmp_path: Path):
    """--text adds a kind; a reference that was made without it does not fit."""
    text = tmp_path / "mine.txt"
    text.write_text("A sentence of my own. " * 20)
    code, found = quality(ToyServer("generate"), "--reference", saved, "--text", text)
    assert (code, "made with other texts" in found["error"]) == (2, True)
    text.write_text("short")
    assert quality(ToyServer("generate"), "--text", text)[0] == 2
