"""A careless user: texts that are far too long, folders that vanish, names that nobody knows, on page and terminal."""

import functools
import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.cli import main
from tests.report.making import a_run
from tests.web.chromium import Tab
from tests.web.entry import cookie
from tests.web.test_cockpit import RECIPE, post
from tests.web.test_ui import get

Serve = Callable[..., str]
LONG = "x" * 3000


@pytest.mark.parametrize(
    "words", ["up", "forecast", "runs show", "report", "fetch", "doctor logs", "pack", "plan k --box"]
)
def test_a_pasted_text_is_one_short_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No command tries to open 3,000 letters as a file and dies of it, or prints them all."""
    assert main([*words.split(), LONG]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error) < 400


@pytest.mark.parametrize("field", ["model", "box", "ram"])
def test_odd_texts_in_the_address_get_a_short_sentence(serve: Serve, field: str) -> None:
    """Long, with a NUL, with escapes: the page answers with what is wrong, and does not repeat it all."""
    url = serve()
    for text in (LONG, "%00", "%1b%5b31m", "a%0ab"):
        status, page = get(f"{url}plan?{field}={text}")
        assert status == 200, text
        assert "That did not work" in page
        assert len(page) < 1200
    for text in (LONG, "\0"):
        status, reply = post(url, "runs", {"model": "kimi-k2.6", "until": "plan", field: text})
        assert status == 400
        assert len(json.loads(reply)["error"]) < 300


@pytest.mark.parametrize("context", ["1", "64"])
def test_page_and_terminal_refuse_the_same_contexts(
    serve: Serve, context: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context that holds no request was planned by the page: "777,616 requests of 1 tokens"."""
    assert main(["plan", "kimi-k2.6", "--box", "8x-h200", "--context", context]) == 2
    error, _, hint = capsys.readouterr().err.removeprefix("error: ").partition("\n\nhint: ")
    page = get(f"{serve()}plan?box=8x-h200&context={context}")[1]
    assert error in page
    assert hint.strip() in page
    assert main(["forecast", "kimi-k2.6", "--box", "8x-h200", "--context", context]) == 0  # tokens behind a stream


def test_an_unknown_model_in_a_recipe_is_not_said_to_fit(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repository of a model that is not known starts unchecked; a word that is neither is refused with its like."""
    url = serve()
    for change, refused in (
        ({'"kimi-k2.6"': '"kimi-k9"'}, "model: 'kimi-k9' is not known"),
        ({'"int4"': '"int5"'}, "did you mean int4?"),
        ({'"kimi-k2.6"': '"kimi-k9"', '"int4"': '"org/kimi-k9"'}, ""),
        ({'"kimi-k2.6"': '"kimi-k9"', '"int4"': '"kimi-k9.gguf"'}, ""),
    ):
        text = functools.reduce(lambda text, pair: text.replace(*pair), change.items(), RECIPE)
        status, reply = post(url, "recipes/check", {"text": text})
        assert status == (400 if refused else 200)
        assert "fits" not in json.loads(reply).get("good", "")
        (tmp_path / "recipe.toml").write_text(text)
        for command in (["up", "--dry-run"], ["render", "--as", "script"]):
            assert main([command[0], str(tmp_path / "recipe.toml"), *command[1:]]) == (2 if refused else 0)
            text = " ".join(capsys.readouterr().err.split())
            assert (refused or "'kimi-k9' is not known, so whether it fits was not checked") in text


def test_the_phantom_is_not_planned_for_another_box(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """It "needed 13.1 GB more RAM" on eight H200; the list of models leads to its plan for this machine."""
    assert main(["plan", "phantom", "--box", "8x-h200"]) == 2
    assert "leave out --box" in capsys.readouterr().err
    listed = get(f"{serve()}models?q=phantom&box=8x-h200")[1]
    assert 'href="/?model=phantom&amp;box="' in listed


def test_an_unknown_box_is_reported_once(serve: Serve) -> None:
    """Not in the row of each model."""
    status, page = get(f"{serve()}models?box=8x-h300")
    assert status == 200
    assert "unknown GPU" in page
    assert "did you mean h200" in page
    assert "data-fit" not in page


@pytest.mark.parametrize("page", ["recipes", "engines"])
def test_unknown_names_get_the_hint_of_the_terminal(
    serve: Serve, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe that is misspelt is suggested; without an engine the way to one is named."""
    url = serve()
    if page == "recipes":
        assert main(["up", "kimi-k26-vlm"]) == 2
        assert "did you mean kimi-k26-vllm" in capsys.readouterr().err
        status, text = get(f"{url}recipes/kimi-k26-vlm")
        assert "did you mean kimi-k26-vllm" in text
    else:
        status, text = get(f"{url}engines/nosuch/watch")
        assert "the list of engines" in text
    assert status == 404


def test_a_run_removed_under_the_page_ends_its_updates(
    tab: Tab, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page says that it is no longer updated; nothing is printed where the page was started."""
    run = a_run(tmp_path)
    run.release_lock()
    url = serve(runs=tmp_path)
    tab.open(f"{url}runs/{run.id}/live", ready="document.querySelector('#live .checks')")
    request = urllib.request.Request(f"{url}runs/{run.id}/events", headers={"Cookie": cookie(url)})
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        shutil.rmtree(run.path)
        assert stream.read().strip() == b""
    tab.until("document.getElementById('lost').textContent.includes('no longer updated')")
    assert get(f"{url}runs/{run.id}")[0] == 404
    assert "Traceback" not in capsys.readouterr().err


def test_hostile_texts_of_a_run_stay_texts(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """Markup and escapes in checks, logs and events are shown as they are, on every page that has them."""
    evil = "<img src=x onerror=\"document.title='owned'\">\u001b[31m`<script>document.title='owned'</script>`"
    run = a_run(tmp_path, name="evil")
    run.write_json("verdicts/07-tools.json", {"name": evil, "verdict": "fail", "reason": evil})
    run.write_file("engine.log", f"{evil}\n")
    with (run.path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 1.0, "kind": evil, "text": evil}) + "\n")
    run.release_lock()
    url = serve(runs=tmp_path)
    for page in (f"runs/{run.id}/live", f"runs/{run.id}", "runs"):
        tab.open(url + page)
        assert tab.run("[document.title === 'owned', document.querySelectorAll('img').length]") == [False, 0]
        assert "\u001b" not in tab.run("document.documentElement.outerHTML")
