"""What the symptom base knows, by version, of kernels that Triton does not compile (CUTLASS, FlashInfer, Marlin)."""

from moebox.core.kernel import Arch, NotCovered
from moebox.core.symptom import symptoms

_KERNEL_AREAS = ("attention", "moe", "flashinfer")


def known_problems(*, engine: str, version: str, arch: Arch, model: str) -> tuple[NotCovered, ...]:
    """Known problems of this engine version on this architecture that no compile here can show; none without one."""
    if not version:
        return ()
    sm = f"{arch.capability // 10}.{arch.capability % 10}"
    here = [symptom for symptom in symptoms() if symptom.area in _KERNEL_AREAS and engine in symptom.applies.engine]
    return tuple(
        NotCovered(what=f"{symptom.id}: {symptom.cause}", why=symptom.remedy)
        for symptom in here
        if symptom.applies.covers(version=version, sm=sm) and symptom.applies.covers_model(model)
    )
