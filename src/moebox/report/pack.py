"""Runs as a folder or archive to publish, without secrets and without the machine's identity; or one run as a row.

    README.md  FINDINGS.md  report.html  report.pdf  launch.sh  gpu-info.txt  gpu-topology.txt
    configs/  logs/  measurements/  verdicts/  reproduce/  patches/          of several runs, these lie in runs/NAME/

Text is redacted line by line; files that are not text are left out, except samples, which hold only times.
"""

import hashlib
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from moebox import __version__, codec, files
from moebox.assess.commands import run_commands
from moebox.assess.recommend import recommend
from moebox.bench import samples
from moebox.checkpoint import deploy
from moebox.core.matrix_row import MatrixRow, SpeedCell, row_problems
from moebox.detect.bundle import gpu_text, link_text
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.redact import redact_text
from moebox.render import render
from moebox.report.files import OUTPUT_HINT, load_template, make_page, render_markdown, save_file, write_pdf
from moebox.report.page import ReportPage, render_html
from moebox.runs.reader import PACKED_FILES, PACKED_FOLDERS, PRIVATE_FILES
from moebox.runs.record import RunRecord
from moebox.store import Run, plain
from moebox.store.log import log_pieces

TEXT = (".json", ".jsonl", ".toml", ".txt", ".md", ".log", ".patch", ".diff", ".sh", ".csv", ".xml", ".yaml", ".yml")
BINARY = (".samples",)  # columns of times and counts
MAX_FILE_BYTES = 64 * 2**20  # larger files are named in the README instead
ABOUT = {
    "report.html": "the report; opens in any browser, needs no network",
    "report.pdf": "the same, for print",
    "report.md": "the same, as text",
    "FINDINGS.md": "attempts, problems met and recommendations",
    "launch.sh": "the launch, as a script that needs no moebox",
    "gpu-info.txt": "the GPUs; gpu-topology.txt has their links",
    "runs": "each run with its launch, configs, logs, measurements, verdicts and patches",
    "configs": "recipe, box, plan",
    "logs": "the journal and the engine's log",
    "measurements": "every figure, and the times it was computed from",
    "verdicts": "each check with its evidence",
    "reproduce": "the smallest request that showed each failed check's fault",
    "patches": "changes to the engine that were applied",
}


def pack_runs(runs: Sequence[Run], target: Path, *, pdf: bool = True) -> tuple[Path, list[str]]:
    """Write a folder, or an archive if `target` ends in .tar.gz or .tgz. Return its path and what was left out."""
    refuse_if(not runs, "name the runs to pack", hint="`moebox runs` lists them")
    is_archive = target.name.endswith((".tar.gz", ".tgz"))
    if not is_archive and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"{target}: already exists", hint="name a new folder, or an empty one")
    with files.report_write_errors(target, error_type=BadInput, hint=OUTPUT_HINT):
        files.check_writable(target if is_archive else target / "README.md")
    if not is_archive:
        return target, fill_package(runs, target, pdf=pdf)
    name = target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    with files.scratch_folder("pack") as folder:
        left_out = fill_package(runs, folder / name, pdf=pdf)
        with (
            files.report_write_errors(target, hint=OUTPUT_HINT),
            files.open_atomic(target) as file,
            tarfile.open(target.name, "w:gz", fileobj=file) as archive,
        ):
            archive.add(folder / name, arcname=name, filter=drop_owner)
    return target, left_out


def drop_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """An archive member without user and group names."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def fill_package(runs: Sequence[Run], folder: Path, *, pdf: bool) -> list[str]:
    """Write every part of the package; return what was left out."""
    left_out: list[str] = []
    page = make_page(runs)
    text = redact_text(render_html(page))
    save_file(folder / "report.html", text)
    save_file(folder / "report.md", redact_text(render_markdown(page)))
    if pdf:
        try:
            write_pdf(text, folder / "report.pdf")
        except ExternalError as problem:
            left_out.append(f"report.pdf: {problem.message}")
    for run, record in zip(runs, page.records, strict=True):
        inside = folder if len(runs) == 1 else folder / "runs" / run.id
        write_launch_files(record, inside, left_out)
        copy_run(run, inside, left_out)
    save_file(folder / "FINDINGS.md", redact_text(load_template("findings.md").render(page=page).rstrip() + "\n"))
    save_file(folder / "README.md", redact_text(readme_text(page, folder, left_out)))
    return left_out


def write_launch_files(record: RunRecord, folder: Path, left_out: list[str]) -> None:
    """Write the launch as a script that needs no moebox, and the GPUs it ran on."""
    if record.box:
        save_file(folder / "gpu-info.txt", redact_text(gpu_text(record.box)))
        save_file(folder / "gpu-topology.txt", redact_text(link_text(record.box)))
    if record.recipe is None:
        return
    try:
        save_file(folder / "launch.sh", redact_text(render(deploy(record.recipe, record.box), "script")))
    except MoeboxError as problem:  # an embedded engine has no script, weights may be gone
        left_out.append(f"launch.sh: {problem.message}")


def copy_run(run: Run, folder: Path, left_out: list[str]) -> None:
    """Copy the files of one run that may leave the machine; hidden files stay."""
    for name in PACKED_FILES:
        copy_file(run.path / name, folder / "configs" / name, left_out)
    logs = (run.path / "events.jsonl", *log_pieces(run.path / "engine.log"), *plain.list_entries(run.path, "*.log"))
    for log in logs:
        copy_file(log, folder / "logs" / log.name, left_out)
    left_out += [f"{name}: about users, stays on this machine" for name in PRIVATE_FILES if (run.path / name).exists()]
    for name in PACKED_FOLDERS:
        source = run.path / name
        if source.is_symlink():
            left_out.append(f"{name}: is a link or no plain file")
        for path in plain.list_entries(source, "**/*"):
            if not path.is_dir() and not path.name.startswith("."):
                copy_file(path, folder / name / path.relative_to(source), left_out)


def copy_file(source: Path, target: Path, left_out: list[str]) -> None:
    """Copy one file, redacted if it is text. What may not leave the machine or cannot be searched is left out."""
    if not source.exists() and not source.is_symlink():
        return
    if not plain.is_plain_file(source):
        left_out.append(f"{source.name}: is a link or no plain file")
        return
    size = source.stat().st_size
    if size > MAX_FILE_BYTES:
        left_out.append(f"{source.name}: {size / 2**20:,.0f} MiB is too large")
        return
    try:
        if source.suffix in TEXT or source.name.startswith("engine.log"):
            save_file(target, redact_text(plain.read_text(source)))
        elif source.suffix in BINARY:
            samples.read_samples(source)  # others will unpack it, so it must be valid
            save_file(target, plain.read_bytes(source))
        else:
            left_out.append(f"{source.name}: not text, so it was not searched for secrets")
    except BadInput as problem:
        left_out.append(problem.message.replace(str(source), source.name))


def readme_text(page: ReportPage, folder: Path, left_out: list[str]) -> str:
    """README.md: the assessment, the contents of the folder, and how to run it again."""
    places = ["configs"] if len(page.records) == 1 else [f"runs/{record.id}/configs" for record in page.records]
    recipes = [f"{place}/recipe.toml" for place in places if (folder / place / "recipe.toml").exists()]
    commands = [line for record in page.records if not record.recipe for line in run_commands(record).splitlines()]
    text = load_template("readme.md").render(
        page=page,
        advice=recommend(page.records)[:3],
        contents=[(name, text) for name, text in ABOUT.items() if (folder / name).exists()],
        commands=[*(f"moebox run --recipe {recipe}" for recipe in recipes), *commands],
        version=__version__,
        left_out=left_out,
    )
    return str(text).rstrip() + "\n"


SETTINGS = ("kv", "context", "max_seqs", "memory_utilization")


def row_of_run(record: RunRecord) -> MatrixRow:
    """Return the run's row. Raise BadInput for a run that shows nothing of an engine on a box."""
    recipe, box = record.recipe, record.box
    refuse_if(record.simulation, f"{record.id} is a simulation: it shows nothing of an engine")
    if recipe is None or box is None:
        missing = "recipe.toml" if recipe is None else "box.toml"
        raise BadInput(f"{record.id} has no {missing}", hint="`moebox run` and `moebox up` write both")
    checks: dict[str, str] = {check.name: check.verdict for check in record.checks}
    loads = [load for load in record.loads if load.output_tok_s and not load.partial]
    text = f"{record.id} has neither checks nor measurements"
    refuse_if(not checks and not loads, text, hint="`moebox verify`, `bench`")
    failed = "fail" in checks.values()
    parallel = {name: str(value) for name, value in codec.to_plain(recipe.parallel).items() if value not in (1, False)}
    settings = {name: str(getattr(recipe, name)) for name in SETTINGS if getattr(recipe, name, None)}
    flags = {f"flags.{name}": str(value) for name, value in recipe.flags.items()}
    row = MatrixRow(
        source="moebox",
        date=datetime.fromtimestamp(record.ended or record.started, UTC).date().isoformat(),
        state="wrong" if failed else "runs",
        verified=bool(checks) and not failed and not record.imported,
        box=box.name,
        gpus=tuple(gpu.title for gpu in box.gpus),
        cpu=box.cpu.model,
        ram=box.ram,
        engine=recipe.engine,
        model=recipe.model,
        checkpoint=recipe.checkpoint,
        recipe_digest=hashlib.sha256(codec.to_json(recipe, indent=None).encode()).hexdigest(),
        settings=parallel | settings | flags,
        versions=dict(record.versions),
        checks=checks,
        speed=tuple(
            SpeedCell(
                concurrency=load.concurrency,
                input_tokens=load.mean_input_tokens or load.input_tokens,
                output_tokens=load.mean_output_tokens or load.output_tokens,
                output_tok_s=load.output_tok_s or 0.0,
                ttft_ms=load.ttft.p50 or load.ttft.median or load.ttft.mean,
                conditions=(*load.flags, *(("limited by the client",) if load.client_limited else ())),
            )
            for load in loads
        ),
    )
    if problem := next(row_problems(row), ""):
        raise BadInput(f"{record.id}: {problem}")
    return row
