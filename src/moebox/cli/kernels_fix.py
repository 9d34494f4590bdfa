"""`moebox doctor kernels --fix`: the remedies, their patch, and applying it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.core.kernel import KernelScan
from moebox.errors import ExternalError
from moebox.flows.kernels import save_findings, summarize_scan
from moebox.kernels import fix, patch
from moebox.kernels.scan import KernelRequest, engine_root, scan_engine

if TYPE_CHECKING:
    from moebox.store import Run


def fix_kernels(
    request: KernelRequest, found: KernelScan, *, apply: bool, yes: bool, as_json: bool, run: "Run | None" = None
) -> int:
    """Search, show the patch, and apply it when asked; afterwards the scan is made again."""
    if not found.failing_launches:
        stderr_console().print(f"nothing to fix: every launch fits {request.arch.name}")
        print_result(as_json, {"remedies": [], "diff": ""}, lambda: None)
        return 0
    _refuse_uncompiled(found)
    remedies = fix.find_remedies(request)
    made = patch.remedy_patches(remedies, engine_root(request), request.arch.capability)
    diff = "".join(change.diff for change in made)
    if run:
        run.write_file(f"patches/{found.engine}-{found.version}-{found.arch}-{found.kv}.diff", diff)
    print_result(as_json, {"remedies": remedies, "diff": diff}, lambda: _show(remedies, diff))
    if not apply:
        stderr_console().print("`--fix --apply` writes it; the originals are kept, and `--revert` restores them")
        return 1
    return _applied(request, made, anyway=yes, run=run)


def _refuse_uncompiled(found: KernelScan) -> None:
    """Outside where no launch compiles: other block sizes change nothing."""
    if all(launch.verdict == "does not compile" for launch in found.failing_launches):
        raise ExternalError(
            f"{found.failing_launches[0].kernel} does not compile, which other block sizes do not fix: "
            f"{found.failing_launches[0].error}",
            hint="another version of Triton, or of the engine",
        )


def _show(remedies: Sequence[fix.LaunchRemedy], diff: str) -> None:
    for remedy in remedies:
        _tell(remedy)
    sys.stdout.write(diff)


def _applied(request: KernelRequest, made: tuple[patch.FilePatch, ...], *, anyway: bool, run: "Run | None") -> int:
    """Write the patches and scan once more; 1 where a launch still does not fit."""
    for change, backup in zip(made, patch.apply_all(made, force=anyway), strict=True):
        stderr_console().print(f"patched {change.path}; the original is {backup.name}", soft_wrap=True, markup=False)
    again = scan_engine(request)
    if run:
        save_findings(run, summarize_scan(again))
    stderr_console().print(
        "every launch fits now"
        if not again.failing_launches
        else f"{len(again.failing_launches)} launches still do not fit"
    )
    return exit_code(not again.failing_launches)


def _tell(remedy: fix.LaunchRemedy) -> None:
    failing, best = remedy.launch, remedy.candidates[0]
    was = f"{failing.shared_bytes:,} bytes of {failing.limit_bytes:,}"
    stdout_console().print(f"# {failing.kernel} ({failing.case}): {was}", soft_wrap=True)
    for launch in remedy.candidates[:4]:
        blocks = " ".join(f"{name.removeprefix('BLOCK_')}={value}" for name, value in launch.blocks.items())
        kept = "chosen" if launch is best else "also fits"
        shape = f"{blocks} warps={launch.num_warps} stages={launch.num_stages}"
        figures = f"{launch.shared_bytes:,} bytes, {launch.registers} registers, {launch.spill_bytes} spilled"
        stdout_console().print(f"#   {kept}: {shape}: {figures}", soft_wrap=True)
