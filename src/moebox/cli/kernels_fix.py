"""`moebox doctor kernels --fix`: the remedies, their patch, and applying it."""

import sys
from typing import TYPE_CHECKING

from moebox.cli.output import emit, people, talk
from moebox.core.kernel import KernelScan
from moebox.errors import Outside
from moebox.flows.kernels import compiled, keep
from moebox.kernels import fix, patch
from moebox.kernels.scan import Request, engine_root, scan

if TYPE_CHECKING:
    from moebox.store import Run


def mend(
    request: Request, found: KernelScan, *, apply: bool, yes: bool, as_json: bool, run: "Run | None" = None
) -> int:
    """Search, show the patch, and apply it when asked; afterwards the scan is made again."""
    if not found.bad:
        talk().print(f"nothing to fix: every launch fits {request.arch.name}")
        if as_json:
            emit({"remedies": [], "diff": ""})
        return 0
    if all(one.verdict == "does not compile" for one in found.bad):
        raise Outside(
            f"{found.bad[0].kernel} does not compile, which other block sizes do not fix: {found.bad[0].error}",
            hint="another version of Triton, or of the engine",
        )
    remedies = fix.search(request)
    made = patch.patches(remedies, engine_root(request), request.arch.capability)
    diff = "".join(one.diff for one in made)
    if run:
        run.write(f"patches/{found.engine}-{found.version}-{found.arch}-{found.kv}.diff", diff)
    if as_json:
        emit({"remedies": remedies, "diff": diff})
    else:
        for remedy in remedies:
            _tell(remedy)
        sys.stdout.write(diff)
    if not apply:
        talk().print("`--fix --apply` writes it; the originals are kept, and `--revert` restores them")
        return 1
    for one, backup in zip(made, patch.apply_all(made, anyway=yes), strict=True):
        talk().print(f"patched {one.path}; the original is {backup.name}", soft_wrap=True, markup=False)
    again = scan(request)
    if run:
        keep(run, compiled(again))
    talk().print("every launch fits now" if not again.bad else f"{len(again.bad)} launches still do not fit")
    return 1 if again.bad else 0


def _tell(remedy: fix.Remedy) -> None:
    launch, best = remedy.launch, remedy.found[0]
    was = f"{launch.shared_bytes:,} bytes of {launch.limit_bytes:,}"
    people().print(f"# {launch.kernel} ({launch.case}): {was}", soft_wrap=True)
    for one in remedy.found[:4]:
        blocks = " ".join(f"{name.removeprefix('BLOCK_')}={value}" for name, value in one.blocks.items())
        kept = "chosen" if one is best else "also fits"
        figures = f"{one.shared_bytes:,} bytes, {one.registers} registers, {one.spill_bytes} spilled"
        people().print(f"#   {kept}: {blocks} warps={one.num_warps} stages={one.num_stages}: {figures}", soft_wrap=True)
