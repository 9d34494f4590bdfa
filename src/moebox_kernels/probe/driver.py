"""A Triton driver for a GPU that is not present: kernels are compiled and recorded, and nothing runs."""

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from .protocol import LaunchRecord, ProbeGpu

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_UNLIMITED_SMEM = 1 << 30  # the limit that Triton sees, so that a kernel beyond the real one is recorded, not refused


@dataclasses.dataclass
class LaunchRecorder:
    """Records launches and the cost of each compiled kernel; costs are kept between scans in the file `notes`."""

    target: ProbeGpu
    root: Path
    notes: Path
    launches: list[LaunchRecord] = dataclasses.field(default_factory=list)
    costs: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    sources: list[Any] = dataclasses.field(default_factory=list)
    case: str = ""
    broken: tuple[LaunchRecord, BaseException] | None = None  # the last kernel that did not compile, and its error

    def load_costs(self) -> None:
        """Load the costs that earlier scans measured: a kernel out of Triton's cache comes without a compiler log."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            known = json.loads(self.notes.read_text())
            self.costs = {mark: cost for mark, cost in known.items() if isinstance(cost, dict)}

    def save_costs(self) -> None:
        """Write the costs for the next scan, atomically."""
        half = self.notes.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps(self.costs))
        half.replace(self.notes)

    def add_launch(self, source: Any, metadata: Any, grid: tuple[int, int, int]) -> None:
        cost = self.costs.get(metadata.hash, {})
        new_launch = dataclasses.replace(
            self._describe_source(source),
            kernel=metadata.name,
            grid=grid,
            num_warps=metadata.num_warps,
            num_stages=getattr(metadata, "num_stages", 0),
            shared_bytes=metadata.shared,
            hash=metadata.hash,
            registers=cost.get("registers", 0),
            stack_bytes=cost.get("stack_bytes", 0),
            spill_bytes=cost.get("spill_bytes"),
        )
        self.launches.append(new_launch)
        self.sources.append((source, metadata))

    def add_failure(self, source: Any, options: Mapping[str, int], problem: BaseException) -> None:
        """Keep a kernel that does not compile; the engine decides whether that ends the case."""
        message = " ".join(str(problem).split())[:300]
        record = dataclasses.replace(
            self._describe_source(source),
            num_warps=options.get("num_warps", 4),
            num_stages=options.get("num_stages", 3),
            error=f"{type(problem).__name__}: {message}",
        )
        self.broken = (record, problem)

    def _describe_source(self, source: Any) -> LaunchRecord:
        function, names = source.fn.fn, source.fn.arg_names
        constants: dict[str, int | str] = {
            names[path[0]]: value
            for path, value in source.constants.items()
            if len(path) == 1 and path[0] < len(names) and isinstance(value, int | str)
        }
        engine_frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(self.root))]
        last = engine_frames[-1] if engine_frames else None  # the engine's line that launched the kernel
        return LaunchRecord(
            case=self.case,
            kernel=function.__name__,
            file=_relative_path(function.__code__.co_filename, self.root),
            line=function.__code__.co_firstlineno,
            launched_from=f"{_relative_path(last.filename, self.root)}:{last.lineno}" if last else "",
            blocks={name: value for name, value in constants.items() if name.isupper() and not isinstance(value, bool)},
            constants=dict(constants),
        )


def _relative_path(path: str, root: Path) -> str:
    try:
        return str(Path(path).relative_to(root))
    except ValueError:
        return Path(path).name


class StandInUtils:
    """Replaces the part of Triton's driver that loads binaries, and measures them instead."""

    def __init__(self, recorder: LaunchRecorder) -> None:
        self.recorder = recorder
        self.last: dict[str, int] = {}

    def get_device_properties(self, device: int) -> Mapping[str, object]:
        arch = self.recorder.target
        return {
            "max_shared_mem": _UNLIMITED_SMEM,
            "max_num_regs": 65536,
            "multiprocessor_count": arch.sms,
            "sm_clock_rate": 2_400_000,
            "mem_clock_rate": 14_000_000,
            "mem_bus_width": 512,
            "warpSize": 32,
            "warp_size": 32,
            "arch": f"sm_{arch.capability}",
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.last = kernel_resources(binary)
        return 1, 1, self.last.get("registers", 0), self.last.get("stack_bytes", 0) // 4, 1024

    def unload_module(self, module: int) -> None:
        """Do nothing: no module was loaded."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def launcher_class(recorder: LaunchRecorder) -> type:
    """Return a class that replaces Triton's launcher: it records launches and runs nothing."""

    class Launcher:
        launch_cooperative_grid = launch_pdl = False
        global_scratch_size = profile_scratch_size = 0

        def __init__(self, source: Any, metadata: Any) -> None:
            self.source, self.metadata = source, metadata

        def __call__(self, x: int, y: int, z: int, *args: Any, **kwargs: Any) -> None:
            recorder.add_launch(self.source, self.metadata, (x, y, z))

    return Launcher


class StandInDriver:
    """Replaces Triton's driver, with the properties of the GPU that is not present."""

    def __init__(self, recorder: LaunchRecorder) -> None:
        self.recorder = recorder
        self.utils = StandInUtils(recorder)
        self.launcher_cls = launcher_class(recorder)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.recorder.target.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing: there is one device."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        major, minor = divmod(self.recorder.target.capability, 10)
        return major, minor

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_benchmarker(self) -> Any:
        """Return a timer for autotuners: every candidate is compiled and recorded, and the first one wins."""

        def run_once(call: Any, quantiles: Any = None, **kwargs: Any) -> Any:
            call()
            return [1.0] * len(quantiles) if quantiles else 1.0

        return run_once

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        """Do nothing: there is no cache."""


def install_driver(recorder: LaunchRecorder) -> None:
    """Make `kernel[grid](…)` compile for the recorder's architecture, and run nothing."""
    import triton.compiler.compiler as compiler
    from triton.runtime.driver import driver

    stand_in = StandInDriver(recorder)
    driver._default = stand_in
    driver.set_active(stand_in)
    if hasattr(compiler.max_shared_mem, "cache_clear"):
        compiler.max_shared_mem.cache_clear()
    _record_spills(recorder, compiler)
    _record_resources(recorder, stand_in, compiler)
    _fake_torch_cuda(recorder.target)


def stop_after_layout() -> None:
    """Stop each compile once its shared memory is laid out: most of the time goes to the later stages.

    The entries in Triton's cache then hold no code, so they need a cache of their own.
    """
    from triton.backends.nvidia.compiler import CUDABackend

    original = CUDABackend.add_stages

    def add_stages(self: Any, stages: MutableMapping[str, object], *args: Any) -> None:
        original(self, stages, *args)

        def skip_ptx(source: Any, metadata: MutableMapping[str, object]) -> str:
            metadata["name"] = "unnamed"
            return ""

        stages["ptx"], stages["cubin"] = skip_ptx, lambda source, metadata: b""

    CUDABackend.add_stages = add_stages


def _record_spills(recorder: LaunchRecorder, compiler: Any) -> None:
    """Read spills from the assembler's log while a kernel compiles."""
    original = compiler.compile
    triton.knobs.nvidia.dump_ptxas_log = True

    def compile_with_log(*args: Any, **kwargs: Any) -> Any:
        log = io.StringIO()
        try:
            with contextlib.redirect_stdout(log):
                kernel = _compile_twice(original, args, kwargs)
        except Exception as problem:  # recorded, whatever it is, and raised again
            source = args[0] if args else kwargs.get("src")
            if hasattr(source, "fn"):
                recorder.add_failure(source, kwargs.get("options") or {}, problem)
            raise
        found = _SPILLS.search(log.getvalue())
        if found:
            recorder.costs.setdefault(kernel.metadata.hash, {})["spill_bytes"] = int(found.group(2))
        return kernel

    compiler.compile = compile_with_log
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and getattr(module, "compile", None) is original:
            module.compile = compile_with_log  # type: ignore[attr-defined]


def _compile_twice(compile_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compile, and once more past the cache if that fails: this replaces a damaged entry of Triton's cache."""
    try:
        return compile_(*args, **kwargs)
    except (ValueError, OSError, KeyError):
        triton.knobs.compilation.always_compile = True
        try:
            return compile_(*args, **kwargs)
        finally:
            triton.knobs.compilation.always_compile = False


def _record_resources(recorder: LaunchRecorder, stand_in: StandInDriver, compiler: Any) -> None:
    """Record registers and stack of each kernel when its binary is "loaded"."""
    original = compiler.CompiledKernel._init_handles

    def load_and_record(self: Any) -> Any:
        fresh = self.module is None
        try:
            return original(self)
        finally:
            if fresh and stand_in.utils.last:
                recorder.costs.setdefault(self.metadata.hash, {}).update(stand_in.utils.last)
                stand_in.utils.last = {}

    compiler.CompiledKernel._init_handles = load_and_record


def _fake_torch_cuda(arch: ProbeGpu) -> None:
    """Make torch.cuda look like that GPU, for the checks that engines make when they are imported."""
    major, minor = divmod(arch.capability, 10)
    properties = types.SimpleNamespace(
        name=arch.device_name,
        major=major,
        minor=minor,
        total_memory=arch.memory,
        multi_processor_count=arch.sms,
        warp_size=32,
        shared_memory_per_block_optin=arch.smem,
        L2_cache_size=128 << 20,
        is_integrated=0,
        gcnArchName="",
    )
    stream = types.SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None, synchronize=lambda: None)
    answers: Mapping[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: arch.device_name,
        "get_device_properties": lambda device=None: properties,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda device=None: stream,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    if torch.version.cuda is None:
        torch.version.cuda = "13.0"


def kernel_resources(binary: bytes) -> dict[str, int]:
    """Return registers and stack of a compiled kernel, read with the cuobjdump in Triton's wheel."""
    import triton.backends.nvidia as nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    if not tool.exists():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=False)
    found = _RESOURCES.search(done.stdout)
    if not found:
        return {}
    registers, stack, _, _ = map(int, found.groups())
    return {"registers": registers, "stack_bytes": stack}
