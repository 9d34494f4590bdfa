"""The kernel doctor: an engine's kernels compiled for a GPU that is not there, and patches for what does not launch.

A plug-in: it adds `moebox doctor kernels`, and moebox does not import it. The results are types of moebox
(`core.kernel`), so a run folder and a report show them without it.
"""

COMMANDS = {
    "doctor kernels": ("moebox_kernels.command:kernels", "Find the kernels that will not launch, without a GPU."),
}
