"""The report in a real browser: foreign text stays text, nothing is fetched, and the page does what it offers."""

from pathlib import Path

import pytest

from moebox.core.engine_event import AttemptFailed, AttemptStarted, EngineFinding
from moebox.report.files import write_report
from moebox.store import Run
from tests.report.making import a_run
from tests.web.chromium import Chromium, Tab

HOSTILE = "</pre><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><svg onload='window.pwned = 3'>"


@pytest.fixture
def page(tmp_path: Path) -> str:
    """A report of a run whose model answered with markup, as a file."""
    run = a_run(tmp_path / "runs")
    exchange = {"method": "POST", "url": HOSTILE, "request": {"q": HOSTILE}, "status": 200, "response": HOSTILE}
    probe = {"name": HOSTILE, "verdict": "fail", "reason": HOSTILE, "evidence": [exchange]}
    run.write_json("verdicts/plain.json", {"name": "plain", "verdict": "fail", "reason": HOSTILE, "probes": [probe]})
    run.add_event(EngineFinding(title=HOSTILE, cause=HOSTILE, remedy=f"`{HOSTILE}`", excerpt=HOSTILE))
    run.add_event(AttemptStarted(model=HOSTILE, argv=("vllm", HOSTILE)))
    run.add_event(AttemptFailed(message=HOSTILE))
    run.write_json("measurements/odd.json", {"name": HOSTILE, "workload": HOSTILE, "tg_tok_s": 3.5, "note": HOSTILE})
    write_report([run], tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


def test_a_script_in_a_transcript_does_not_run(tab: Tab, page: str) -> None:
    """Markup from a model, a log or a file name is shown as text wherever it lands, unfolded or not."""
    tab.open(page)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert tab.run("window.pwned === undefined")
    assert tab.run("document.querySelectorAll('main script, main img, [onerror], [onload]').length") == 0
    assert "window.pwned = 1" in tab.run("document.querySelector('#checks pre').textContent")


def test_even_injected_markup_may_not_run_scripts(tab: Tab, page: str) -> None:
    """The second wall: the page's policy allows its own script only, by hash."""
    tab.open(page)
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned = 4\">')")
    tab.run("const made = document.createElement('script'); made.text = 'window.pwned = 5'; document.body.append(made)")
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert tab.run("window.pwned === undefined")


def test_the_page_asks_for_nothing(browser: Chromium, tab: Tab, page: str) -> None:
    """One file: opening it fetches nothing but itself."""
    tab.open(page)
    tab.run("new Promise(done => setTimeout(done, 100))")
    assert [url for url in browser.asked if not url.startswith(("file:", "about:", "data:font/woff2"))] == []
    assert len([url for url in browser.asked if url.startswith("file:")]) == 1


def test_hovering_shows_the_values_and_the_legend_hides_a_line(tab: Tab, tmp_path: Path) -> None:
    """A pointer over the chart brings the figures of the nearest load; a click on a name takes its line away."""
    runs = [a_run(tmp_path / "runs", name=name, factor=factor) for name, factor in (("slow", 1.0), ("fast", 2.0))]
    write_report(runs, tmp_path / "two.html")
    tab.open((tmp_path / "two.html").as_uri())
    tab.run("document.querySelector('#performance svg').scrollIntoView({block: 'center', behavior: 'instant'})")
    place = "const at = document.querySelector('#performance svg').getBoundingClientRect();"
    x = tab.run(f"(() => {{ {place} return at.left + at.width * 0.98 }})()")
    y = tab.run(f"(() => {{ {place} return at.top + at.height / 2 }})()")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tab.until("document.querySelector('#performance .tip')")
    tip = tab.run("document.querySelector('#performance .tip').textContent")
    assert "64 concurrent requests" in tip
    assert "640" in tip
    assert "1,280" in tip
    tab.run("document.querySelector('#performance .legend button').click()")
    assert tab.run("document.querySelector('#performance [data-series=\"0\"]:not(button)').classList.contains('off')")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 1, y=y)
    assert "1,280" in tab.run("document.querySelector('#performance .tip').textContent")
    assert "640" not in tab.run("document.querySelector('#performance .tip').textContent").replace("1,280", "")


def test_tables_sort_by_value_and_copy_as_csv(tab: Tab, page: str) -> None:
    """A click on a heading orders by number, not by letters; the copy holds unrounded figures."""
    tab.open(page)
    table = "document.querySelector('#figures table')"
    first = f"[...{table}.tBodies[0].rows].map(row => row.cells[0].dataset.value).join()"
    head = f"{table}.querySelector('th button')"
    tab.run(f"{head}.click()")
    assert tab.run(first) == "1.0,8.0,64.0"
    tab.run(f"{head}.click()")
    assert tab.run(first) == "64.0,8.0,1.0"
    tab.run("document.querySelector('#figures .copy').click()")
    tab.until("document.querySelector('#figures .copy').dataset.copied")
    copied = tab.run("document.querySelector('#figures .copy').dataset.copied").splitlines()
    assert copied[0].startswith("Concurrency,Output tok/s")
    assert copied[1].split(",")[:2] == ["64.0", "640.125"]


def test_the_chart_is_whole_without_scripts(tab: Tab, page: str) -> None:
    """With scripts off the drawing, its titles and the tables are all there; buttons that could not work are not."""
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.call("Page.navigate", url=page)
    tab.until("document.readyState === 'complete'")
    assert tab.run("document.querySelectorAll('#performance svg path').length") > 0
    assert "640" in tab.run("document.querySelector('#performance g.series').textContent")
    assert tab.run("getComputedStyle(document.querySelector('.copy')).display") == "none"


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_nothing_sticks_out_sideways(tab: Tab, page: str, width: int) -> None:
    """On a phone, a tablet and a desk the page itself never scrolls sideways."""
    tab.size(width, 900)
    tab.open(page)
    assert tab.run("document.documentElement.scrollWidth") <= width


def test_dark_follows_the_system_and_the_button_turns_it(tab: Tab, page: str) -> None:
    """The colours are the system's choice until the button is pressed; print is always light."""
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.call(
        "Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": "light"}]
    )
    tab.open(page)
    light = tab.run(paper)
    tab.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = tab.run(paper)
    assert light != dark
    tab.run("document.querySelector('.theme').click()")
    assert tab.run(paper) == light
    tab.run("document.querySelector('.theme').click()")
    tab.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert tab.run(paper) == "rgb(255, 255, 255)"


def test_a_packed_report_still_runs_its_script(tab: Tab, tmp_path: Path) -> None:
    """Taking names and keys out of the page leaves its script, and the hash that allows it, alone."""
    from moebox.report.pack import pack_runs

    run: Run = a_run(tmp_path / "runs")
    folder, _ = pack_runs([run], tmp_path / "packed", pdf=False)
    tab.open((folder / "report.html").as_uri())
    assert tab.run("document.documentElement.classList.contains('js')")
