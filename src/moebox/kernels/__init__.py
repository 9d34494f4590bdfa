"""Finds kernels that a GPU cannot launch, without that GPU.

scan         compile an engine's own launches for an architecture, and judge each of them
cache        read a Triton cache after a crash
configs      check tuned fused-MoE files for entries that cannot launch
fix          search block sizes that fit
patch        write them as a patch, apply and revert it
tuning       time candidates on a GPU
tuned_files  tuned blocks as the files and patches that engines read
probe/       the process that compiles and times
"""
