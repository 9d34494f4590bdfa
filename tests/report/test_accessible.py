"""Pages that everybody can read: contrast, names of buttons, nothing cut, the same font everywhere."""

import re
from pathlib import Path

import pytest

from moebox.report import svg
from moebox.report.page import build_page, render_html
from moebox.runs.reader import read_run
from tests.report.making import a_run


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb by WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [svg.LIGHT, svg.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "faint", "good", "bad", "warn"])
def test_text_stands_out_from_paper(colours: dict[str, str], name: str):
    """4.5:1 is what WCAG asks of small text."""
    assert contrast(colours[name], colours["paper"]) >= 4.5
    assert contrast(colours[name], colours["panel"]) >= 4.5


def test_buttons_have_names_and_stand_alone(tmp_path: Path):
    text = render_html(build_page([read_run(a_run(tmp_path))]))

    assert not re.search(r"<button[^>]*></button>", text)
    assert not re.search(r"<summary>(?:(?!</summary>).)*<button", text, re.DOTALL)
    assert '<th scope="col"></th>' not in text


def test_long_evidence_scrolls_by_keyboard_and_no_heading_is_empty(tmp_path: Path):
    """No serious finding of axe-core: a scrolling box that cannot be focused, a heading without text."""
    run = a_run(tmp_path)
    exchange = {"method": "POST", "url": "/v1", "request": {}, "status": 200, "response": "line\n" * 200}
    probe = {"name": "long", "verdict": "fail", "evidence": [exchange]}
    run.write_json("verdicts/plain.json", {"name": "plain", "verdict": "fail", "probes": [probe]})
    text = render_html(build_page([read_run(run), read_run(a_run(tmp_path, name="other", factor=2.0))]))

    assert all('tabindex="0"' in tag or 'class="long"' in tag for tag in re.findall(r"<pre[^>]*>", text))
    assert not re.search(r"<h[1-4][^>]*>\s*</h[1-4]>", text)
    assert not re.search(r"<th[^>]*>\s*</th>", text)


def test_the_font_travels_with_the_page(tmp_path: Path):
    """A mailed report looks the same where Inter is not installed, and asks the network for nothing."""
    text = render_html(build_page([read_run(a_run(tmp_path))]))

    assert "data:font/woff2;base64," in text
    assert "font-src data:" in text
    assert "url(http" not in text
