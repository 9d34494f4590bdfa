"""What `moebox bench` prints on a narrow terminal."""

import io
import re

import pytest
from rich.console import Console

from moebox.bench.generator.job import LoadProgress
from moebox.cli.bench_results import LiveLine, group_errors, print_results, sparkline, time_left

FIGURES = {
    "request_rate": "inf",
    "max_concurrency": 2048,
    "completed": 12_288,
    "failed": 1_234,
    "output_throughput": 12_437.2,
    "total_token_throughput": 117_437.2,
    "max_output_tokens_per_s": 16_401.0,
    "request_throughput": 1_038.25,
    "mean_ttft_ms": 14_211.0,
    "p99_ttft_ms": 161_211.0,
    "mean_tpot_ms": 1_165.1,
    "mean_itl_ms": 65.9,
    "p99_itl_ms": 12_366.4,
    "mean_e2el_ms": 1_240_038.0,
}


def shown(width: int, result: dict[str, object]) -> str:
    """What is printed on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_results(console, [result])
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_figure_is_cut_at_any_width(width: int) -> None:
    """Columns go below each other where they do not fit beside each other."""
    text = shown(width, FIGURES)

    assert "…" not in text
    for figure in ("12,288", "1,234", "12,437", "117,437", "16,401", "1,038", "161,211 ms", "12,366 ms", "1,240,038"):
        assert figure in text
    assert max(map(len, text.splitlines())) <= width


def test_what_a_server_said_cannot_move_the_cursor() -> None:
    """Escape sequences of an error are written out."""
    text = shown(80, {**FIGURES, "errors": {"HTTP 500: \x1b[2Jgone\x07\u202e": 2}})

    assert "\x1b" not in text
    assert "\\u001b[2Jgone\\u0007\\u202e" in text


def test_errors_that_differ_in_numbers_are_one() -> None:
    """Eight prompts that were too long are one remark."""
    errors = {f"HTTP 400: {number} tokens is too long": 1 for number in range(8080, 8088)}

    assert group_errors(errors) == {"HTTP 400: 8080 tokens is too long": 8}
    assert group_errors({c * 3: 1 for c in "abcdefgh"})["3 other errors"] == 3


def test_the_live_line_fits_and_says_how_long_it_will_take() -> None:
    """One line of 80 cells, with the time left and no figure that was not measured."""
    line = LiveLine(Console(width=80), "c2048", total=4096)
    before = LoadProgress(worker=0, ended=0, failed=0, in_flight=2048, tokens=0, ttft_ms=0, cpu_share=0.1)
    after = LoadProgress(worker=0, ended=1024, failed=3, in_flight=2048, tokens=9**6, ttft_ms=91.0, cpu_share=0.5)
    first, then = line.progress_line([before], 3.0, 80).plain, line.progress_line([after], 60.0, 80).plain

    assert re.search(r"no token yet", first)
    assert "TTFT" not in first
    assert "1,024/4,096  3 failed  3 min 00 s left" in then
    assert max(len(first), len(then)) <= 80
    assert time_left(0.0, 2.0) == "2.0 s"


def progress(tokens: int) -> LoadProgress:
    """A worker that has seen so many tokens."""
    return LoadProgress(worker=0, ended=1, failed=0, in_flight=8, tokens=tokens, ttft_ms=9.0, cpu_share=0.1)


def test_the_speed_so_far_is_drawn_below_the_line() -> None:
    """From the first token on, at its own scale, in 80 cells however long the run is."""
    line = LiveLine(Console(width=80), "c8", total=100)
    for place, tokens in enumerate((0, 0, 100, 300, 300, 700), 1):
        line.progress_line([progress(tokens)], float(place), 80)

    assert line.speed_line(80).plain == "tok/s ▃▅▁█ up to 400 tok/s"
    for place in range(7, 700):
        line.progress_line([progress(700 + 10 * place)], float(place), 80)
    drawn = line.speed_line(80).plain
    assert len(drawn) == 80
    assert drawn.startswith("tok/s ")
    assert drawn.endswith(" up to 400 tok/s")


def test_nothing_is_drawn_where_there_is_nothing_to_draw() -> None:
    """Before the second figure, on a terminal of a few cells, and of a server that gives no tokens."""
    line = LiveLine(Console(width=80), "c8", total=100)
    line.progress_line([progress(0)], 1.0, 80)

    assert line.speed_line(80).plain == ""
    for place in (2.0, 3.0, 4.0):
        line.progress_line([progress(5)], place, 80)
    assert line.speed_line(12).plain == ""
    assert sparkline([0.0, 0.0], 8) == "▁▁"


def test_no_peak_below_the_mean_is_shown() -> None:
    """Peaks are counted in whole seconds: of a run of half a second there is none, and 256 is not the peak of 453."""
    text = shown(200, {**FIGURES, "output_throughput": 453.0, "max_output_tokens_per_s": 256.0})
    assert "453" in text
    assert "256" not in text


def test_errors_that_are_known_are_explained_once() -> None:
    """llama.cpp's words say nothing to a reader; what is known of them stands beside them, with its remedy."""
    errors = {f"Failed to parse input at pos {place}: some words": 1 for place in (5, 52)}
    text = " ".join(shown(80, {**FIGURES, "errors": {**errors, "broken": 1}}).split())

    assert text.count("does not fit the grammar made of the chat template") == 1
    assert "Remedy: the request once more" in text
