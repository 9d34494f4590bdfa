"""PDF by the real browser: vector drawings, readable text, A4."""

import re
import zlib
from pathlib import Path

from moebox.report.files import write_report
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
        return zlib.decompress(piece.strip(b"\r\n"))
    except zlib.error:
        return b""
