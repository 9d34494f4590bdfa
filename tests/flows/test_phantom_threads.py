"""How many threads the phantom gets: threads that wait for each other crawl on a busy machine."""

import os

import pytest

from moebox.cli import main
from moebox.detect import host
from moebox.flows import recipes


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(recipes.THREADS)


@pytest.mark.parametrize(("busy", "alone"), [(0.0, True), (0.9, False)])
def test_an_idle_machine_gives_it_several(busy: float, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_busy_share", lambda: busy)
    cores = len(os.sched_getaffinity(0))
    assert recipes.phantom_threads() == (max(1, min(cores - 1, recipes.MOST_THREADS)) if alone else 1)


def test_the_variable_decides_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_busy_share", lambda: 0.9)
    monkeypatch.setenv(recipes.THREADS, "3")
    assert recipes.phantom_threads() == 3


@pytest.mark.parametrize("given", ["0", "two", "-1", "1.5"])
def test_a_variable_that_is_no_number_is_one_line(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(recipes.THREADS, given)
    assert main(["up", "phantom", "--dry-run"]) == 2
    assert f"MOEBOX_THREADS: {given!r} is not a number of threads" in capsys.readouterr().err
