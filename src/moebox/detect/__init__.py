"""This machine, or a declared one, as a Box."""

from moebox.core.box import Box


def load_box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Return the box called `name` (COUNTxGPU or a TOML file), or this machine without a name."""
    from moebox.detect import declared

    if name:
        return declared.parse_box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    from moebox.detect.machine import detect_machine

    return declared.with_ram(detect_machine(), ram=ram, ram_bandwidth=ram_bandwidth)
