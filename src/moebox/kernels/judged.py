"""What the symptom base knows, by version, of kernels that Triton does not compile (CUTLASS, FlashInfer, Marlin)."""

from moebox.core.kernel import Arch, NotCovered
from moebox.core.symptom import in_range, symptoms

_AREAS = ("attention", "moe", "flashinfer")


def judged(*, engine: str, version: str, arch: Arch, model: str) -> tuple[NotCovered, ...]:
    """Known problems of this engine version on this architecture that no compile here can show; none without one."""
    if not version:
        return ()
    sm = f"{arch.capability // 10}.{arch.capability % 10}"
    return tuple(
        NotCovered(what=f"{one.id}: {one.cause}", why=one.remedy)
        for one in symptoms()
        if one.area in _AREAS
        and engine in one.applies.engine
        and sm in (one.applies.sm or (sm,))
        and one.applies.concerns(model)
        and (not one.applies.versions or in_range(version, one.applies.versions))
    )
