"""The fleet file: what a person may write, and one line for what cannot be meant."""

from pathlib import Path

import pytest

from moebox.cli import main
from moebox.errors import BadInput, MoeboxError
from moebox_fleet.file import Fleet, read_fleet

GOOD = """
name = "team"
[router]
kind = "sglang-router"
[[member]]
recipe = "k26.toml"
box = "8x-h200"
count = 2
[[member]]
url = "http://10.0.0.7:8000"
model = "kimi-k2.6"
[prices.box.8x-h200]
hour = 24.0
"""


def fleet(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path)


def test_members_are_spelled_out_and_named(tmp_path: Path) -> None:
    names = [member.name for member in fleet(tmp_path, GOOD).member]

    assert names == ["k26-1", "k26-2", "10-0-0-7-8000"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "A B"', "name 'A B'"),
        ('[router]\nkind = "nginx"', "router.kind"),
        ("[router]\nport = 70000", "router.port 70000 is out of range"),
        ("[[member]]\nname = 'a'", "give either url or recipe"),
        ("[[member]]\nurl = 'http://a:1'\nrecipe = 'b.toml'", "give either url or recipe"),
        ("[[member]]\nurl = 'http://a:1'\ncount = 2", "count is for recipes"),
        ("[[member]]\nurl = 'http://me:secret@a:1'", "password in a URL"),
        ("[[member]]\nurl = 'a:1'", "not a URL of a server"),
        ("[[member]]\nurl = 'http://a:99999'", "not a URL"),
        ("[[member]]\nurl = 'http://a:1'\n[[member]]\nname = 'b'\nurl = 'http://a:1/'", "two members have the url"),
        ("[[member]]\nname = 'b'\nurl = 'http://a:1'\n[[member]]\nname = 'b'\nurl = 'http://a:2'", "the name b"),
        ("[[member]]\nurl = 'http://a:1'\nrecipie = 'x'", "unknown setting 'member[0].recipie'"),
        ("[prices]\nkwh = -1", "not negative"),
        ("[prices]\nhours_per_day = 25", "hours_per_day"),
        ("[workload.w]\nfirst = 0\noutput = 1", "first, output and turns"),
        ("[workload.w]\nfirst = 10\noutput = 1", "never pause"),
        ("format = 9", "format 9"),
    ],
)
def test_bad_input_is_one_line_that_names_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MoeboxError) as problem:
        fleet(tmp_path, text)

    assert isinstance(problem.value, BadInput)
    assert says in problem.value.message
    assert "\n" not in problem.value.message


def test_a_plan_for_a_file_that_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fleet", "plan", "missing.toml", "--users", "10", "--slo", "ttft=2s"])

    assert code == 2
    assert "missing.toml: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--users", "0", "--slo", "ttft=2s", "--box", "8x-h200"],
        ["--users", "10", "--slo", "speed=2s", "--box", "8x-h200"],
        ["--users", "10", "--slo", "ttft=2s"],
        ["--users", "10", "--slo", "ttft=2s", "--box", "8x-h300"],
        ["--users", "10", "--slo", "ttft=2s", "--box", "8x-h200", "--workload", "agentz"],
        ["--users", "10", "--slo", "ttft=2s", "--box", "8x-h200", "--time", "soon"],
    ],
)
def test_a_plan_that_cannot_be_meant_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fleet", "plan", "kimi-k2.6", *words])

    shown = capsys.readouterr().err
    assert code == 2
    assert shown.startswith("error: ")
    assert "Traceback" not in shown
