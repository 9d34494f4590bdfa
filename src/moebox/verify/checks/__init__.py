"""All checks in the order of `options.CHECK_NAMES`; each is in the module of its name."""

from importlib import import_module

from moebox.verify.options import CHECK_NAMES
from moebox.verify.trials import Check

_OTHER_MODULES = {"json": "json_modes", **dict.fromkeys(("plain", "arithmetic", "code"), "answers")}
_MODULES = dict.fromkeys(_OTHER_MODULES.get(name, name.replace("-", "_")) for name in CHECK_NAMES)
_BY_NAME = {
    check.name: check
    for module in _MODULES
    for check in vars(import_module(f"{__name__}.{module}")).values()
    if isinstance(check, Check)
}
if set(_BY_NAME) != set(CHECK_NAMES):
    raise TypeError(f"CHECK_NAMES and the checks differ in {', '.join(sorted(set(_BY_NAME) ^ set(CHECK_NAMES)))}")
CHECKS: tuple[Check, ...] = tuple(_BY_NAME[name] for name in CHECK_NAMES)
