"""Imports single files of an engine whose wheel was only unpacked, without its compiled parts or dependencies.

Packages of the engine become bare namespaces (their __init__ does not run), modules named in `stand_ins` have the names
given there, and a module that is not installed is replaced by one that has a harmless value for every name.
The kernel files themselves, and the Python that launches them, are the engine's own.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ModuleNames = Mapping[str, object]  # the content of a module
REAL_PACKAGES = {"triton", "torch", "numpy"}  # never replaced: a missing one is an error worth seeing


class StandInValue:
    """A value that can be called, subclassed, indexed and used as a decorator; false in a condition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept any arguments."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Accept any class arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else StandInValue()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandInValue()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __or__

    def __lt__(self, other: Any) -> bool:
        return True

    def __gt__(self, other: Any) -> bool:
        return False

    __le__ = __lt__
    __ge__ = __gt__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (StandInValue,)


class StandInModule(types.ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = "<stand-in>"
        self.__version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = StandInValue()
        setattr(self, name, value)
        return value


class StandInLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules that have every name; some of them with values of our own."""

    stand_ins: Mapping[str, ModuleNames] = types.MappingProxyType({})

    def create_module(self, spec: Any) -> types.ModuleType:
        module = StandInModule(spec.name)
        module.__spec__ = spec
        for name, value in self.stand_ins.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is complete."""


class EngineImporter(StandInLoader):
    """Finds an engine's modules under `root`, and replaces those that are named or missing."""

    def __init__(self, root: Path, package: str, stand_ins: Mapping[str, ModuleNames]) -> None:
        self.root, self.package, self.stand_ins = root, package, stand_ins
        self.missing: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != self.package:
            return None
        if name in self.stand_ins:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        place = self.root.joinpath(*name.split("."))
        if place.is_dir():
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        if place.with_suffix(".py").exists():
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        self.missing.append(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)


class MissingImporter(StandInLoader):
    """Replaces packages that are not installed, if the engine itself imports them.

    Other packages that probe for optional ones (sympy looks for gmpy2) must still find nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.split(".")[0]
        loaded = sys.modules.get(top)
        if isinstance(loaded, StandInModule):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if top in REAL_PACKAGES or top.startswith("_") or loaded is not None:
            return None
        frame = sys._getframe(1)  # of the file whose import statement runs
        while frame.f_back and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if not frame.f_code.co_filename.startswith(self.root):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)


def return_false(*args: Any, **kwargs: Any) -> bool:
    return False


def return_true(*args: Any, **kwargs: Any) -> bool:
    return True


def install_importer(engine: EngineImporter) -> EngineImporter:
    sys.meta_path.insert(0, engine)
    sys.meta_path.append(MissingImporter(engine.root))
    return engine
