"""Jobs in the report: scores by family, where the others went wrong, one job turn by turn."""

from pathlib import Path

from moebox.assess.run import assess_run
from moebox.report.files import write_report
from moebox.report.sections.tasks import tasks_section
from moebox.runs.reader import read_run
from moebox.store import Run
from moebox.tasks.result import FILE, CallRecord, HiddenCheckResult, JobName, JobResult, TaskRun, TurnRecord


def turn(number: int) -> TurnRecord:
    return TurnRecord(
        number=number,
        at_s=2.0 * number,
        seconds=2.0,
        prompt_tokens=1000 * number,
        completion_tokens=80,
        cached_tokens=900 * number,
        tok_s=60.0 - number,
        calls=(CallRecord(tool="edit_file", ok=True),),
    )


def result(seed: int, solved: bool) -> JobResult:
    return JobResult(
        family="repair",
        level="hard",
        seed=seed,
        solved=solved,
        end="done" if solved else "context",
        wrong="" if solved else "context full: <b>2048</b> tokens",
        wrong_turn=0 if solved else 3,
        checks=(HiddenCheckResult(name="spans", passed=6 if solved else 2, of=6),),
        seconds=12.0,
        turns=tuple(turn(number) for number in range(1, 5)),
        first_tok_s=60.0,
        last_tok_s=54.0,
        transcript=f"tasks/repair-hard-{seed}.jsonl",
    )


def saved(folder: Path) -> Run:
    run = Run.create("task", runs=folder)
    wanted = tuple(JobName(family="repair", level="hard", seed=seed) for seed in range(3))
    results = (result(0, True), result(1, False))
    tasks = TaskRun(url="http://127.0.0.1:1/v1", model="m", context=8192, wanted=wanted, results=results)
    run.write_json(FILE, tasks)
    run.release_lock()
    return run


def test_what_was_written_is_read_back_as_the_same_type(tmp_path: Path) -> None:
    """And what is left is known."""
    tasks = read_run(saved(tmp_path)).tasks

    assert tasks is not None
    assert tasks.results == (result(0, True), result(1, False))
    assert [name.seed for name in tasks.unfinished_jobs] == [2]


def test_the_section_has_scores_failures_and_a_timeline(tmp_path: Path) -> None:
    """With intervals, the step where it went wrong, and two charts."""
    found = tasks_section([read_run(saved(tmp_path))])

    assert found is not None
    assert found.lead == "1 of 2 (9–91%) jobs solved by our own agent."
    kinds = [block.kind for block in found.blocks]
    assert kinds == ["table", "table", "charts"]


def test_the_page_holds_it_and_escapes_model_output(tmp_path: Path) -> None:
    """In HTML and in Markdown."""
    run = saved(tmp_path)
    made = write_report([run], tmp_path / "report.html", markdown=True)
    page = made[0].read_text()

    assert "Agents at work" in page
    assert "repair-hard-1" in page
    assert "<b>2048</b>" not in page
    assert "90% of that over the first" in page
    assert "Agents at work" in (tmp_path / "report.md").read_text()


def test_a_file_that_is_not_ours_costs_only_itself(tmp_path: Path) -> None:
    """The rest of the report is made, with a note."""
    run = saved(tmp_path)
    run.write_file("tasks.json", '{"url": 3}')
    record = read_run(run)

    assert record.tasks is None
    assert any("tasks.json" in gap for gap in record.gaps)


def test_the_strip_names_the_jobs(tmp_path: Path) -> None:
    """A run of jobs alone shows its jobs beside "not checked yet" and "not measured yet"."""
    run = saved(tmp_path)
    _, right, _, following = assess_run(read_run(run)).cells

    assert right.detail == "1 of 2 jobs solved by an agent; 1 job not done"
    assert following.text == f"moebox task --resume {run.id}"
