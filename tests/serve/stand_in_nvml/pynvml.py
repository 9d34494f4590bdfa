"""A stand-in for NVIDIA's driver: one GPU whose power cap is a file, named by MOEBOX_STAND_IN_NVML."""

import os
import time
from pathlib import Path

DEFAULT_MW, LOWEST_MW = 600_000, 350_000


class NVMLError(Exception):
    pass


def _cap() -> Path:
    return Path(os.environ["MOEBOX_STAND_IN_NVML"])


def nvmlInit() -> None:
    pass


def nvmlDeviceGetHandleByIndex(number: int) -> str:
    return f"GPU-{number}"


nvmlDeviceGetHandleByUUID = nvmlDeviceGetUUID = str


def nvmlDeviceGetPowerManagementLimit(handle: str) -> int:
    return int(_cap().read_text())


def nvmlDeviceSetPowerManagementLimit(handle: str, milliwatts: int) -> None:
    if os.environ.get("MOEBOX_STAND_IN_DENIES"):
        raise NVMLError("Insufficient Permissions")
    _cap().write_text(str(milliwatts))


def nvmlDeviceGetPowerManagementLimitConstraints(handle: str) -> tuple[int, int]:
    return LOWEST_MW, DEFAULT_MW


def nvmlDeviceGetPowerManagementDefaultLimit(handle: str) -> int:
    return DEFAULT_MW


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:
    """Millijoules: as much power as the cap allows, all the time."""
    return int(time.monotonic() * nvmlDeviceGetPowerManagementLimit(handle))
