"""Runs as a folder or archive to publish: nothing in it says whose machine it was or opens a door.

    README.md  FINDINGS.md  report.html  report.pdf  launch.sh  gpu-info.txt  gpu-topology.txt
    configs/  logs/  measurements/  verdicts/  patches/          of several runs, these lie in runs/NAME/

Text is redacted line by line; files that are not text are left out, except samples, which hold only times.
"""

import tarfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from moebox import __version__, files
from moebox.bench import samples
from moebox.checkpoint import deploy
from moebox.detect.bundle import gpu_text, link_text
from moebox.errors import BadInput, ExternalError, MoeboxError
from moebox.escape import escape_markdown as escape
from moebox.render import render
from moebox.report.block import CustomBlock, Section
from moebox.report.files import OUTPUT_HINT, make_page, save_file
from moebox.report.markdown import custom_block, decision_lines, render_markdown
from moebox.report.page import ReportPage, render_html
from moebox.report.record import RunRecord
from moebox.report.rules import make_advice
from moebox.report.tidy import redact_text
from moebox.store import Run, plain
from moebox.store.log import log_pieces

CONFIGS = ("recipe.toml", "box.toml", "plan.json", "climb.json", "best.toml", "run.json", "launch.sh", "kernels.json")
FOLDERS = ("measurements", "verdicts", "patches", "configs", "kernels", "recipes")
TEXT = (".json", ".jsonl", ".toml", ".txt", ".md", ".log", ".patch", ".diff", ".sh", ".csv", ".xml", ".yaml", ".yml")
BINARY = (".samples",)  # columns of times and counts
LARGEST = 64 * 2**20  # bytes of one file; larger ones are named in the README instead
ABOUT = {
    "report.html": "the report; opens in any browser, needs no network",
    "report.pdf": "the same, for print",
    "report.md": "the same, as text",
    "FINDINGS.md": "attempts, problems met and recommendations",
    "launch.sh": "the launch, as a script that needs no moebox",
    "gpu-info.txt": "the GPUs; gpu-topology.txt says how they are joined",
    "runs": "each run with its launch, configs, logs, measurements, verdicts and patches",
    "configs": "recipe, box, plan",
    "logs": "the journal and the engine's log",
    "measurements": "every figure, and the times it was computed from",
    "verdicts": "each check with its evidence",
    "patches": "changes to the engine that were applied",
}


def pack_runs(runs: Sequence[Run], target: Path, *, pdf: bool = True) -> tuple[Path, list[str]]:
    """Write the folder, or the archive where `target` ends in .tar.gz or .tgz; and what was left out."""
    if not runs:
        raise BadInput("name the runs to pack", hint="`moebox runs` lists them")
    if target.name.endswith((".tar.gz", ".tgz")):
        return target, _archive(runs, target, pdf=pdf)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"{target}: is there already", hint="name a folder that is not, or one that is empty")
    with files.report_write_errors(target, error_type=BadInput, hint=OUTPUT_HINT):
        files.check_writable(target / "README.md")
    return target, fill_package(runs, target, pdf=pdf)


def _archive(runs: Sequence[Run], target: Path, *, pdf: bool) -> list[str]:
    """Whole or not at all; where it cannot be written, that is told before anything is read."""
    name = target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    with files.report_write_errors(target, error_type=BadInput, hint=OUTPUT_HINT):
        files.check_writable(target)
    with files.scratch_folder("pack") as folder:
        left_out = fill_package(runs, folder / name, pdf=pdf)
        with (
            files.report_write_errors(target, hint=OUTPUT_HINT),
            files.open_atomic(target) as file,
            tarfile.open(target.name, "w:gz", fileobj=file) as archive,
        ):
            archive.add(folder / name, arcname=name, filter=drop_owner)
    return left_out


def drop_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """No user and group names in the archive."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def fill_package(runs: Sequence[Run], folder: Path, *, pdf: bool) -> list[str]:
    """Every part of the package."""
    left_out: list[str] = []
    page = make_page(runs)
    text = redact_text(render_html(page))
    save_file(folder / "report.html", text)
    save_file(folder / "report.md", redact_text(render_markdown(page)))
    if pdf:
        print_out(text, folder / "report.pdf", left_out)
    for run, record in zip(runs, page.records, strict=True):
        inside = folder if len(runs) == 1 else folder / "runs" / run.id
        launch_files(record, inside, left_out)
        copy_run(run, inside, left_out)
    save_file(folder / "FINDINGS.md", redact_text(findings(page)))
    save_file(folder / "README.md", redact_text(readme(page, folder, left_out)))
    return left_out


def print_out(text: str, target: Path, left_out: list[str]) -> None:
    """The report as PDF, where this machine can make one."""
    from moebox.report.pdf import write_pdf

    try:
        write_pdf(text, target)
    except ExternalError as problem:
        left_out.append(f"{target.name}: {problem.message}")


def launch_files(record: RunRecord, folder: Path, left_out: list[str]) -> None:
    """The launch as a script that needs no moebox, and the GPUs it ran on."""
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
    """Everything of one run that may leave the machine."""
    for name in CONFIGS:
        copy(run.path / name, folder / "configs" / name, left_out)
    logs = (run.path / "events.jsonl", *log_pieces(run.path / "engine.log"), *plain.list_entries(run.path, "*.log"))
    for log in logs:
        copy(log, folder / "logs" / log.name, left_out)
    for name in FOLDERS:
        copy_folder(run.path / name, folder / name, left_out)


def copy_folder(source: Path, target: Path, left_out: list[str]) -> None:
    """All files of a folder, hidden ones aside."""
    if source.is_symlink():
        left_out.append(f"{source.name}: is a link or no plain file")
    for path in plain.list_entries(source, "**/*"):
        if not path.is_dir() and not path.name.startswith("."):
            copy(path, target / path.relative_to(source), left_out)


def recipes(page: ReportPage, folder: Path) -> list[str]:
    """Where the recipes of the package lie, as its README names them."""
    places = ["configs"] if len(page.records) == 1 else [f"runs/{record.id}/configs" for record in page.records]
    return [f"{place}/recipe.toml" for place in places if (folder / place / "recipe.toml").exists()]


def copy(source: Path, target: Path, left_out: list[str]) -> None:
    """One file, redacted where it is text; left out and named otherwise."""
    if source.exists() or source.is_symlink():
        try:
            _copy(source, target)
        except BadInput as problem:
            left_out.append(problem.message.replace(str(source), source.name))


def _copy(source: Path, target: Path) -> None:
    """BadInput for what may not leave the machine, or cannot be looked through."""
    if not plain.is_plain_file(source):
        raise BadInput(f"{source}: is a link or no plain file")
    size = source.stat().st_size
    if size > LARGEST:
        raise BadInput(f"{source}: {size / 2**20:,.0f} MiB is too large")
    if source.suffix in TEXT or source.name.startswith("engine.log"):
        save_file(target, redact_text(plain.read_text(source)))
        return
    if source.suffix not in BINARY:
        raise BadInput(f"{source}: not text, so it was not looked through")
    samples.read_samples(source)  # it goes to others, who will unpack it
    save_file(target, plain.read_bytes(source))


def findings(page: ReportPage) -> str:
    """What was learned: problems and recommendations."""
    found = [section for section in page.sections if section.id in ("problems", "advice", "attempts")]
    lines = chain.from_iterable(map(learned, found))
    nothing = ["No problem was met and no rule had anything to say.", ""]
    return "\n".join([f"# Findings: {escape(page.title)}", "", *(lines if found else nothing)])


def learned(section: Section) -> list[str]:
    """A section in words: drawings say nothing there."""
    lines = chain.from_iterable(custom_block(block) for block in section.blocks if isinstance(block, CustomBlock))
    return [f"## {section.title}", "", *lines]


def readme(page: ReportPage, folder: Path, left_out: list[str]) -> str:
    """What is in the folder."""
    lines = [f"# {escape(page.title)}", "", escape(page.subtitle), ""]
    lines += ["**Simulation: no GPU produced these figures.**", ""] if page.simulated_runs else []
    lines += decision_lines(page)
    lines += [f"- {escape(advice.title)}. {escape(advice.text)}" for advice in make_advice(page.records)[:3]]
    lines += ["", "## Contents", ""]
    lines += [f"- `{name}`: {words}" for name, words in ABOUT.items() if (folder / name).exists()]
    lines += ["", "## Do it again", ""]
    lines += [f"    moebox run --recipe {where}" for where in recipes(page, folder)]
    lines += ["", *origin(page), *(["Left out: " + "; ".join(left_out), ""] if left_out else [])]
    return "\n".join(lines)


def origin(page: ReportPage) -> list[str]:
    """What made the package of what."""
    return [
        f"Packed by moebox {__version__} from {', '.join(record.id for record in page.records)}. Keys, host and user "
        "names, addresses and serial numbers were taken out.",
        "",
    ]
