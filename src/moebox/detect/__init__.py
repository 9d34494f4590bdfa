"""This machine, or a described one, as a Box."""

from moebox.core.box import Box


def box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box called `name` (COUNTxGPU or a TOML file), or this machine when no name is given."""
    from moebox.detect import declared

    if name:
        return declared.box_of(name, ram=ram, ram_bandwidth=ram_bandwidth)
    from moebox.detect.machine import detect

    return declared.with_ram(detect(), ram=ram, ram_bandwidth=ram_bandwidth)
