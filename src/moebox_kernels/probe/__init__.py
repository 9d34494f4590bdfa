"""Runs an engine's own launch code without a GPU: each kernel is compiled for a GPU that is not present.

This package runs as a process of its own, under the Python that has the engine's Triton and PyTorch; it imports nothing
of moebox and nothing but the standard library, triton and torch, and the stand-in driver ends with it.

    stdin   one JSON request: engine, root, arch, sms, device_name, shape, cache
    stdout  one JSON object a line: {"launch": …}, {"missed": …}, {"done": …}
"""
