"""`moebox box`: what this machine is, or a described one."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import detect
from moebox.cli import flags
from moebox.cli.output import print_json, stderr_console, stdout_console
from moebox.core.box import Box


def box(
    *,
    box: str | None = None,
    ram: str = "",
    ram_bandwidth: str = "",
    measure: Annotated[bool, Parameter(negative=())] = False,
    hosts: Path | None = None,
    node_python: str = "",
    save: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show this machine: GPUs, links, CPU, memory, and what is installed.

    Args:
        box: Show this box instead: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        measure: Read memory for a few seconds to learn its real bandwidth.
        hosts: Time the network between the nodes of this hosts file, over ssh; forecasts with the saved box use it.
        node_python: The Python on those nodes; python3 when left out.
        save: Write the capture bundle for a bug report to this folder; names and serials are left out.
        json: Print JSON.
    """
    if not hosts:
        flags.refuse_without("--hosts", node_python=node_python)
    found = find_box(box, ram=ram, ram_bandwidth=ram_bandwidth, measure=measure)
    if hosts:
        from moebox.serve.nodes import measure_network

        found = measure_network(found, hosts, python=node_python or "python3")
    if json:
        print_json(found)
    else:
        from moebox.cli.box_view import box_panel

        stdout_console().print(box_panel(found))
    if save:
        from moebox.detect.bundle import save_bundle as write

        files = write(found, save)
        stderr_console().print(
            f"wrote {len(files)} files to {save}: {', '.join(file.name for file in files)}", soft_wrap=True
        )
    return 0


def find_box(name: str | None, *, ram: str, ram_bandwidth: str, measure: bool) -> Box:
    """The box that was asked for."""
    if measure:
        flags.refuse_unused("--measure reads the memory of this machine", box=name, ram_bandwidth=ram_bandwidth)
    if not measure:
        return detect.load_box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    from moebox.detect.declared import with_ram
    from moebox.detect.machine import detect_machine as look

    return with_ram(look(measure=True), ram=ram, ram_bandwidth=ram_bandwidth)
