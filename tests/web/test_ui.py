"""The local page in a real browser, and its doors."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.event import CheckDone
from tests.report.making import a_run, level
from tests.web.chromium import Tab
from tests.web.entry import cookie, remember, with_token

Serve = Callable[..., str]


def get(url: str, **headers: str) -> tuple[int, str]:
    """Status and text of a page, asked for by its owner unless `headers` hold another cookie."""
    headers = {"Cookie": cookie(url), **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def test_moving_a_slider_changes_memory_forecast_and_recipe(tab: Tab, serve: Serve) -> None:
    """A stop of the context slider is in the recipe, the cache per request and the forecast without a reload."""
    tab.open(serve(), ready="document.querySelector('#answer svg')")
    assert "context = 65536" in tab.run("document.querySelector('#answer textarea').value")
    before = tab.run("document.querySelector('#answer').textContent")
    tab.run("window.stays = true")
    slider = "document.querySelector('input[data-name=context]')"
    tab.run(f"{slider}.value = 7; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    tab.until("document.querySelector('#answer textarea').value.includes('context = 131072')")
    assert tab.run("document.querySelector('#answer').textContent") != before
    assert tab.run("document.getElementById('context-shown').textContent") == "131,072"
    assert tab.run("window.stays === true")


def test_a_model_that_does_not_fit_is_reported_and_fixed(tab: Tab, serve: Serve) -> None:
    """A box that is too small is reported in place of the plan; a larger one brings the plan back."""
    tab.open(serve() + "?box=1x-rtx-5090", ready="document.querySelector('#answer').textContent.includes('not fit')")
    box = "document.querySelector('input[name=box]')"
    tab.run(f"{box}.value = '8x-b200'; {box}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    tab.until("document.querySelector('#answer svg')")


def test_the_page_and_the_command_line_agree(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """/plan.json is the plan that `moebox plan` prints."""
    status, text = get(serve() + "plan.json?box=8x-b200&context=65536&concurrency=8")
    assert status == 200
    main(["plan", "kimi-k2.6", "--box", "8x-b200", "--context", "65536", "--concurrency", "8", "--json"])
    assert json.loads(text)["recipe"] == json.loads(capsys.readouterr().out)["recipe"]


def test_a_run_is_watched_live(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """What is written into the folder while the page is open appears in it by itself."""
    run = a_run(tmp_path)
    address = serve(tmp_path)
    tab.open(f"{address}runs/{run.id}/live", ready="document.querySelector('#live .checks')")
    check = {"name": "tools", "verdict": "fail", "reason": "<b>arguments</b> cut in half"}
    run.write_json("verdicts/07-tools.json", check)
    run.add_event(CheckDone(name="tools", verdict="fail"))
    tab.until("document.querySelector('#live .checks').textContent.includes('<b>arguments</b> cut in half')")
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
    ("query", "message"),
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
def test_odd_questions_get_a_sentence(serve: Serve, query: str, message: str) -> None:
    """Whatever stands in the address, the answer is a sentence, never a traceback, and markup stays text."""
    status, text = get(f"{serve()}plan?{query}")
    assert status == 200
    assert message in text
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


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_token_is_needed_on_every_address(serve: Serve, host: str) -> None:
    """Without it no page, script or change; with it the page opens, and the address forgets it."""
    bare = serve(host=host)
    name, _, token = cookie(bare).partition("=")
    assert len(token) >= 22  # 128 bits in base64
    for path in ("", "plan.json", "runs", "ui.js", "page.js", "nowhere", "?token=", "?token=wrong", f"?token={token}x"):
        status, text = get(bare + path, Cookie="")
        assert (status, len(text.splitlines())) == (403, 1), path
    for wrong in (f"{name}=wrong", f"moebox-token={token}", f"{name}={token}x", f"{name}="):
        assert get(bare, Cookie=wrong)[0] == 403, wrong
    headers = {"Origin": bare.rstrip("/"), "Content-Type": "application/json"}
    for url in (f"{bare}runs", with_token(f"{bare}runs")):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(url, b"{}", headers=headers), timeout=30)
    assert get(bare)[0] == 200
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(with_token(f"{bare}runs?q=x")) as reply:
        assert (reply.status, reply.url) == (200, f"{bare}runs?q=x")


def test_the_cookie_is_for_browsers_requests_to_this_server_alone(serve: Serve) -> None:
    """No script reads it, no other site sends it, and two pages of one host keep theirs apart."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    first, second = serve(), serve()
    with pytest.raises(urllib.error.HTTPError) as reply:
        urllib.request.build_opener(Stay()).open(with_token(first))
    written = reply.value.headers["Set-Cookie"].lower()
    assert "httponly" in written
    assert "samesite=strict" in written
    assert cookie(first).partition("=")[0] != cookie(second).partition("=")[0]
    both = f"{cookie(first)}; {cookie(second)}"
    assert get(first, Cookie=both)[0] == get(second, Cookie=both)[0] == 200
    assert get(first, Cookie=cookie(second))[0] == 403


def test_a_link_from_a_file_opens_the_page(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """As `--open` does it: a strict cookie is not sent with what another site or a file leads to."""
    address = serve()
    link = tmp_path / "open.html"
    link.write_text(f'<meta http-equiv="refresh" content="0;url={with_token(address + "runs")}">')
    tab.open(link.as_uri(), ready="location.pathname === '/runs' && document.querySelector('nav')")
    assert "token" not in tab.run("location.href")


def test_the_browser_is_started_without_the_token_in_its_command_line(tmp_path: Path) -> None:
    """Every user of a machine may read command lines: `--open` hands over a file that only its owner may read."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\nstat -c %a "${{1#file://}}" > {seen}.part\necho "$1" >> {seen}.part\n')
    with browser.open("a") as file:
        file.write(f'cat "${{1#file://}}" >> {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-m", "moebox", "ui", "--open", "--runs", str(tmp_path)],
        env={**os.environ, "BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    printed = child.stdout.readline().strip()
    while not seen.exists():
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    mode, given, page = seen.read_text().splitlines()

    assert mode == "600"
    assert given.startswith("file:///")
    assert printed in page
    assert not Path(given.removeprefix("file://")).exists()


def over_socket(path: Path, request: bytes) -> bytes:
    """The reply to a request on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_socket_is_open_to_its_owner_alone(serve: Serve, tmp_path: Path) -> None:
    """Mode 0600 whatever the umask, no token; Host and Origin are still checked."""
    path = tmp_path / "ui.sock"
    before = os.umask(0)
    try:
        serve(file=path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    asked = b"GET /ui.js HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
    assert b" 200 " in over_socket(path, asked % b"localhost").splitlines()[0]
    assert b" 421 " in over_socket(path, asked % b"evil.example").splitlines()[0]
    change = b"POST /runs HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    assert b" 403 " in over_socket(path, change % b"Origin: http://localhost:9\r\n").splitlines()[0]


def test_a_socket_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In use, another user's, not a socket, too long a path, or beside --port; a dead process's is replaced."""
    path = tmp_path / "ui.sock"
    (tmp_path / "file").touch()
    refused = {
        str(tmp_path / "file"): "not a socket",
        str(tmp_path / "none" / "ui.sock"): "No such file",
        "/" + "x" * 120: "too long",
    }
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        refused[str(path)] = "another process listens there"
        if os.geteuid() == 0:
            os.mknod(tmp_path / "theirs", 0o140600)
            os.chown(tmp_path / "theirs", 65534, 65534)
            refused[str(tmp_path / "theirs")] = "belongs to another user"
        for name, why in refused.items():
            assert main(["ui", "--socket", name]) in (2, 3)
            error = capsys.readouterr().err
            assert why in error
            assert error.startswith("error: ")
    assert main(["ui", "--socket", str(path), "--port", "0"]) == 2
    command = [sys.executable, "-m", "moebox", "ui", "--socket", str(path), "--runs", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == f"unix:{path}\n"
    assert b" 200 " in over_socket(path, b"GET /ui.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err.strip(), path.exists()) == (0, "", False)


def test_ctrl_c_ends_it_quietly_even_while_a_page_watches(tmp_path: Path) -> None:
    """SIGINT with an open event stream: exit code 0, one line on stdout, nothing on stderr but a line feed."""
    run = a_run(tmp_path)
    argv = [sys.executable, "-m", "moebox", "ui", "--port", "0", "--runs", str(tmp_path)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    address = remember(child.stdout.readline().strip())
    request = urllib.request.Request(f"{address}runs/{run.id}/events", headers={"Cookie": cookie(address)})
    with urllib.request.urlopen(request, timeout=30) as stream:
        assert stream.readline().startswith(b"data: ")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.strip()) == (0, "", "")
