"""PDF by the real browser: vector drawings, readable text, A4."""

import re
import zlib
from pathlib import Path

from moebox.report.files import write_pdf, write_report
from moebox.report.page import jinja_environment, style_sheet
from moebox.report.table import table_blocks
from tests.report.making import a_run
from tests.web.chromium import program


def test_the_pdf_holds_vectors_not_pictures(tmp_path: Path) -> None:
    """Charts stay drawings: paths in the page's content, and no image anywhere."""
    program()
    _, path = write_report([a_run(tmp_path / "runs")], tmp_path / "r.html", pdf=True)
    raw = path.read_bytes()
    assert raw.startswith(b"%PDF")
    assert b"/Subtype /Image" not in raw
    drawn = b"".join(unpacked(piece) for piece in re.findall(rb"stream\r?\n(.*?)endstream", raw, re.DOTALL))
    assert len(re.findall(rb"\bl\b", drawn)) > 20
    assert re.search(rb"/MediaBox \[0 0 59[45](\.\d+)? 84[12](\.\d+)?\]", raw)


def unpacked(piece: bytes) -> bytes:
    """A stream's content, where it is deflated."""
    try:
        return zlib.decompressobj().decompress(piece)  # whatever line ends follow it, its own last byte may be one
    except zlib.error:
        return b""


def test_the_head_of_a_long_table_stands_on_every_page(tmp_path: Path) -> None:
    """Chromium repeats no head that holds a button, as the heads of tables that sort do."""
    program()
    rows = [(float(number), f"row {number}") for number in range(200)]
    (table,) = table_blocks(("QQQQQQQQ", "Name"), rows, text=(1,), caption="Long")
    body = jinja_environment().get_template("blocks.html").module.table(table)
    raw = write_pdf(f"<!doctype html><style>{style_sheet()}</style>{body}", tmp_path / "long.pdf").read_bytes()

    pages = len(re.findall(rb"/Type /Page\b", raw))
    drawn = b"".join(unpacked(piece) for piece in re.findall(rb"stream\r?\n(.*?)endstream", raw, re.DOTALL))
    heads = re.findall(rb"<(\w+)> Tj\n(?:[\d.]+ 0 Td <\1> Tj\n){7}", drawn)  # one glyph eight times: the first heading
    assert pages > 3
    assert len(heads) == pages
