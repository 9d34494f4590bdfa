"""Finds kernels that a GPU cannot launch, without that GPU."""
