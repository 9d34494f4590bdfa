"""Compiles variants of a recorded launch: other block sizes, warps and stages, the rest as the engine had it."""

import itertools
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .driver import Recorder, resources

_KEPT = ("num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid")


def variants(recorder: Recorder, index: int, axes: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    """Every combination of `axes` (constants by name, num_warps, num_stages), compiled; one record each."""
    source, metadata = recorder.sources[index]
    names = source.fn.arg_names
    for values in itertools.product(*axes.values()):
        choice = dict(zip(axes, values, strict=True))
        constants = dict(source.constants)
        for name, value in choice.items():
            if name in names:
                constants[(names.index(name),)] = value
        options = {name: getattr(metadata, name) for name in _KEPT if getattr(metadata, name, None) is not None}
        options |= {"num_warps": choice["num_warps"], "num_stages": choice["num_stages"]}
        variant = ASTSource(
            fn=source.fn, signature=dict(source.signature), constexprs=constants, attrs=dict(source.attrs)
        )
        yield _compiled(recorder, variant, options, choice)


def _compiled(recorder: Recorder, source: Any, options: dict[str, Any], choice: dict[str, int]) -> dict[str, Any]:
    try:
        kernel = triton.compile(source, target=GPUTarget("cuda", recorder.arch.capability, 32), options=options)
    except Exception as problem:
        return {"choice": choice, "error": f"{type(problem).__name__}: {str(problem)[:200]}"}
    mark = kernel.metadata.hash
    if "registers" not in recorder.costs.get(mark, {}):
        recorder.costs.setdefault(mark, {}).update(resources(kernel.asm["cubin"]))
    return {"choice": choice, "shared_bytes": kernel.metadata.shared, **recorder.costs[mark]}
