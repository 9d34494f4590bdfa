"""Packages: complete, and without secrets or the machine's identity."""

import getpass
import html
import json
import os
import random
import resource
import socket
import tarfile
import zlib
from pathlib import Path

import pytest

from moebox.bench import samples
from moebox.cli import main
from moebox.errors import BadInput
from moebox.redact import HIDDEN, redact_text
from moebox.report.pack import pack_runs
from moebox.runs.reader import read_run
from tests.report.making import a_run

SECRETS = (
    "sk-verysecret99",
    "hf_abcdefghijklmnop",
    "10.23.4.5",
    "GPU-11111111-2222-3333-4444-555555555555",
    "hunter2hunter2",
)


def test_every_file_that_moebox_writes_is_its_own(tmp_path: Path) -> None:
    """Requests that showed a failure are packed, and the report names them; what is about users is left out by name."""
    run = a_run(tmp_path / "runs")
    found = {"method": "POST", "url": "u", "curl": f"curl u -d '{'x' * 5000}'", "file": "reproduce/08-tools.json"}
    run.write_json("verdicts/08-tools.json", {"name": "tools", "verdict": "fail", "reproduction": found})
    for name in ("reproduce/08-tools.json", "usage.json", "traces.jsonl", "watch.jsonl", "bisect.json", "issue.md"):
        run.write_file(name, "{}")
    run.write_file("incidents/1.json", "{}")
    run.write_file("notes.txt", "mine")
    folder, left_out = pack_runs([run], tmp_path / "packed", pdf=False)

    assert [gap for gap in read_run(run).gaps if "not written" in gap] == ["ignored, not written by moebox: notes.txt"]
    assert (folder / "reproduce" / "08-tools.json").read_text() == "{}"
    assert "--data-binary @reproduce/08-tools.json" in html.unescape((folder / "report.html").read_text())
    assert not (folder / "usage.json").exists()
    assert left_out == [f"{name}: about users, stays on this machine" for name in ("usage.json", "traces.jsonl")]


def test_a_package_is_complete_and_clean(tmp_path: Path) -> None:
    """README, findings, report, configs, logs and figures are there; keys, addresses and serials are not."""
    run = a_run(tmp_path / "runs")
    host = socket.gethostname()
    (run.path / "engine.log").write_text(
        f"started on {host} at 10.23.4.5 HF_TOKEN=hf_abcdefghijklmnop\npassword: x\n{SECRETS[3]}\n"
    )
    (run.path / "engine.log.0").write_text("VLLM_API_KEY='hunter2hunter2' MAX_TOKENS=4096 tokens: 512\n")
    run.write_file("patches/a.patch", "--- a\n+++ b\n")
    run.write_file("model.gguf", b"GGUF")
    (run.path / "measurements" / "link.json").symlink_to("/etc/passwd")
    folder, left_out = pack_runs([run], tmp_path / "packed", pdf=False)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    expected = {"README.md", "FINDINGS.md", "report.html", "report.md", "configs/recipe.toml", "configs/box.toml"}
    expected |= {
        "logs/engine.log",
        "logs/engine.log.0",
        "logs/events.jsonl",
        "patches/a.patch",
        "verdicts/02-arithmetic.json",
    }
    assert expected <= names
    assert not any("link" in name or "gguf" in name for name in names)
    everything = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    for secret in SECRETS:
        assert secret not in everything
    if len(host) > 2 and host != "localhost":
        assert host not in everything
    assert "MAX_TOKENS=4096" in everything
    assert left_out == ["link.json: is a link or no plain file"]


def test_an_archive_names_no_owner(tmp_path: Path) -> None:
    """The tar holds one folder, and neither user nor group."""
    path, _ = pack_runs([a_run(tmp_path / "runs")], tmp_path / "out" / "k26.tar.gz", pdf=False)
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert all(member.name.split("/")[0] == "k26" for member in members)
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}


def test_an_archive_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of that name, a place that takes no files: exit 2; a full disk: exit 3; nothing is left behind."""
    run = a_run(tmp_path / "runs")
    there, full = tmp_path / "there.tar.gz", tmp_path / "full.tar.gz"
    there.mkdir()
    full.symlink_to("/dev/full")
    for target in (there, full, Path("/proc/none.tar.gz"), Path("/proc/none"), tmp_path / f"{'x' * 300}.tar.gz"):
        assert main(["pack", str(run.path), "-o", str(target), "--no-pdf"]) == (3 if target == full else 2)
        output = capsys.readouterr()
        assert output.err.startswith(f"error: {target}: cannot be written: "), output.err
        assert not output.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.tar.gz", "runs", "there.tar.gz"]


def test_a_disk_that_fills_up_leaves_the_archive_that_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file fits, all of them together do not: the limit of a process on its files stands for the disk."""
    run = a_run(tmp_path / "runs")
    folder, _ = pack_runs([run], tmp_path / "packed", pdf=False)
    largest = max(path.stat().st_size for path in folder.rglob("*"))
    for number in range(4):
        run.write_file(f"patches/{number}.txt", random.Random(number).randbytes(largest // 2 - 1).hex())
    target = tmp_path / "k26.tar.gz"
    target.write_text("earlier")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 4096, before[1]))
    try:
        code = main(["pack", str(run.path), "-o", str(target), "--no-pdf"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert code == 3
    assert f"error: {target}: cannot be written: File too large" in capsys.readouterr().err
    assert target.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k26.tar.gz", "packed", "runs"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Packing never writes over what is there."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("x")
    with pytest.raises(BadInput, match="already exists"):
        pack_runs([a_run(tmp_path / "runs")], tmp_path / "there", pdf=False)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("vllm serve --api-key topsecretvalue --tp 8", "--tp 8"),
        ("Authorization: Bearer abc.def-123456", "Authorization"),
        ('{"api_key": "abcd1234", "model": "k"}', '"model": "k"'),
        ("http://user:pa55word@host/v1", "/v1"),
        ("postgres://db password=topsecretvalue sslmode=on", "sslmode=on"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY next", "next"),
        ("aws_session_token = FwoGZXIvYXdzEBYaDExampleSession next", "next"),
        ("id AKIAIOSFODNN7EXAMPLE next", "next"),
        ("key=AIzaSyA-1234567890abcdefghijklmnopqrstu next", "next"),
        ("ya29.a0AfExampleExampleExample next", "next"),
        ('{"private_key": "MIIEvExampleExample", "kind": "k"}', '"kind": "k"'),
        ("curl -H 'authorization: bearer ABCDEFGH.ijkl' next", "next"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nafter", "after"),
    ],
)
def test_keys_are_hidden_and_the_rest_is_kept(text: str, kept: str) -> None:
    """Each way a key is written down."""
    tidy = redact_text(text)
    assert HIDDEN in tidy
    assert kept in tidy
    for secret in (
        "topsecretvalue",
        "abc.def-123456",
        "abcd1234",
        "pa55word",
        "MIIE",
        "wJalrXUtnFEMI",
        "FwoGZX",
        "AKIAIO",
    ):
        assert secret not in tidy
    for secret in ("AIzaSyA", "ya29", "ABCDEFGH"):
        assert secret not in tidy


def test_home_folders_are_redacted() -> None:
    """Of any user: a log may come from another machine."""
    assert redact_text("/home/alice/models /Users/bob/x /root/.cache /var/home/eve/y") == "~/models ~/x ~/.cache ~/y"
    assert redact_text("/homework /rootfs /data/home/x") == "/homework /rootfs /data/home/x"


def mebibytes_of_nought(count: int) -> bytes:
    """As zlib packs them, from the same piece again and again; the checksum at the end is that of two."""
    packing = zlib.compressobj(9)
    first, again = (packing.compress(bytes(1 << 20)) + packing.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (count - 1) + packing.flush()


def test_what_is_no_plain_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would never end, and samples may unpack to gigabytes: such files are named, and not packed."""
    monkeypatch.setattr(samples, "MAX_UNPACKED_BYTES", 32 << 20)
    run = a_run(tmp_path / "runs")
    os.mkfifo(run.path / "measurements" / "pipe.json")
    columns = [["time", "q", len(bomb := mebibytes_of_nought(40))]]
    head = {"magic": "moebox-samples-1", "zero": 0, "wall": 0.0, "reasons": [""], "columns": columns}
    (run.path / "measurements" / "bomb.samples").write_bytes(json.dumps(head).encode() + b"\n" + bomb)
    folder, left_out = pack_runs([run], tmp_path / "packed", pdf=False)

    assert not list(folder.rglob("pipe*"))
    assert not list(folder.rglob("bomb*"))
    assert any(line.startswith("pipe.json: is a link or no plain file") for line in left_out)
    assert any("more than any measurement has" in line for line in left_out)


@pytest.mark.parametrize(
    "text",
    [
        "a token that costs 70,272 bytes",
        "first token: 200 ms",
        "max_token = 4096",
        "127.0.0.1:8000",
        "version 1.2.3.4567",
        "KV tokens 180,191",
    ],
)
def test_plain_words_are_not_taken_for_keys(text: str) -> None:
    """Talk about tokens is not a token."""
    if getpass.getuser() not in text:
        assert redact_text(text) == text


def test_several_runs_are_packed_with_one_report(tmp_path: Path) -> None:
    """Each run has its launch, GPUs and configs; the report compares them; the README has the command."""
    runs = [a_run(tmp_path / "runs", name=name) for name in ("alpha", "beta")]
    folder, _ = pack_runs(runs, tmp_path / "packed", pdf=False)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    for run in runs:
        wanted = ("launch.sh", "gpu-info.txt", "gpu-topology.txt", "configs/recipe.toml", "logs/events.jsonl")
        assert {f"runs/{run.id}/{name}" for name in wanted} <= names
    assert "Side by side" in (folder / "report.html").read_text()
    text = (folder / "README.md").read_text()
    assert f"moebox run --recipe runs/{runs[0].id}/configs/recipe.toml" in text
    assert "**chosen**" in text
