"""Runs an engine's own launch code with nothing behind it: each kernel is compiled for a GPU that is not there.

This package is run as a process of its own, under whatever Python has the engine's Triton and PyTorch; it imports
nothing of moebox and nothing but the standard library, triton and torch, and the stand-in driver dies with it.

    stdin   one JSON request: engine, root, arch, sms, device_name, shape, cache
    stdout  one JSON object a line: {"launch": …}, {"missed": …}, {"done": …}
"""
