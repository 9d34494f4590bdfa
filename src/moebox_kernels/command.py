"""`moebox doctor kernels`: find an engine's kernels that will not launch, without a GPU."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.display import WaitingLine
from moebox.cli.flags import AsJson, OutputPath, Switch
from moebox.cli.output import exit_code, print_lines, print_result, stderr_console, stdout_console
from moebox.core import catalogue, registry
from moebox.core.kernel import Arch, KernelLaunch, KernelScan, find_arch
from moebox.errors import BadInput, ExternalError, Unsupported, refuse_if, refuse_out_of_range
from moebox.store import Run
from moebox.units import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from moebox_kernels.fix import LaunchRemedy
    from moebox_kernels.scan import KernelRequest

DEFAULT_ARCH, DEFAULT_MODEL, DEFAULT_TP = "sm_120", "kimi-k2.6", 8
_MODEL, _ENGINE = ("model", "tp", "kv", "only", "run"), ("engine", "site_packages", "python")
# What the command does instead of a scan, and the flags that it ignores then.
UNUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "--cache": ("--cache reads what Triton compiled", _ENGINE + _MODEL),
    "--configs": ("--configs reads tuned files", _ENGINE + _MODEL),
    "--revert": ("--revert restores files", ("arch", *_MODEL)),
    "--tune": ("--tune times kernels for every cache type and keeps nothing in a run", ("kv", "run")),
}
STYLES = {"launches": "", "spills": "", "does not fit": "bold red", "does not compile": "bold red"}
ORDER = {"does not fit": 0, "does not compile": 1, "spills": 2, "launches": 3}


def kernels(
    *,
    engine: str | None = None,
    site_packages: Path | None = None,
    python: Path | None = None,
    arch_name: Annotated[str, Parameter(name="--arch")] = "",
    model: str = "",
    tp: int | None = None,
    kv: Literal["bf16", "fp8"] | None = None,
    only: str = "",
    cache: Path | None = None,
    configs: Path | None = None,
    fix: Switch = False,
    apply: Switch = False,
    revert: Switch = False,
    yes: Switch = False,
    tune: Switch = False,
    output: OutputPath = None,
    run: str = "",
    json: AsJson = False,
) -> int:
    """Compile the kernels that a model needs for an architecture, and list those that will not launch.

    Args:
        engine: The engine whose launch code is run.
        site_packages: A folder with the engine's package, such as its unpacked wheel.
        python: The Python whose Triton and PyTorch compile (the engine's own is best).
        arch_name: The architecture. Default: sm_120, or with --cache the one that each kernel was compiled for.
        model: A model from the catalogue. Default: kimi-k2.6.
        tp: Tensor parallel size. Default: 8.
        kv: Type of the KV cache. Default: bf16.
        only: Only cases whose name contains this text.
        cache: Read this Triton cache after a crash instead.
        configs: Check the tuned fused-MoE files in this folder instead.
        fix: Search block sizes that fit for each launch that does not, and print the patch.
        apply: With --fix: apply the patch; the original is kept beside the file.
        revert: Revert an applied patch.
        yes: With --apply: also patch a file that differs from the engine's release.
        tune: Time candidates on this machine's GPU, under the architecture's limits, checked against float32.
        output: With --tune: the folder for tuned fused-MoE files and the table.
        run: Keep the findings in this run's folder; its report shows them.
    """
    arch = find_arch(arch_name or DEFAULT_ARCH)
    refuse_out_of_range("--tp", tp, 1, 1024)
    chosen = flags.given_flags(cache=cache, configs=configs, tune=tune, revert=revert, fix=fix)
    refuse_if(len(chosen) > 1, f"{' and '.join(chosen)} are different actions; give one")
    others: dict[str, object] = {"engine": engine, "site_packages": site_packages, "python": python}
    others |= {"arch": arch_name, "model": model, "tp": tp, "kv": kv, "only": only, "run": run}
    action, unused = UNUSED.get("".join(chosen), ("", ()))
    flags.refuse_unused(action, **{name: others[name] for name in unused})
    flags.refuse_without("--fix", apply=apply and not fix)
    flags.refuse_without("--fix --apply", yes=yes and not apply)
    flags.refuse_without("--tune", output=None if tune else output)
    if cache:
        return check_cache(cache, arch_name, json=json)
    if configs:
        return check_configs(configs, arch, json=json)
    from moebox_kernels import scan as scans
    from moebox_kernels.patch import revert_patches

    engines = tuple(traits.name for traits in registry.all_traits() if traits.moe_config_env)
    if engine is None:
        hint = " or ".join(f"--engine {name}" for name in engines)
        raise BadInput("--engine is missing", hint=f"{hint}; or --cache, or --configs")
    hint = f"it is for {' and '.join(engines)}, whose kernels are compiled by Triton"
    refuse_if(engine not in engines, f"--engine {engine}: it has no kernels to check", hint=hint)
    request = scans.KernelRequest(
        engine=engine,
        arch=arch,
        model=catalogue.find_model(model or DEFAULT_MODEL),
        tp=DEFAULT_TP if tp is None else tp,
        kv=kv or "bf16",
        site_packages=site_packages,
        python=python,
        only=only,
    )
    if tune:
        return tune_kernels(request, output or Path("tuned"), json=json)
    if revert:
        restored = revert_patches(scans.engine_root(request), request.engine)
        return print_result(json, {"restored": restored}, lambda: print_lines(f"restored {path}" for path in restored))
    folder = Run.open_shared(run) if run else None  # an error comes before minutes are spent
    scans.engine_root(request)
    parts = (request.engine, request.arch.name, request.model.name, str(request.tp), request.kv, request.only)
    with WaitingLine(f"compiling {engine}'s kernels for {arch.name}", f"kernels {' '.join(parts)}".rstrip()):
        found = scans.scan_engine(request)
    if folder:
        from moebox.flows.kernels import save_findings, summarize_scan

        save_findings(folder, summarize_scan(found))
    if fix:
        return fix_kernels(request, found, apply=apply, yes=yes, run=folder, json=json)
    failing = found.failing_launches
    verdict = {"verdict": "does not launch" if failing else "launches", "bad": len(failing)}
    print_result(json, {**codec.to_document(found), **verdict}, lambda: stdout_console().print(scan_report(found)))
    return exit_code(not failing)


def check_cache(folder: Path, arch_name: str, *, json: bool) -> int:
    """Check the kernels in a Triton cache; exit code 1 if one cannot launch."""
    from moebox_kernels.cache import read_cache

    found = read_cache(folder, arch_name=arch_name)
    bad = [kernel for kernel in found if not kernel.can_launch]

    def show() -> None:
        for kernel in bad:
            need = f"needs {kernel.shared_bytes:,} bytes of shared memory; {kernel.arch} has {kernel.limit_bytes:,}"
            shape = f"(warps {kernel.num_warps}, stages {kernel.num_stages})"
            stdout_console().print(f"[bold]{kernel.kernel}[/bold] {need} {shape}")
        stderr_console().print(f"{plural(len(found), 'kernel')}, {len(bad)} of them cannot launch")

    return print_result(json, {"kernels": found, "bad": len(bad)}, show, good=not bad)


def check_configs(folder: Path, arch: Arch, *, json: bool) -> int:
    """Check tuned fused-MoE files; exit code 1 if one has an entry that cannot launch."""
    from moebox_kernels.tuned_files import check_tuned_files

    found = check_tuned_files(folder, arch)
    refuse_if(not found, f"{folder}: has no tuned fused-MoE files", hint="their names begin with E= and end in .json")
    bad = [(file, file.bad) for file in found if file.bad]

    def show() -> None:
        for file, entries in bad:
            worst = max(entries, key=lambda entry: entry.shared_bytes)
            most = f"at most {worst.shared_bytes:,} bytes ({worst.blocks}) of {arch.smem:,}"
            stdout_console().print(f"{file.file}\n  {len(entries)} of {file.entries} entries; {most}")
        unknown = sum(file.bad is None for file in found)
        total = f"{plural(len(found), 'file')}, {len(bad)} have entries that cannot launch"
        stderr_console().print(f"{total}, {unknown} must be compiled to know")

    files = [{"verdict": file.verdict, **codec.to_document(file)} for file in found]
    return print_result(json, {"arch": arch.name, "files": files, "bad": len(bad)}, show, good=not bad)


def tune_kernels(request: "KernelRequest", folder: Path, *, json: bool) -> int:
    """Tune on this machine's GPU and write the files that engines read."""
    from moebox_kernels import tuned_files
    from moebox_kernels.scan import engine_root

    here, device = tuned_files.local_gpu(), request.arch.device
    if here.name == request.arch.name:
        device = here.device
    else:
        text = f"this GPU is {here.name}: what fits is exact for {request.arch.name}, speeds are approximate"
        stderr_console().print(text, soft_wrap=True)
    tuned = tuned_files.tune_kernels(request, here, limit=request.arch)
    table = tuned_files.block_table(tuned.rows)
    extra_files = {f"attention-{tuned.engine}.json": codec.to_json(table) + "\n"} if table else {}
    problems = []
    try:
        patches = tuned_files.block_table_patches(tuned, engine_root(request), request.arch)
        if diff := "".join(patch.diff for patch in patches):
            extra_files[f"attention-{tuned.engine}.diff"] = diff
    except Unsupported as problem:
        problems.append(f"no attention patch: {problem.message}")
    made, gaps = tuned_files.write_tuned_files(tuned, folder, device, extra_files)
    gaps += problems
    print_result(
        json,
        {"rows": tuned.rows, "files": made, "left_out": gaps},
        lambda: stdout_console().print(tuned_files.markdown_table(tuned.rows), soft_wrap=True),
    )
    lines = [*(f"wrote {path}" for path in made), *gaps]
    if any(path.name.startswith("E=") for path in made):
        variable = registry.engine_traits(request.engine).moe_config_env
        lines.append(f"{variable}={folder.resolve()} makes {request.engine} read them")
    print_lines(lines, stderr=True)
    return 0


def fix_kernels(
    request: "KernelRequest", found: KernelScan, *, apply: bool, yes: bool, run: Run | None, json: bool
) -> int:
    """Search block sizes that fit and print the patch; with `apply` write it and scan again."""
    from moebox.flows.kernels import save_findings, summarize_scan
    from moebox_kernels import fix, patch
    from moebox_kernels.scan import engine_root, scan_engine

    failing = found.failing_launches
    if not failing:
        stderr_console().print(f"nothing to fix: every launch fits {request.arch.name}")
        return print_result(json, {"remedies": [], "diff": ""}, lambda: None)
    if all(launch.verdict == "does not compile" for launch in failing):
        text = f"{failing[0].kernel} does not compile, and other block sizes do not fix that: {failing[0].error}"
        raise ExternalError(text, hint="try another version of Triton or of the engine")
    remedies = fix.find_remedies(request)
    patches = patch.remedy_patches(remedies, engine_root(request), request.arch.capability)
    diff = "".join(change.diff for change in patches)
    if run:
        run.write_file(f"patches/{found.engine}-{found.version}-{found.arch}-{found.kv}.diff", diff)

    def show() -> None:
        print_lines(line for remedy in remedies for line in _remedy_lines(remedy))
        sys.stdout.write(diff)

    print_result(json, {"remedies": remedies, "diff": diff}, show)
    if not apply:
        stderr_console().print("`--fix --apply` writes it; the originals are kept, and `--revert` restores them")
        return 1
    pairs = zip(patches, patch.apply_all(patches, force=yes), strict=True)
    print_lines((f"patched {change.path}; the original is {backup.name}" for change, backup in pairs), stderr=True)
    again = scan_engine(request)
    if run:
        save_findings(run, summarize_scan(again))
    left = len(again.failing_launches)
    stderr_console().print(f"{left} launches still do not fit" if left else "every launch fits now")
    return exit_code(not left)


def _remedy_lines(remedy: "LaunchRemedy") -> Iterator[str]:
    """Yield a failing launch, and the block sizes that fit as comments above the patch."""
    failing = remedy.launch
    yield f"# {failing.kernel} ({failing.case}): {failing.shared_bytes:,} bytes of {failing.limit_bytes:,}"
    for place, launch in enumerate(remedy.candidates[:4]):
        blocks = " ".join(f"{name.removeprefix('BLOCK_')}={value}" for name, value in launch.blocks.items())
        shape = f"{blocks} warps={launch.num_warps} stages={launch.num_stages}"
        figures = f"{launch.shared_bytes:,} bytes, {launch.registers} registers, {launch.spill_bytes} spilled"
        yield f"#   {'also fits' if place else 'chosen'}: {shape}: {figures}"


def scan_report(scan: KernelScan) -> "RenderableType":
    """Return a scan for the terminal: the worst launches first, then failures and what was not covered."""
    from rich.console import Group
    from rich.text import Text

    engine = f"{scan.engine} {scan.version or '(version unknown)'} · {scan.model} TP{scan.tp}, {scan.kv} cache"
    head = f"{engine} · {scan.arch} · Triton {scan.triton}"
    table = launch_table(scan.launches, stdout_console().width)
    return Group(Text(head, style="bold"), Text(), table, Text(), *_failure_lines(scan), *_uncovered_lines(scan))


def launch_table(launches: tuple[KernelLaunch, ...], width: int) -> "Table":
    """Return a row for each kernel and set of blocks; equal launches share one."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=max(12, width - 64))
    table.add_column("tile", no_wrap=True, min_width=10)
    for name, cells in (("warps", 5), ("stages", 6), ("shared", 7), ("regs", 4), ("spill", 5), ("per SM", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=cells)
    table.add_column("verdict", no_wrap=True, min_width=12)
    groups: dict[tuple[object, ...], KernelLaunch] = {}
    for launch in launches:
        shape = (launch.num_warps, launch.num_stages, launch.shared_bytes, launch.verdict)
        groups.setdefault((launch.kernel, tile_size(launch), *shape), launch)
    for launch in sorted(groups.values(), key=lambda launch: (ORDER[launch.verdict], -launch.shared_bytes)):
        table.add_row(
            launch.kernel,
            tile_size(launch),
            str(launch.num_warps),
            str(launch.num_stages),
            f"{launch.shared_bytes:,}",
            str(launch.registers or "-"),
            str(launch.spill_bytes),
            str(launch.blocks_per_sm),
            Text(launch.verdict, style=STYLES[launch.verdict]),
        )
    return table


def tile_size(launch: KernelLaunch) -> str:
    """Return the block sizes that matter: M×N×K for matrix products, M×N or N×H for attention."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), ("BLOCK_M", "BLOCK_N", "BLOCK_H", "BLOCK")):
        sides = [str(launch.blocks[name]) for name in names if name in launch.blocks]
        if sides:
            return "×".join(sides)
    return "-"


def _failure_lines(scan: KernelScan) -> "Iterator[Text]":
    """Yield each kernel that fails, where it is launched and in which cases; or that none does."""
    from rich.text import Text

    failing: dict[str, list[KernelLaunch]] = {}
    for launch in scan.failing_launches:
        failing.setdefault(launch.kernel, []).append(launch)
    if not failing:
        yield Text(f"all {len(scan.launches)} launches fit {scan.arch}")
    for kernel, launches in failing.items():
        first = launches[0]
        reason = f"needs {first.shared_bytes:,} bytes of shared memory; {scan.arch} has {first.limit_bytes:,}"
        if first.verdict == "does not compile":
            reason = f"does not compile: {first.error}"
        yield Text(f"{kernel} {reason}. It is launched at {first.launched_from}.", style="bold red")
        yield Text(f"It fails in: {'; '.join(dict.fromkeys(launch.case for launch in launches))}")
    if any(launch.verdict == "does not fit" for launch in scan.failing_launches):
        yield Text("`--fix` searches block sizes that fit and prints the patch.")


def _uncovered_lines(scan: KernelScan) -> "Iterator[Text]":
    """Yield what was not covered, by reason, and what is known of the engine's release without compiling."""
    from rich.text import Text

    reasons: dict[str, list[str]] = {}
    for missed in scan.not_covered:
        reasons.setdefault(missed.why, []).append(missed.what)
    if reasons:
        yield Text("\nnot covered", style="bold")
    yield from (Text(f"- {', '.join(what)}: {reason}") for reason, what in reasons.items())
    if scan.judged:
        yield Text("\nother kernels, known by the engine's version, not compiled here", style="bold")
    yield from (Text(f"- {known.what} → {known.why}") for known in scan.judged)
