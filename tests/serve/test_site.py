"""/etc/moebox.toml: ports, caches and weights that an administrator sets for all users."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import files
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Recipe
from moebox.serve.preflight import find_free_port
from moebox.serve.session import engine_session
from moebox.site import SITE_ENV
from moebox.store import Run
from tests.serve.conftest import QUICK, marked


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, at another path."""
    path = tmp_path / "moebox.toml"
    monkeypatch.setenv(SITE_ENV, str(path))
    for name in ("MOEBOX_CACHE", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return path


def test_ports_and_caches_come_from_the_file(site: Path, tmp_path: Path) -> None:
    """Each user has a private folder in the shared cache; ports lie in the range."""
    site.write_text(f'ports = [23000, 23400]\ncache = "{tmp_path}/scratch"\n')

    assert all(23000 <= find_free_port() <= 23400 for _ in range(5))
    folder = files.moebox_cache()
    assert folder.parent == tmp_path / "scratch"
    assert folder.stat().st_mode & 0o777 == 0o700
    site.unlink()
    assert files.moebox_cache() == files.xdg_home("cache") / "moebox"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_cache_that_another_user_made_is_not_used(site: Path, tmp_path: Path) -> None:
    """Its owner could change what is read from it: the user's own cache is used."""
    site.write_text(f'cache = "{tmp_path}/scratch"\n')
    made = files.moebox_cache()
    os.chown(made, 65534, 65534)

    assert files.moebox_cache() == files.xdg_home("cache") / "moebox"


def test_an_engine_reads_shared_weights(site: Path, tmp_path: Path, acting: Callable[..., Recipe], run: Run) -> None:
    """A repository that the administrator downloaded is not downloaded again."""
    (tmp_path / "hub" / "models--moonshotai--Kimi-K2.6" / "snapshots").mkdir(parents=True)
    site.write_text(f'weights = "{tmp_path}/hub"\n')
    with engine_session(deploy(acting("good")), run, patience_s=30, stop_signals=QUICK) as session:
        block = Path(f"/proc/{marked(session.instance.id)[0]}/environ").read_bytes().split(b"\0")

    assert f"HF_HUB_CACHE={tmp_path}/hub".encode() in block


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ports = 5", "ports must be a list"),
        ("ports = [5, 2]", "ports: first and last"),
        ("port = [1, 2]", "unknown setting 'port'"),
        ("cache = 'here'", "cache: an absolute path"),
        ("ports = [", "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(
    text: str, reason: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, where, and what is valid."""
    site.write_text(text)
    assert main(["doctor", "box"]) == 2
    assert f"error: {site}: {reason}" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_one_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in its place, or a file without rights."""
    site.mkdir()
    assert main(["doctor", "box"]) == 2
    captured = capsys.readouterr().err
    assert f"error: {site}: is a folder, not a file" in captured
