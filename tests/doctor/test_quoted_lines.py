"""Lines that owners quoted in their reports are found by the symptom that cites the report; Xids are explained."""

import csv
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.symptom import symptoms, xids
from moebox.doctor.logs import search_pieces
from tests.driving import call_main

with (Path(__file__).parent / "quoted_lines.csv").open(encoding="utf-8", newline="") as file:
    QUOTES = [(row["symptom"], row["line"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("symptom", "line"), QUOTES)
def test_a_quoted_line_is_found_by_the_symptom_that_cites_it(symptom: str, line: str) -> None:
    """Every line quoted in a report leads to its symptom, whichever other symptom the lines around it have."""
    assert symptom in search_pieces([f"{line}\n".encode()]).findings


def test_ids_of_symptoms_are_unique() -> None:
    """An id names one symptom over both files."""
    ids = [symptom.id for symptom in symptoms()]
    assert len(set(ids)) == len(ids)


def test_every_xid_of_nvidias_table_is_explained() -> None:
    """A kernel log line with any number of the table gives its meaning, whose fault it usually is, and an action."""
    assert sorted(xids()) == list(range(1, 177))
    for number, known in xids().items():
        line = f"NVRM: Xid (PCI:0000:01:00): {number}, pid=1, name=python3"
        (finding, *_) = search_pieces([f"{line}\n".encode()]).findings.values()
        assert known.name in finding.cause, number
        assert finding.remedy, number


@pytest.mark.parametrize("number", [8, 31, 69, 119])
def test_doctor_logs_names_the_cause_of_an_xid(number: int) -> None:
    """`doctor logs` names these Xids as the cause and exits 1."""
    line = f"[ 388.5] NVRM: Xid (PCI:0000:01:00): {number}, pid=6211, name=python3, channel 0x00000008\n"
    done = call_main("doctor", "logs", "-", "--json", stdin=line)
    assert done.code == 1, done
    cause = done.document["cause"]
    assert cause["cause"].startswith(f"Xid {number}, ")
    assert "Usually the fault of" in cause["cause"]
    assert xids()[number].meaning not in cause["cause"], "its meaning stood beside the same in other words"


def test_two_xids_are_two_findings() -> None:
    """Different numbers are counted apart."""
    lines = b"NVRM: Xid (PCI:0000:01:00): 63, pid=1\nNVRM: Xid (PCI:0000:01:00): 94, pid=1\n" * 2
    found = search_pieces([lines])
    assert found.counts == {"gpu-xid-63": 2, "gpu-xid-94": 2}


def test_an_xid_that_the_table_does_not_list_is_a_finding() -> None:
    """A number beyond the table is reported as unknown to it."""
    assert "gpu-xid" in search_pieces([b"NVRM: Xid (PCI:0000:01:00): 999, pid=1\n"]).findings


@pytest.mark.parametrize(
    ("line", "symptom"),
    [
        ("ValueError: Model architectures ['OddMoe'] are not supported for now. Supported: []", "start-arch-unknown"),
        ("llama_model_load: error loading model: unknown model architecture: 'odd'", "start-arch-unknown-gguf"),
        ("alloc_buffer: allocating 40112.00 MiB on device 0: cudaMalloc failed: out of memory", "oom-llama-buffer"),
        ("Bus error (core dumped)", "host-bus-error"),
        ("Illegal instruction (core dumped)", "host-cpu-instruction"),
        ("Killed", "oom-host-killer"),
        ("ValueError: Unknown quantization method: zq5. Must be one of ['awq'].", "start-quantisation-unknown"),
        ("ValueError: World size (8) is larger than the number of available GPUs (4)", "start-too-few-gpus"),
    ],
)
def test_common_last_lines_have_a_cause(line: str, symptom: str) -> None:
    """What users see most often in a log that ends early."""
    found = search_pieces([f"{line}\n".encode()])
    assert found.cause is not None
    assert found.cause.symptom == symptom


def test_a_context_beyond_the_model_names_the_models_own() -> None:
    """The change for the recipe comes from the line."""
    line = "ValueError: User-specified max_model_len (1048576) is greater than the derived max_model_len "
    cause = search_pieces([f"{line}(max_position_embeddings=131072 or model_max_length=None)\n".encode()]).cause
    assert cause is not None
    assert cause.change == {"context": 131072}


@pytest.mark.parametrize(
    ("log", "code", "text"),
    [
        (
            "srv load_model: error: bad flux\n",
            1,
            "no known symptom; the last error in it:\n  srv load_model: error: bad flux",
        ),
        (
            "an error: ignored\n" + "INFO ready\n" * 30,
            0,
            "no known symptom; the last error in it:\n  an error: ignored",
        ),
        ("INFO ready\n", 0, "no known failure in it"),
        ("", 0, "the log is empty"),
    ],
)
def test_an_error_without_a_symptom_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, code: int, text: str
) -> None:
    """A log that ends with an error is not declared free of failures; one that went on for long is."""
    path = tmp_path / "engine.log"
    path.write_text(log)
    assert main(["doctor", "logs", str(path)]) == code
    assert text in capsys.readouterr().out
