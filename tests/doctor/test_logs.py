"""Logs to causes: recorded failures, arbitrary bytes, and gigabytes of them."""

import functools
import io
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.cli import main
from moebox.core.symptom import KnownFailure, symptoms
from moebox.doctor.logs import COMPLAINT, LogSearch, required_words, search_file, search_pieces
from tests.driving import call_main

LOGS = Path(__file__).parents[1] / "logs"


@pytest.mark.parametrize(
    ("log", "symptom"),
    [
        ("vllm-0.32-bad-flag.log", "start-bad-flag"),
        ("vllm-0.32-bad-tool-parser.log", "start-bad-tool-parser"),
        ("vllm-0.32-kv-too-small.log", "oom-context-too-long"),
        ("vllm-0.32-moe-backend-unsupported-on-device.log", "moe-backend-unsupported"),
        ("vllm-0.32-no-model.log", "start-no-model"),
        ("vllm-0.32-port-in-use.log", "start-port-taken"),
        ("vllm-0.32-worker-oom-killed-engine-dead.log", "oom-host-killer"),
        ("llama.cpp-0.2.0-dev-quantised-v-cache.log", "kv-llama-mla-types"),
        ("ik_llama.cpp-2026-08-port-in-use.log", "start-port-taken"),
    ],
)
def test_a_recorded_failure_is_explained_by_its_first_cause(log: str, symptom: str) -> None:
    """Real logs of engines that failed, each in its own way."""
    found = search_file(LOGS / log)
    assert found.cause is not None
    assert found.cause.symptom == symptom
    assert re.search(next(one.pattern for one in symptoms() if one.id == symptom), found.cause.text)


def test_a_good_start_has_no_cause() -> None:
    """A log of vLLM that served and was stopped, warnings and all."""
    found = search_file(LOGS / "vllm-0.32-cpu-boot.log")
    assert found.cause is None


def test_a_warning_is_not_a_cause() -> None:
    """llama.cpp answers 500 to tool calls with --special: worth telling, but the server lives."""
    found = search_file(LOGS / "llama.cpp-b11669-special-tool-calls.log")
    assert found.cause is None
    assert found.findings["parser-llama-special"].change == {"flags.special": False}


def test_the_first_exception_is_reported_if_no_symptom_is_known() -> None:
    """The traceback of the worker comes before that of the server, and only the first is the reason."""
    log = (
        b"(Worker_TP0 pid=9) ERROR 11-15 02:04:02 [multiproc_executor.py:953] WorkerProc failed to start.\n"
        b"(Worker_TP0 pid=9) ERROR 11-15 02:04:02 [multiproc_executor.py:953] Traceback (most recent call last):\n"
        b"(Worker_TP0 pid=9) ERROR 11-15 02:04:02 [multiproc_executor.py:953] ZeroDivisionError: the real reason\n"
        b"RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    found = search_pieces([log], engine="vllm")
    assert found.cause is None
    assert found.exception == "ZeroDivisionError: the real reason"
    assert found.exception_line == 3


@pytest.mark.parametrize("word", ["error", "Error", "ERROR", "fatal", "Fatal", "FATAL"])
def test_an_error_is_reported_in_any_spelling(word: str) -> None:
    """A line that began with "Fatal" was passed over before it was looked at."""
    assert (
        search_pieces([f"loading\n{word}: the tray is empty\nbye\n".encode()]).unknown_failure
        == f"{word}: the tray is empty"
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("llama.cpp-0.2.0-dev-no-ssl.log", "0.00.003.883 E srv          init: the server is built without SSL support"),
        (
            "llama.cpp-0.2.0-dev-no-adapter.log",
            "0.00.074.138 E llama_adapter_lora_init: failed to apply lora adapter: "
            "expect general.type to be 'adapter', but got: model",
        ),
    ],
)
def test_a_line_that_llama_cpp_marks_as_an_error_is_reported(log: str, expected: str) -> None:
    """The first of adjacent ones: the next ones report only that it failed. None of them is out of memory."""
    found = search_file(LOGS / log, engine="llama.cpp")

    assert found.cause is None
    assert found.unknown_failure == expected


def test_a_line_that_ik_llama_cpp_marks_as_an_error_is_reported() -> None:
    """Its server writes ERR; llama.cpp's writes E."""
    last = (LOGS / "ik_llama.cpp-2026-08-no-gguf.log").read_bytes().splitlines()[-1]

    assert search_pieces([last + b"\n"], engine="ik_llama.cpp").unknown_failure.startswith(
        "ERR [              load_model] unable"
    )


@given(st.from_regex(COMPLAINT, alphabet=st.characters(codec="ascii", exclude_characters="\r\n")))
def test_every_line_that_complains_is_looked_at(line: str) -> None:
    """What is looked for before the patterns are tried leaves out nothing that they match."""
    assert search_pieces([f"{line}\n".encode()]).unknown_failure


def test_a_later_error_is_reported_instead_of_one_long_ago() -> None:
    """A request that failed is not why the engine died an hour later."""
    log = b"0.01.000.000 E srv    send_error: too long\n" + b"0.02.000.000 I slot done\n" * 9 + b"1.00.000.001 E a: b\n"

    assert search_pieces([log]).unknown_failure == "1.00.000.001 E a: b"


def test_a_cause_that_goes_on_in_the_next_line_is_reported_whole() -> None:
    """pydantic names the configuration on one line and the setting on the next."""
    log = (
        b"(APIServer pid=1) ERROR 11-15 02:04:02 [x.py:9] ValidationError: 1 validation error for VllmConfig\n"
        b"(APIServer pid=1) ERROR 11-15 02:04:02 [x.py:9]   Value error, max_num_batched_tokens (2048) is too small\n"
    )
    cause = search_pieces([log], engine="vllm").cause
    assert cause is not None
    assert cause.cause.endswith("settings. Value error, max_num_batched_tokens (2048) is too small")


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    """A progress bar rewrites its line many times; it stays one line."""
    bar = b"\r".join(b"Loading shards: %d%%" % done for done in range(100))
    found = search_pieces([bar + b"\nOSError: [Errno 98] Address already in use\n"])
    assert found.cause is not None
    assert found.cause.line == 2


def test_names_in_a_list_of_settings_are_no_failure() -> None:
    """SGLang prints all its settings in one line, those of drafts among them."""
    names = "speculative_draft_load_format dflash_only must_expect error_mode " + " ".join(f"a{n}" for n in range(30))
    line = f"[2026-11-18 04:38:32] server_args=ServerArgs({', '.join(f'{name}=None' for name in names.split())})\n"
    found = search_pieces([line.encode()], engine="sglang")
    assert (found.cause, found.unknown_failure) == (None, "")
    full = b"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.4.\n"
    cause = search_pieces([line.encode(), full], engine="sglang").cause
    assert cause is not None
    assert cause.symptom == "oom-sglang-pool"


def test_another_engines_symptoms_are_left_out() -> None:
    """SGLang's remedy is of no use to vLLM."""
    line = b"Not enough memory. Please try to increase --mem-fraction-static.\n"
    assert search_pieces([line], engine="sglang").cause is not None
    assert search_pieces([line], engine="vllm").cause is None


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_a_log(pieces: list[bytes]) -> None:
    """Reading ends for any content, cut anywhere."""
    found = search_pieces(pieces)
    assert found.lines >= 0


@functools.cache
def cause_at_once(data: bytes) -> KnownFailure | None:
    return search_pieces([data]).cause


@given(cut=st.lists(st.integers(0, 18_000), max_size=8))
def test_a_cause_is_found_however_the_log_is_cut(cut: list[int]) -> None:
    """Streaming in pieces finds what reading at once finds, on the same line."""
    data = (LOGS / "vllm-0.32-kv-too-small.log").read_bytes()
    places = sorted({0, *(min(one, len(data)) for one in cut), len(data)})
    assert search_pieces(data[a:b] for a, b in pairwise(places)).cause == cause_at_once(data)


def test_memory_stays_bounded_whatever_the_log() -> None:
    """Endless lines, endless kinds of lines: tens of megabytes leave next to nothing behind."""
    looking = LogSearch()
    tracemalloc.start()
    for number in range(60):
        looking.feed(b"x" * 65536)
        looking.feed(b"\n".join(b"%s%d" % (chr(97 + n % 26).encode() * (n % 300), number) for n in range(500)) + b"\n")
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert grown < 32 * 2**20


SEARCHED = [one for one in symptoms() if one.pattern and one.kind != "words"]


@pytest.mark.parametrize("symptom", SEARCHED, ids=lambda one: one.id)
def test_a_symptoms_words_are_in_whatever_it_matches(symptom) -> None:  # type: ignore[no-untyped-def]
    """The quick look for words never hides a match: each pattern needs one of them."""
    words = required_words(symptom.pattern)
    assert words
    for line in _lines():
        if re.search(symptom.pattern, line):
            assert any(word in line for word in words)


def _lines() -> list[str]:
    return [line for log in sorted(LOGS.glob("*.log")) for line in log.read_text().splitlines()[-120:]]


def test_the_newest_run_is_searched_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `up` failed, `moebox doctor logs latest` needs no path."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path))
    folder = tmp_path / "20261117-100000-k26-0001"
    folder.mkdir()
    (folder / "run.json").write_text('{"started": "2026-11-17T10:00:00+00:00"}')
    (folder / "engine.log").write_bytes((LOGS / "vllm-0.32-kv-too-small.log").read_bytes())

    assert main(["doctor", "logs", "latest"]) == 1
    assert main(["doctor", "logs", folder.name]) == 1


def test_the_command_explains_a_log_and_a_stream() -> None:
    """A file by name, standard input as "-": exit 1 with the cause and the change to the recipe."""
    log = LOGS / "vllm-0.32-kv-too-small.log"
    done = call_main("doctor", "logs", str(log))
    assert done.code == 1
    assert "in the recipe: context = 155328" in done.out
    done = call_main("doctor", "logs", "-", "--json", stdin=log.read_text())
    assert done.document["cause"]["symptom"] == "oom-context-too-long"


def test_a_stream_that_ends_in_mid_line_is_read_to_its_end() -> None:
    """The last line of a killed engine lacks its newline, and may be the one that matters."""
    assert search_pieces([io.BytesIO(b"OSError: [Errno 98] Address already in use").read()]).cause is not None


def test_lines_of_a_healthy_start_are_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang without a generation_config.json and vLLM's limit of open files: both servers answered (H200)."""
    log = tmp_path / "engine.log"
    log.write_text(
        "[2026-11-18 11:18:37] Failed to load generation config for /m: /m does not appear to have a file named "
        "generation_config.json. Proceeding without generation config.\n"
        "(APIServer pid=649) WARNING 11-18 11:29:25 [system_utils.py:299] Found ulimit of 20000 and failed to "
        "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
        "`OSError: [Errno 24] Too many open files`.\n"
        "INFO:     Application startup complete.\n"
    )
    assert main(["doctor", "logs", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "cause" not in shown
    assert "last error" not in shown
