"""Finds the kernels that will not launch before a GPU does.

scan      make an engine's own launch code compile for an architecture, and judge each launch
cache     read a Triton cache after a crash
configs   check tuned fused-MoE files for entries that cannot launch
fix       search block sizes that fit, and write a patch
patch     apply and revert it
probe/    the process that does the compiling
"""
