"""All checks in the order of `options.CHECK_NAMES`, each from its module."""

from importlib import import_module

from moebox.verify.checks import answers
from moebox.verify.options import CHECK_NAMES
from moebox.verify.trials import Check

_MODULES = {"json": "json_modes", "long-context": "long_context"}  # whose names differ from those of their checks
_ANSWERS = {check.name: check for check in (answers.PLAIN, answers.ARITHMETIC, answers.CODE)}
CHECKS: tuple[Check, ...] = tuple(
    _ANSWERS.get(name) or import_module(f"{__name__}.{_MODULES.get(name, name)}").CHECK for name in CHECK_NAMES
)
if [check.name for check in CHECKS] != list(CHECK_NAMES):
    raise TypeError(f"a module of {__name__} has a check under another name than in CHECK_NAMES")
