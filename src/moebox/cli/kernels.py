"""`moebox doctor kernels`: which kernels of an engine will not launch, found without a GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.eta import WaitingLine
from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.core import catalogue, registry
from moebox.core.kernel import Arch, KernelScan, find_arch
from moebox.errors import BadInput, Unsupported, refuse_if
from moebox.kernels import cache as caches
from moebox.kernels import configs as tuned
from moebox.loose import Document
from moebox.units import plural

if TYPE_CHECKING:
    from moebox.kernels.scan import KernelRequest
    from moebox.kernels.tuning import TuningResult
    from moebox.store import Run

Switch = Annotated[bool, Parameter(negative=())]
ARCH, MODEL, TP = "sm_120", "kimi-k2.6", 8  # that are looked at where nothing else is said
_MODEL, _ENGINE = ("model", "tp", "kv", "only", "run"), ("engine", "site_packages", "python")
# What the command does instead of a scan, and what it has no use for then.
UNUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "--cache": ("--cache reads what Triton compiled", _ENGINE + _MODEL),
    "--configs": ("--configs reads tuned files", _ENGINE + _MODEL),
    "--revert": ("--revert restores files", ("arch", *_MODEL)),
    "--tune": ("--tune times kernels, whatever the cache's type, and keeps nothing in a run", ("kv", "run")),
}


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
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    run: str = "",
    json: Switch = False,
) -> int:
    """Compile the kernels that this model needs for an architecture, and say which of them will not launch.

    Args:
        engine: The engine whose launch code is run.
        site_packages: A folder with the engine's package, such as its unpacked wheel.
        python: The Python whose Triton and PyTorch compile (the engine's own is best).
        arch_name: The architecture; sm_120 when left out, with --cache the one that each kernel was compiled for.
        model: A model from the catalogue; kimi-k2.6 when left out.
        tp: Tensor parallel size; 8 when left out.
        kv: The KV cache's type; bf16 when left out.
        only: Only cases whose name contains this.
        cache: Read this Triton cache after a crash instead.
        configs: Check the tuned fused-MoE files in this folder instead.
        fix: Search block sizes that fit for each launch that does not, and print the patch.
        apply: With --fix: apply the patch; the original is kept beside the file.
        revert: Take an applied patch back.
        yes: With --apply: also touch a file that differs from the engine's release.
        tune: Time candidates on this machine's GPU, under the architecture's limits, checked against float32.
        output: With --tune: the folder for tuned fused-MoE files and the table.
        run: Keep the findings in this run's folder; its report shows them.
        json: Print JSON.
    """
    target = find_arch(arch_name or ARCH)
    others: dict[str, object] = {"engine": engine, "site_packages": site_packages, "python": python}
    others |= {"arch": arch_name, "model": model, "tp": tp, "kv": kv, "only": only, "run": run}
    _refuse_unused({"cache": cache, "configs": configs, "tune": tune, "revert": revert, "fix": fix}, others)
    flags.refuse_without("--fix", apply=apply and not fix)
    flags.refuse_without("--fix --apply", yes=yes and not apply)
    flags.refuse_without("--tune", output=None if tune else output)
    if cache:
        return show_cache(cache, arch_name, as_json=json)
    if configs:
        return show_configs(configs, target.name, as_json=json)
    from moebox.kernels import scan as scans

    request = scans.KernelRequest(
        engine=compiled_engine(engine),
        arch=target,
        model=catalogue.find_model(model or MODEL),
        tp=TP if tp is None else tp,
        kv=kv or "bf16",
        site_packages=site_packages,
        python=python,
        only=only,
    )
    if tune:
        return tune_here(request, output or Path("tuned"), as_json=json)
    if revert:
        return revert_patches(request, as_json=json)
    return scan_and_fix(request, open_run(run) if run else None, fix=fix, apply=apply, yes=yes, as_json=json)


def scan_and_fix(
    request: "KernelRequest", folder: "Run | None", *, fix: bool, apply: bool, yes: bool, as_json: bool
) -> int:
    """The scan, shown or mended; findings are kept in `folder`."""
    found = scan_kernels(request, folder)
    if not fix:
        return show_scan(found, as_json=as_json)
    from moebox.cli.kernels_fix import fix_kernels

    return fix_kernels(request, found, apply=apply, yes=yes, as_json=as_json, run=folder)


def _refuse_unused(ways: Mapping[str, object], others: Mapping[str, object]) -> None:
    """BadInput for two things to do at once, and for flags that the one that is asked for has no use for."""
    asked = flags.given_flags(**ways)
    refuse_if(len(asked) > 1, f"{' and '.join(asked)} are different things to do; give one")
    does, unused = UNUSED.get("".join(asked), ("", ()))
    flags.refuse_unused(does, **{name: others[name] for name in unused})


def compiled_engine(name: str | None) -> str:
    """The engine that is asked for, if its kernels can be compiled without it."""
    if name is None:
        hint = " or ".join(f"--engine {name}" for name in compiled_engines())
        raise BadInput("--engine is missing", hint=f"{hint}; or --cache, or --configs")
    if name not in compiled_engines():
        hint = f"it is for {' and '.join(compiled_engines())}, whose kernels are compiled by Triton"
        raise BadInput(f"--engine {name}: there are no kernels of it to look at", hint=hint)
    return name


def revert_patches(request: "KernelRequest", *, as_json: bool) -> int:
    """Applied patches taken back."""
    from moebox.kernels.patch import revert_patches
    from moebox.kernels.scan import engine_root

    restored = revert_patches(engine_root(request), request.engine)
    lines = [f"restored {path}" for path in restored]
    print_result(
        as_json, {"restored": restored}, lambda: stdout_console().print("\n".join(lines), markup=False, soft_wrap=True)
    )
    return 0


def scan_kernels(request: "KernelRequest", folder: "Run | None") -> KernelScan:
    """Compile, with the time left by the last time; findings are kept in `folder`."""
    from moebox.kernels import scan as scans

    scans.engine_root(request)  # an engine that is not there is named before anything is said to compile
    with WaitingLine(f"compiling {request.engine}'s kernels for {request.arch.name}", _key(request)):
        found = scans.scan_engine(request)
    if folder:
        from moebox.flows.kernels import save_findings, summarize_scan

        save_findings(folder, summarize_scan(found))
    return found


def show_scan(found: KernelScan, *, as_json: bool) -> int:
    """The findings; 1 when a kernel will not launch."""
    print_result(as_json, scan_document(found), lambda: _show_scan(found))
    return exit_code(not found.failing_launches)


def _show_scan(found: KernelScan) -> None:
    from moebox.cli.kernels_view import scan_report

    stdout_console().print(scan_report(found, stdout_console().width))


def _key(request: "KernelRequest") -> str:
    """What scans that take about the same time share."""
    parts = (request.engine, request.arch.name, request.model.name, str(request.tp), request.kv, request.only)
    return f"kernels {' '.join(parts)}".rstrip()


def compiled_engines() -> tuple[str, ...]:
    """Engines whose kernels can be compiled without them."""
    return tuple(traits.name for traits in registry.all_traits() if traits.moe_config_env)


def open_run(run: str) -> "Run":
    """The run that the findings go to; told before minutes are spent."""
    from moebox.store import Run

    return Run.open_shared(run)


def tune_here(request: "KernelRequest", folder: Path, *, as_json: bool) -> int:
    """Tune on this machine's GPU and write what the engines read."""
    from moebox.kernels import tuned_files, tuning

    here, device = tuning.local_gpu(), request.arch.device
    if here.name == request.arch.name:
        device = here.device
    else:
        stderr_console().print(
            f"this GPU is {here.name}: fits are exact for {request.arch.name}, speeds are a hint", soft_wrap=True
        )
    tuned = tuning.tune_kernels(request, here, limit=request.arch)
    beside, lost = attention_files(tuned, request)
    made, gaps = tuned_files.write_tuned_files(tuned, folder, device, beside)
    gaps += lost
    print_result(
        as_json,
        {"rows": tuned.rows, "files": made, "left_out": gaps},
        lambda: stdout_console().print(tuning.markdown_table(tuned.rows), soft_wrap=True),
    )
    for line in [*(f"wrote {path}" for path in made), *gaps, *how_to_use(request.engine, folder, made)]:
        stderr_console().print(line, soft_wrap=True, markup=False)
    return 0


def how_to_use(engine: str, folder: Path, made: Sequence[Path]) -> list[str]:
    """The setting that makes an engine read its tuned fused-MoE files, where there are any."""
    if not any(path.name.startswith("E=") for path in made):
        return []
    return [f"{registry.engine_traits(engine).moe_config_env}={folder.resolve()} makes {engine} read them"]


def attention_files(tuned: "TuningResult", request: "KernelRequest") -> tuple[dict[str, str], list[str]]:
    """The attention block table and its patch, by file name; what could not be made of it."""
    from moebox.codec import to_json
    from moebox.kernels import tuned_files
    from moebox.kernels.scan import engine_root

    table = tuned_files.block_table(tuned.rows)
    made = {f"attention-{tuned.engine}.json": to_json(table) + "\n"} if table else {}
    try:
        diff = "".join(
            patch.diff for patch in tuned_files.block_table_patches(tuned, engine_root(request), request.arch)
        )
    except Unsupported as problem:
        return made, [f"no attention patch: {problem.message}"]
    if diff:
        made[f"attention-{tuned.engine}.diff"] = diff
    return made, []


def scan_document(scan: KernelScan) -> Document:
    """A scan under the keys that scripts rely on."""
    return {
        **codec.to_document(scan),
        "verdict": "does not launch" if scan.failing_launches else "launches",
        "bad": len(scan.failing_launches),
    }


def show_cache(folder: Path, arch_name: str, *, as_json: bool) -> int:
    """The kernels in a Triton cache; 1 when one of them cannot launch."""
    found = caches.read_cache(folder, arch_name=arch_name)
    bad = [kernel for kernel in found if not kernel.can_launch]
    print_result(as_json, {"kernels": found, "bad": len(bad)}, lambda: _show_cache(bad, len(found)))
    return exit_code(not bad)


def _show_cache(bad: "list[caches.CachedKernel]", found: int) -> None:
    for kernel in bad:
        asked = f"asks {kernel.shared_bytes:,} bytes of shared memory; {kernel.arch} gives {kernel.limit_bytes:,}"
        stdout_console().print(
            f"[bold]{kernel.kernel}[/bold] {asked} (warps {kernel.num_warps}, stages {kernel.num_stages})"
        )
    stderr_console().print(f"{plural(found, 'kernel')}, {len(bad)} of them cannot launch")


def show_configs(folder: Path, arch_name: str, *, as_json: bool) -> int:
    """Tuned fused-MoE files; 1 when one of them has an entry that cannot launch."""
    target = find_arch(arch_name)
    found = tuned.check_tuned_files(folder, target)
    bad = [file for file in found if file.bad]
    files = [{"verdict": file.verdict, **codec.to_document(file)} for file in found]
    print_result(as_json, {"arch": target.name, "files": files, "bad": len(bad)}, lambda: _show_configs(found, target))
    return exit_code(not bad)


def _show_configs(found: "Sequence[tuned.TunedFile]", target: "Arch") -> None:
    bad = [(file, file.bad) for file in found if file.bad]
    for file, entries in bad:
        worst = max(entries, key=lambda entry: entry.shared_bytes)
        most = f"at most {worst.shared_bytes:,} bytes ({worst.blocks}) of {target.smem:,}"
        stdout_console().print(f"{file.file}\n  {len(entries)} of {file.entries} entries; {most}")
    rest = sum(file.bad is None for file in found)
    total = plural(len(found), "file")
    stderr_console().print(f"{total}, {len(bad)} have entries that cannot launch, {rest} need compiling to know")
