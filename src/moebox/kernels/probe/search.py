"""Compiles variants of a recorded launch: other block sizes, warps and stages, the rest as the engine had it."""

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .driver import LaunchRecorder, kernel_resources
from .protocol import LaunchVariant
from .space import Choice

_KEPT_OPTIONS = ("num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid")


def compile_variant(recorder: LaunchRecorder, index: int, choice: Choice) -> LaunchVariant:
    """The launch with the constants, warps and stages of `choice`, compiled."""
    source, metadata = recorder.sources[index]
    names = source.fn.arg_names
    constants = dict(source.constants)
    constants |= {(names.index(name),): value for name, value in choice.items() if name in names}
    options = {name: getattr(metadata, name) for name in _KEPT_OPTIONS if getattr(metadata, name, None) is not None}
    options |= {"num_warps": choice["num_warps"], "num_stages": choice["num_stages"]}
    changed = ASTSource(fn=source.fn, signature=dict(source.signature), constexprs=constants, attrs=dict(source.attrs))
    return _compiled(recorder, changed, options, choice, recorder.launches[index].hash)


def _compiled(
    recorder: LaunchRecorder, source: Any, options: Mapping[str, object], choice: Choice, launch: str
) -> LaunchVariant:
    try:
        target = GPUTarget("cuda", recorder.target.capability, 32)
        kernel = triton.compile(source, target=target, options=dict(options))
    except Exception as problem:
        return LaunchVariant(hash=launch, choice=choice, error=f"{type(problem).__name__}: {str(problem)[:200]}")
    mark = kernel.metadata.hash
    if "registers" not in recorder.costs.get(mark, {}):
        recorder.costs.setdefault(mark, {}).update(kernel_resources(kernel.asm["cubin"]))
    cost = recorder.costs[mark]
    return LaunchVariant(
        hash=launch,
        choice=choice,
        shared_bytes=kernel.metadata.shared,
        registers=cost.get("registers", 0),
        stack_bytes=cost.get("stack_bytes", 0),
        spill_bytes=cost.get("spill_bytes"),
    )
