"""Energy of GPUs, and power caps that are always restored.

Before a cap is changed, those in force are written to `power.json` beside the engine's log. `PowerCaps` restores them
at its end; if moebox was killed, the engine's guard does by `python -m moebox.serve.power FILE`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from moebox import files
from moebox.detect.nvml import load_nvml
from moebox.errors import BadInput, ExternalError
from moebox.serve.guard import CAPS_FILE


def read_joules(gpus: Sequence[int]) -> float | None:
    """Energy that these GPUs have used since the driver was loaded, or None if it is not counted."""
    nvml = load_nvml() if gpus else None
    if nvml is None:
        return None
    try:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, gpus)
        return float(sum(map(nvml.nvmlDeviceGetTotalEnergyConsumption, handles)) / 1e3)
    except nvml.NVMLError:  # older than Volta
        return None


class PowerCaps:
    """Changes the power caps of an engine's GPUs for the length of a `with` block."""

    def __init__(self, gpus: Sequence[int], folder: Path) -> None:
        nvml = load_nvml() if gpus else None
        if nvml is None:
            raise BadInput("no NVIDIA GPU whose power cap could be changed", hint="leave power=true out")
        self.nvml: Any = nvml
        self.path = folder / CAPS_FILE
        self.handles = {nvml.nvmlDeviceGetUUID(one): one for one in map(nvml.nvmlDeviceGetHandleByIndex, gpus)}

    def __enter__(self) -> Self:
        caps = {uuid: self.nvml.nvmlDeviceGetPowerManagementLimit(one) for uuid, one in self.handles.items()}
        files.write_atomic(self.path, json.dumps(caps).encode())
        try:
            for uuid, milliwatts in caps.items():  # the cap in force: shows whether the driver allows a change
                self.nvml.nvmlDeviceSetPowerManagementLimit(self.handles[uuid], milliwatts)
        except self.nvml.NVMLError as problem:
            self.path.unlink()
            text = f"the driver does not let this account change power caps: {problem}"
            raise ExternalError(text, hint="run it as root, or leave power=true out") from None
        return self

    def __exit__(self, *exception: object) -> None:
        restore_caps(self.path)

    def list_watts(self, shares: Sequence[float]) -> list[int]:
        """These shares of the default cap in watts, none below what the GPUs allow; the highest first."""
        lowest = max(self.nvml.nvmlDeviceGetPowerManagementLimitConstraints(one)[0] for one in self.handles.values())
        usual = min(map(self.nvml.nvmlDeviceGetPowerManagementDefaultLimit, self.handles.values()))
        return sorted({round(max(share * usual, lowest) / 1e3) for share in shares}, reverse=True)

    def set_watts(self, watts: int) -> None:
        for handle in self.handles.values():
            self.nvml.nvmlDeviceSetPowerManagementLimit(handle, 1000 * watts)


def restore_caps(path: Path) -> None:
    """Restore the caps in a `power.json` and remove it; nothing if there is none."""
    nvml = load_nvml() if path.exists() else None
    if nvml is None:
        return
    for uuid, milliwatts in json.loads(path.read_text(encoding="utf-8")).items():
        nvml.nvmlDeviceSetPowerManagementLimit(nvml.nvmlDeviceGetHandleByUUID(uuid), milliwatts)
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    restore_caps(Path(sys.argv[1]))
