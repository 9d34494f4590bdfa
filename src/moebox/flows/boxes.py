"""The box that is planned for, with what rehearsals measured on it."""

from moebox import detect
from moebox.core.box import Box
from moebox.store import calibrations


def box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """This machine, or the one that `name` describes, with its calibrations."""
    return calibrations.attached(detect.box(name, ram=ram, ram_bandwidth=ram_bandwidth))
