"""The page with a keyboard alone: every stop is seen, none is a trap, and updates keep the focus and what was typed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.core.event import LoadBegan
from moebox.web import runs
from tests.report.making import a_run
from tests.web.chromium import Chromium, Tab
from tests.web.test_more_pages import engine, received  # noqa: F401  (a fixture)

Serve = Callable[..., str]
BOX = "8x-rtx-pro-6000-server"
VISIBLE = """(() => {
  const one = document.activeElement, style = getComputedStyle(one), place = one.getBoundingClientRect();
  return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 && place.width > 0
    && place.bottom > 0 && place.top < innerHeight; })()"""
PLACE = """JSON.stringify([document.activeElement.outerHTML.slice(0, 200),
  document.activeElement.getBoundingClientRect(),
  innerHeight, scrollY, getComputedStyle(document.activeElement).outline, document.readyState, document.hasFocus()])"""
FOCUSED = "(document.activeElement.name || document.activeElement.textContent.trim()).slice(0, 40)"


@pytest.fixture(autouse=True)
def small_window(tab: Tab) -> None:
    """Lower than what the plan's controls need, so that they have to scroll; at once, not smoothly."""
    tab.size(1100, 560)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])


def press_tab(tab: Tab, *, back: bool = False) -> str:
    """Press Tab; return the element with the focus, which has to be visible, or "" if the focus left the page."""
    tab.press("Tab", shift=back)
    tab.until(f"document.activeElement.matches('body') || {VISIBLE}", shown=PLACE)
    return str(tab.run("document.activeElement.matches('body') ? '' : document.activeElement.outerHTML"))


def go_to(tab: Tab, selector: str, *, back: bool = False) -> None:
    """Press Tab until the focus is there."""
    for _ in range(150):
        if press_tab(tab, back=back) and tab.run(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"not reached: {selector}")


def test_a_model_is_picked_planned_and_started_once(
    tab: Tab, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the list of models to the page of its run; Enter pressed twice on Start makes one run."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = serve(runs=tmp_path / "runs")
    tab.open(f"{url}models?q=kimi-k2.6&box={BOX}")
    go_to(tab, 'a[href*="model=kimi-k2.6&"]')
    tab.press("Enter")
    tab.until("document.querySelector('form.recipe')")
    tab.run("document.querySelector('form.recipe [name=until]').add(new Option('plan', 'plan', true, true))")
    tab.press("Tab")
    assert tab.run("document.activeElement.textContent") == "Skip to the content"
    tab.press("Enter")
    go_to(tab, "form.recipe button:not([type])")
    tab.press("Enter")
    tab.press("Enter")
    tab.until("location.pathname.endsWith('/live') && document.querySelector('.steps .done')", seconds=60)
    assert len([path for path in (tmp_path / "runs").iterdir() if path.is_dir()]) == 1
    go_to(tab, "#live a")


def test_updates_of_a_run_keep_focus_folds_and_replies(
    tab: Tab, browser: Chromium, serve: Serve, tmp_path: Path
) -> None:
    """A refresh leaves the focus on Stop, an open fold open and an error readable; a question can be declined."""
    run = a_run(tmp_path)
    run.acquire_lock()
    (run.path / ".lock").write_text("1")  # another process, which does not hold it
    tab.open(f"{serve(runs=tmp_path)}runs/{run.id}/live", ready="document.querySelector('#live .danger')")

    def refresh(number: int) -> None:
        run.add_event(LoadBegan(concurrency=number))
        tab.until(f"document.querySelector('.events').textContent.includes('concurrency {number}')")

    go_to(tab, "#live .danger")
    refresh(77)
    assert tab.run(FOCUSED) == "Stop the run"
    browser.questions.clear()
    browser.agrees = False
    tab.press("Enter")
    assert not tab.run("document.querySelector('#live .said').textContent")
    browser.agrees = True
    tab.press("Space")
    tab.until("document.querySelector('#live .said').textContent.includes('not on this machine')")
    assert len(browser.questions) == 2
    go_to(tab, "#live th button")
    tab.press("Space")
    go_to(tab, "#live summary")
    tab.press("Enter")
    before = tab.run(FOCUSED)
    refresh(78)
    assert tab.run(FOCUSED) == before
    assert tab.run("document.activeElement.parentElement.open")
    assert tab.run("document.querySelector('#live th[aria-sort=ascending]') !== null")
    assert "not on this machine" in tab.run("document.querySelector('#live .said').textContent")
    go_to(tab, "#live .danger", back=True)
    run.release_lock()
    run.add_event(LoadBegan(concurrency=79))
    tab.until("!document.querySelector('#live .danger')")
    assert tab.run("document.activeElement.id") == "live"  # the button is gone: Tab goes on from here


def test_a_chat_is_sent_stopped_and_kept(tab: Tab, serve: Serve, engine: str) -> None:  # noqa: F811
    """Enter sends, Escape or the button stops, the focus returns to the message; a reload loses no word."""
    received.clear()
    spoken = "[...document.querySelectorAll('.assistant')].at(-1).textContent.includes('...')"
    tab.open(f"{serve()}chat?engine={engine}", ready="document.getElementById('chat')")
    go_to(tab, "[name=text]")
    for stop in ("Escape", "Space"):
        tab.write("talk forever")
        tab.press("Enter")
        tab.until(f"chat.querySelector('.said').textContent === '…' && {spoken}")
        if stop == "Space":
            go_to(tab, "[data-stop]")
        tab.press(stop)
        tab.until("chat.querySelector('.said').textContent === 'stopped'")
        assert tab.run(FOCUSED) == "text"
    tab.write("talk forever")
    tab.press("Enter")
    tab.until(spoken)
    tab.write("half a word")
    shown = tab.run("document.querySelectorAll('#talk article').length")
    tab.call("Page.reload")
    tab.until(f"document.querySelectorAll('#talk article').length >= {shown}")
    assert tab.run("chat.elements.text.value") == "half a word"
    tab.run("chat.querySelector('[type=reset]').click()")


def test_a_recipe_is_edited_and_outlives_a_reload(tab: Tab, serve: Serve) -> None:
    """The text keeps the focus while it is checked, is no trap, and a reload or the back button brings it back."""
    url = serve()
    tab.open(f"{url}recipes/kimi-k26-vllm", ready="document.querySelector('.checked table')")
    go_to(tab, "textarea")
    tab.write("nonsense = 1\n")
    tab.until("document.querySelector('.recipe .said').textContent.includes(\"unknown setting 'nonsense'\")")
    assert tab.run(FOCUSED) == "text"
    tab.call("Page.reload")
    tab.until("document.querySelector('textarea')?.value.startsWith('nonsense')")
    tab.open(f"{url}runs")
    tab.run("history.back()")
    tab.until("document.querySelector('textarea')?.value.startsWith('nonsense') && document.readyState === 'complete'")
    go_to(tab, "[type=reset]")
    tab.press("Enter")
    tab.until("!document.querySelector('textarea').value.startsWith('nonsense')")
    tab.until("document.querySelector('.checked table')")
    go_to(tab, "textarea")
    go_to(tab, "nav a")


def test_a_tune_is_started(tab: Tab, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter in a field starts it; an error keeps the focus where it was."""
    run = a_run(tmp_path)
    started: list[list[str]] = []
    monkeypatch.setattr(runs, "begin_run", lambda words, site: started.append(words) or run.id)
    tab.open(f"{serve(runs=tmp_path)}tune?recipe=mine")
    go_to(tab, "[name=budget]")
    tab.press("Enter")
    tab.until("location.pathname.endsWith('/live')")
    assert [words[3:] for words in started] == [["tune", "--goal=throughput", "--budget=2h", "--", "mine"]]


def test_two_runs_are_compared(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """Tick with Space, go back to the button, and from the comparison to the list."""
    chosen = [a_run(tmp_path, name=name) for name in ("one", "two")]
    tab.open(f"{serve(runs=tmp_path)}runs")
    for run in chosen:
        go_to(tab, f'[value="{run.id}"]')
        tab.press("Space")
    go_to(tab, 'form[action="/compare"] .row button', back=True)
    tab.press("Enter")
    tab.until("document.body.textContent.includes('Side by side')")
    go_to(tab, 'a[href="/runs"]')
    tab.press("Enter")
    tab.until("location.pathname === '/runs'")


def test_every_page_is_left_by_tab(tab: Tab, serve: Serve, tmp_path: Path) -> None:
    """Each stop is visible, and after the last one the focus leaves the page: nothing is a trap."""
    run = a_run(tmp_path)
    url = serve(runs=tmp_path)
    for page in ("?wait=1", f"runs/{run.id}", f"runs/{run.id}/live", "nosuch"):
        tab.open(url + page)
        stops = 0
        while press_tab(tab):
            stops += 1
            assert stops < 400, page
        assert stops > 1, page
