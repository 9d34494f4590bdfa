"""The local page in a real browser, and its doors."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.core.event import RungDone
from tests.report.making import a_run, level
from tests.web.chromium import Tab

Serve = Callable[..., str]


def get(url: str, **headers: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def test_moving_a_slider_changes_memory_forecast_and_recipe(tab: Tab, serve: Serve) -> None:
    """The context slider's next stop is in the recipe, the cache per request and the forecast without a reload."""
    tab.open(serve(), ready="document.querySelector('#answer svg')")
    assert "context = 65536" in tab.run("document.querySelector('#answer pre').textContent")
    before = tab.run("document.querySelector('#answer .tiles').textContent")
    tab.run("window.stays = true")
    slider = "document.querySelector('input[data-name=context]')"
    tab.run(
        f"{slider}.value = Number({slider}.value) + 1; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))"
    )
    tab.until("document.querySelector('#answer pre').textContent.includes('context = 131072')")
    assert tab.run("document.querySelector('#answer .tiles').textContent") != before
    assert tab.run("document.getElementById('context-shown').textContent") == "131,072"
    assert tab.run("window.stays === true")


def test_a_model_that_does_not_fit_is_told_and_mended(tab: Tab, serve: Serve) -> None:
    """A box too small says so where the plan was; a larger one brings the plan back."""
    tab.open(serve() + "?box=1x-rtx-5090", ready="document.querySelector('#answer').textContent.includes('not fit')")
    box = "document.querySelector('input[name=box]')"
    tab.run(f"{box}.value = '8x-b200'; {box}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    tab.until("document.querySelector('#answer svg')")


def test_the_page_and_the_command_line_say_the_same(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """/plan.json is the plan that `moebox plan` prints."""
    from moebox.cli import main

    status, text = get(serve() + "plan.json?box=8x-b200&context=65536&concurrency=8")
    assert status == 200
    main(["plan", "kimi-k2.6", "--box", "8x-b200", "--context", "65536", "--concurrency", "8", "--json"])
    assert json.loads(text)["recipe"] == json.loads(capsys.readouterr().out)["recipe"]


def test_a_run_is_watched_live(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """What is written into the folder while the page is open appears in it by itself."""
    run = a_run(tmp_path)
    address = serve(tmp_path)
    tab.open(f"{address}runs/{run.id}/live", ready="document.querySelector('#live .ladder')")
    rung = {"name": "tools", "verdict": "fail", "reason": "<b>arguments</b> cut in half"}
    run.write_json("verdicts/07-tools.json", rung)
    run.event(RungDone(name="tools", verdict="fail"))
    tab.until("document.querySelector('#live .ladder').textContent.includes('<b>arguments</b> cut in half')")
    run.write_json("measurements/c0256.json", level(256))
    tab.until("document.querySelector('#live').textContent.includes('2,560')")


def test_the_list_leads_to_the_report(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """Every run is listed, and its link is its report."""
    run = a_run(tmp_path)
    address = serve(tmp_path)
    tab.open(f"{address}runs")
    assert run.id in tab.run("document.querySelector('table').textContent")
    tab.run("document.querySelector('td a').click()")
    tab.until("document.querySelector('#summary .tiles')")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("box=9x-moon", "unknown"),
        ("model=kimi-k9", "unknown model"),
        ("context=-5", "not a count"),
        ("concurrency=99999999999", "not a count"),
        ("goal=%3Cscript%3E", "unknown goal"),
        ("engine=none", "unknown engine"),
        ("ram=lots", "not a size"),
        ("layout=x:y", "recipe.toml"),
        ("layout=0:0", "recipe.toml"),
    ],
)
def test_odd_questions_get_a_sentence(serve: Serve, query: str, says: str) -> None:
    """Whatever stands in the address, the answer is a sentence, never a traceback, and markup stays text."""
    status, text = get(f"{serve()}plan?{query}")
    assert status == 200
    assert says in text
    assert "<script" not in text


def test_only_runs_of_the_list_can_be_opened(serve: Serve, tmp_path: Path) -> None:
    """A path in place of a name leads nowhere."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "run.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    address = serve(tmp_path / "runs")
    for name in ("..%2Fsecret", "%2Fetc", "nothing", "..%2F..%2F"):
        assert get(f"{address}runs/{name}")[0] in (400, 404)


def test_a_foreign_name_for_this_address_is_turned_away(serve: Serve) -> None:
    """A page from elsewhere that points its own name at the loopback address gets nothing."""
    assert get(serve(), Host="evil.example")[0] == 421
    assert get(serve(), Host="localhost:1")[0] == 200


def test_bound_elsewhere_the_token_is_needed(serve: Serve) -> None:
    """Without the token nothing is shown; with it the page opens and remembers."""
    address = serve(host="0.0.0.0")
    bare, _, token = address.partition("?token=")
    assert len(token) >= 20
    assert get(bare)[0] == 403
    assert get(f"{bare}?token=wrong")[0] == 403
    assert get(bare, Cookie="moebox-token=wrong")[0] == 403
    assert get(bare, Cookie=f"moebox-token={token}")[0] == 200
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address) as reply:
        assert reply.status == 200
        assert "token" not in reply.url


def test_ctrl_c_ends_it_quietly_even_while_a_page_watches(tmp_path: Path) -> None:
    """SIGINT with an open event stream: exit code 0, one line on stdout, nothing on stderr but a line feed."""
    run = a_run(tmp_path)
    argv = [sys.executable, "-m", "moebox", "ui", "--port", "0", "--runs", str(tmp_path)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    address = child.stdout.readline().strip()
    with urllib.request.urlopen(f"{address}runs/{run.id}/events", timeout=30) as stream:
        assert stream.readline().startswith(b"data: ")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.strip()) == (0, "", "")
