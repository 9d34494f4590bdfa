"""What can go wrong around the kernel doctor: each is one line and its exit code, and files stay whole."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from moebox.cli import main
from moebox.errors import BadInput, ExternalError, MoeboxError
from moebox_kernels import fix, patch
from moebox_kernels.patch import BACKUP_SUFFIX, FilePatch
from moebox_kernels.probe.protocol import LaunchRecord
from moebox_kernels.scan import scan_engine
from tests.kernels.test_scan import HERE, engine, python_that_answers, request

BEFORE, AFTER = "one = 1\n", f"one = 2  {patch.PATCH_MARK} changed\n"


def prepared(folder: Path, name: str = "ops.py") -> FilePatch:
    """A file and its patch."""
    path = folder / "vllm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BEFORE)
    return FilePatch(path=path, name=f"vllm/{name}", before=BEFORE, after=AFTER)


def left(folder: Path) -> list[str]:
    """What lies beside the engine's own files."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".py"))


def answers(folder: Path, *records: dict[str, object]) -> Path:
    """A Python with Triton whose probe says this."""
    done = {"done": {"triton": "3.7.1", "torch": "2.13.0", "python": "3.12"}}
    recording = folder / "recording.jsonl"
    recording.write_text("".join(json.dumps(one) + "\n" for one in (*records, done)))
    return python_that_answers(folder, str(recording))


def words(folder: Path, *records: dict[str, object], version: str = "0.32.0") -> list[str]:
    site = engine(folder / "site", "vllm", version)
    python = answers(folder, *records)
    return ["doctor", "kernels", "--engine", "vllm", "--site-packages", str(site), "--python", str(python)]


def launch(**changes: object) -> dict[str, object]:
    """One launch as the probe records it."""
    lines = (HERE / "vllm-0.32.0-sm_120-fp8.jsonl").read_text().splitlines()
    return {"launch": {**json.loads(lines[0])["launch"], "shared_bytes": 4_096, **changes}}


def test_of_two_at_once_one_patches_and_the_original_is_kept(tmp_path: Path) -> None:
    """The other gets an error; the backup is never a patched file."""
    for number in range(10):
        made = prepared(tmp_path, f"ops{number}.py")
        outcomes: list[str] = []

        def go(one: FilePatch = made, outcomes: list[str] = outcomes) -> None:
            try:
                patch.apply_patch(one, force=True)
                outcomes.append("patched")
            except MoeboxError as problem:
                outcomes.append(type(problem).__name__)

        both = [threading.Thread(target=go) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert sorted(outcomes) == ["BadInput", "patched"]
        assert made.path.read_text() == AFTER
        assert made.path.with_name(made.path.name + BACKUP_SUFFIX).read_text() == BEFORE


def test_a_second_file_that_cannot_be_patched_takes_the_first_back(tmp_path: Path) -> None:
    """All of them or none, byte for byte, and nothing left behind."""
    first, second = prepared(tmp_path, "a.py"), prepared(tmp_path, "b.py")
    second.path.write_text("edited\n")
    with pytest.raises(ExternalError, match="changed"):
        patch.apply_all((first, second), force=True)
    assert first.path.read_text() == BEFORE
    assert second.path.read_text() == "edited\n"
    assert left(tmp_path) == []


def test_interrupted_it_takes_back_what_it_did(tmp_path: Path) -> None:
    """A real process, interrupted between two files: the first is as it was."""
    first, second = prepared(tmp_path / "x"), prepared(tmp_path / "y")
    held = os.open(second.path.parent, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # the process stops here, waiting for its turn
    program = (
        "import sys; from pathlib import Path; from moebox_kernels.patch import FilePatch, apply_all\n"
        f"made = [FilePatch(path=Path(p), name='n', before={BEFORE!r}, after={AFTER!r}) for p in sys.argv[1:]]\n"
        "apply_all(tuple(made), force=True)\n"
    )
    command = [sys.executable, "-c", program, str(first.path), str(second.path)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while first.path.read_text() != AFTER:
            assert child.poll() is None, child.stderr and child.stderr.read()
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    finally:
        child.kill()
        os.close(held)
    assert "KeyboardInterrupt" in said
    assert first.path.read_text() == second.path.read_text() == BEFORE
    assert left(tmp_path) == []


def test_killed_between_backup_and_patch_it_can_be_done_again(tmp_path: Path) -> None:
    """A backup that equals the file is no patch; one that differs is."""
    made = prepared(tmp_path)
    backup = made.path.with_name(made.path.name + BACKUP_SUFFIX)
    backup.write_text(BEFORE)
    patch.apply_patch(made, force=True)
    assert made.path.read_text() == AFTER
    made.path.write_text("edited since\n")
    with pytest.raises(BadInput, match="patched already"):
        patch.apply_patch(made, force=True)
    assert backup.read_text() == BEFORE


def test_a_read_only_file_is_left_alone_and_permissions_are_kept(tmp_path: Path) -> None:
    """Also for root, who could."""
    made = prepared(tmp_path)
    made.path.chmod(0o444)
    with pytest.raises(ExternalError, match="read-only"):
        patch.apply_patch(made, force=True)
    assert left(tmp_path) == []
    made.path.chmod(0o640)
    patch.apply_patch(made, force=True)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o640
    patch.revert_patches(tmp_path, "vllm")
    assert (made.path.read_text(), stat.S_IMODE(made.path.stat().st_mode)) == (BEFORE, 0o640)


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    """Not a traceback out of the decoder."""
    made = prepared(tmp_path)
    made.path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not text"):
        patch.apply_patch(made, force=True)


def test_nothing_judged_is_no_clean_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files edited until nothing launches: exit code 3; a word that no case has: 2."""
    missed = {"missed": {"case": "MLA decode, batch 1", "why": "SyntaxError: invalid syntax"}}
    assert main(words(tmp_path / "a", missed, {"empty": {"case": "MLA decode, batch 1"}})) == 3
    assert "no kernel of vllm could be judged: MLA decode, batch 1: SyntaxError" in capsys.readouterr().err
    assert main([*words(tmp_path / "b"), "--only", "nonsense"]) == 2
    assert "--only nonsense: no case of vllm" in capsys.readouterr().err


def test_a_kernel_that_does_not_compile_has_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 with the compiler's words; other blocks would not fix it, and --fix says so."""
    asked = words(tmp_path, launch(), launch(kernel="_broken", shared_bytes=0, error="CompilationError: at 3:4"))
    assert main(asked) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "_broken does not compile: CompilationError: at 3:4" in shown
    assert "--fix" not in shown
    assert main([*asked, "--fix"]) == 3
    assert "does not compile" in capsys.readouterr().err


def test_an_unknown_version_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Triton's kernels are judged all the same; what is known by version cannot be."""
    asked = words(tmp_path, launch())
    for path in (tmp_path / "site").glob("*.dist-info/METADATA"):
        path.write_text("Name: vllm\n")
    assert main(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "vllm (version unknown)" in shown
    assert "does not state its version" in shown


def test_a_python_that_answers_nonsense_is_an_error(tmp_path: Path) -> None:
    """No versions: no Triton."""
    asked = request(tmp_path, "vllm", "0.32.0", "vllm-0.32.0-sm_120-fp8.jsonl")
    assert asked.python
    asked.python.write_text("#!/bin/sh\necho\n")
    with pytest.raises(ExternalError, match="no Triton"):
        scan_engine(asked)
    asked.python.unlink()
    with pytest.raises(BadInput, match="cannot be run"):
        scan_engine(asked)


@pytest.mark.parametrize("garbage", [None, b"{", b"\x00\xff", b'{"target": 3}', b"[]"])
def test_a_cache_without_kernels_is_an_error(
    tmp_path: Path, garbage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty or garbage: exit code 2, and where the right one may be."""
    if garbage is not None:
        (tmp_path / "k.json").write_bytes(garbage)
    assert main(["doctor", "kernels", "--cache", str(tmp_path)]) == 2
    assert "holds no kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tp", "0"], "--tp 0"),
        (["--apply"], "--apply needs --fix"),
        (["--model", "qwen3-235b"], "only MLA"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    asked = words(tmp_path, launch())
    assert main([*asked, *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_only_what_a_patch_can_say_is_proposed() -> None:
    """vLLM's decode writes its warps down as a number: candidates keep them."""
    lines = (HERE / "vllm-0.32.0-sm_120-fp8.jsonl").read_text().splitlines()
    one = msgspec.convert(next(json.loads(line)["launch"] for line in lines if "stage1" in line), LaunchRecord)
    from moebox.core.kernel import find_arch

    assert {choice["num_warps"] for choice in fix.propose_candidates(one, find_arch("sm_120"))} == {one.num_warps}
