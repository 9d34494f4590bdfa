"""Finds the kernels that will not launch before a GPU does.

scan      make an engine's own launch code compile for an architecture, and judge each launch
cache     read a Triton cache after a crash
configs   check tuned fused-MoE files for entries that cannot launch
fix       search block sizes that fit, and write a patch
patch     apply and revert it
tuning    time candidates on a GPU
moefiles  tuned fused-MoE blocks as the files engines look for
blocktable  tuned attention blocks as a table and a patch
probe/    the process that does the compiling
"""
