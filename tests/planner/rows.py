"""The published rows as the accuracy script reads them, and its table."""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def published() -> ModuleType:
    """benchmarks/published.py as a module."""
    return _module("published")


@functools.cache
def accuracy_memory() -> ModuleType:
    """benchmarks/accuracy_memory.py as a module."""
    return _module("accuracy_memory")


@functools.cache
def unseen() -> ModuleType:
    """benchmarks/unseen.py as a module."""
    published()
    return _module("unseen")


@functools.cache
def pairs() -> ModuleType:
    """benchmarks/pairs.py as a module."""
    unseen()
    return _module("pairs")


def calibration_drift() -> ModuleType:
    """benchmarks/calibration_drift.py as a module."""
    return _module("calibration_drift")


@functools.cache
def accuracy() -> ModuleType:
    """benchmarks/accuracy.py as a module."""
    pairs()
    accuracy_memory()
    unseen()
    return _module("accuracy")
