"""Static interpreter: follows Python source by its syntax tree. It never imports or runs the code that it reads.

A condition that the source does not determine counts as not met, and is recorded in `assumed`; an unknown object is
taken to exist.
"""

import ast
import builtins
import copy
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .expressions import Scope, plain
from .statements import ENUMS, EXCEPTIONS, Leave, Return, Statements
from .values import (
    MISSING,
    Bound,
    Class,
    Function,
    Host,
    Instance,
    Lazy,
    Member,
    Module,
    OutOfSteps,
    Raised,
    Record,
    Symbol,
    Unknown,
    Value,
)

MAX_DEPTH = 45  # nested calls of the source; each needs up to 20 of this process
NAMES = (
    "abs all any bool dict divmod enumerate filter float frozenset int len list map max min object range repr "
    "reversed round set sorted str sum tuple zip ord chr type"
)
BUILTINS = {**EXCEPTIONS, **{name: getattr(builtins, name) for name in NAMES.split()}}
BUILTINS["NotImplemented"] = NotImplemented
PURE = (str, list, dict, set, frozenset, tuple, int, float, re.Pattern, re.Match, bytes)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8-sig"))


@cache
def contains_yield(node: ast.AST) -> bool:
    return any(isinstance(x, ast.Yield | ast.YieldFrom) for x in ast.walk(node))


class Super:
    """The result of super(): attributes of the classes after `owner` in the receiver's lineage."""

    def __init__(self, owner: Class, receiver: Value) -> None:
        self.owner, self.receiver = owner, receiver


class Interpreter(Statements):
    """The sources under `root`, with stand-ins for libraries, functions and values that depend on the machine."""

    def __init__(
        self,
        root: Path,
        *,
        libraries: dict[str, Value],
        replaced: dict[str, Value],
        hooks: dict[str, Callable[..., Value]],
        missing: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.root, self.libraries, self.replaced, self.hooks, self.missing = root, libraries, replaced, hooks, missing
        self.modules: dict[str, Module] = {}
        self.depth = 0

    # Modules and names

    def is_missing(self, module: str) -> bool:
        return module.split(".")[0] in self.missing

    def find_path(self, name: str) -> Path | None:
        base = self.root.joinpath(*name.split("."))
        for path in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if path.is_file():
                return path
        return None

    def module(self, name: str) -> Value:
        """Return a module of the sources, run once, or a stand-in of a library."""
        if name in self.replaced:
            return self.replaced[name]
        if name not in self.modules:
            path = self.find_path(name)
            if path is None and not self.root.joinpath(*name.split(".")).is_dir():
                return self.library(name)
            made = self.modules[name] = Module(name, path)
            made.names.update({"__name__": name, "__module__": made})
            depth, self.depth = self.depth, 0
            for statement in parse(path).body if path else ():
                try:
                    self.run(statement, made.names)
                except (Raised, Return, Leave, RecursionError):
                    continue
            self.depth = depth
        return self.modules[name]

    def library(self, name: str) -> Value:
        head, _, rest = name.partition(".")
        value = self.libraries.get(head, Unknown(head))
        if head == "importlib":
            spec = Record(find_spec=lambda package: None if self.is_missing(package) else Record())
            value = Record(import_module=self.module, util=spec)
        for part in filter(None, rest.split(".")):
            value = self.attribute(value, part)
        return value

    def resolve(self, lazy: Lazy) -> Value:
        full = f"{lazy.module}.{lazy.name}"
        if lazy.name and full in self.replaced:
            return self.replaced[full]
        found = self.module(lazy.module)
        if not lazy.name:
            return found
        value = self.attribute(found, lazy.name)
        return Unknown(full) if value is MISSING else value

    def name_in_module(self, module: Module, name: str) -> Value:
        if f"{module.name}.{name}" in self.replaced:
            return self.replaced[f"{module.name}.{name}"]
        value = module.names.get(name, MISSING)
        if isinstance(value, Lazy):
            value = module.names[name] = self.resolve(value)
        return value

    def look_up(self, name: str, scope: Scope) -> Value:
        inner: Scope | None = scope
        while inner is not None:
            if name in inner:
                if isinstance(inner[name], Lazy):
                    inner[name] = self.resolve(inner[name])
                if "__fields__" not in inner or inner is scope:  # a method does not see its class's names
                    return inner[name]
            inner = inner.get("__parent__")
        value = self.name_in_module(scope["__module__"], name)
        if value is not MISSING:
            return value
        return BUILTINS.get(name, Unknown(name))

    def attribute(self, value: Value, name: str) -> Value:
        """Return an attribute as Python would look it up."""
        if isinstance(value, Unknown):
            return Unknown(f"{value.label}.{name}")
        if isinstance(value, Module):
            found = self.name_in_module(value, name)
            path = f"{value.name}.{name}"
            if found is MISSING and (path in self.replaced or self.find_path(path)):
                return self.module(path)
            if found is MISSING and isinstance(value.names.get("__getattr__"), Function):
                return value.names["__getattr__"](name)
            return Unknown(path) if found is MISSING else found
        if isinstance(value, Super):
            receiver = value.receiver
            cls = receiver if isinstance(receiver, Class) else receiver.cls
            line = list(cls.lineage())
            after = line[line.index(value.owner) + 1 :] if value.owner in line else line
            found = next((c.names[name] for c in after if name in c.names), MISSING)
            return self.bind(found, None if isinstance(receiver, Class) else receiver, cls, name)
        if isinstance(value, Instance):
            if name in value.fields:
                return value.fields[name]
            if name in ("__class__", "__dict__"):
                return value.cls if name == "__class__" else value.fields
            if name in ("_asdict", "__getattribute__"):
                return lambda: dict(value.fields)
            found = value.cls.find(name)
            getter = value.cls.find("__getattr__")
            if found is MISSING and isinstance(getter, Function):
                return Bound(getter, value)(name)
            return self.bind(found, value, value.cls, name)
        if isinstance(value, Class):
            if name in ("__name__", "__qualname__"):
                return value.name
            if name == "__members__":
                return {k: m for k, m in value.names.items() if isinstance(m, Member)}
            return self.bind(value.find(name), None, value, name)
        if isinstance(value, Member):
            if name in ("name", "value", "_value_", "_name_"):
                return value.name if "name" in name else value.value
            found = value.cls.find(name)
            if found is MISSING and plain(value) is not value:
                return self.attribute(plain(value), name)
            return self.bind(found, value, value.cls, name)
        if name == "__name__" and isinstance(value, Function | type):
            return value.name if isinstance(value, Function) else value.__name__
        if isinstance(value, Symbol):
            return Symbol(f"{value}.{name}")
        if isinstance(value, (Host, Raised, *PURE)) or any(value is kind for kind in (dict, str, list, object)):
            return getattr(value, name, Unknown(f"{type(value).__name__}.{name}"))
        return Unknown(f"{value}.{name}"[:60])

    def bind(self, found: Value, receiver: Value, cls: Class, name: str) -> Value:
        if found is MISSING:
            return Unknown(f"{cls.name}.{name}")
        if isinstance(found, Lazy):
            return self.resolve(found)
        if isinstance(found, Function):
            if found.kind == "property":
                return found if receiver is None else found(receiver)
            if found.kind == "class":
                return Bound(found, receiver.cls if isinstance(receiver, Instance) else cls)
            if found.kind == "function" and receiver is not None:
                return Bound(found, receiver)
        return found

    # Calls

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope) -> Value:
        """Call a function of the source, a builtin or a stand-in. Return MISSING if the result is unknown."""
        if isinstance(function, Function | Bound | Class):
            return function(*args, **kwargs)
        if isinstance(function, Unknown) or not callable(function):
            return self.call_by_name(node, args, scope)
        if function is type:
            return args[0].cls if args and isinstance(args[0], Instance | Member) else MISSING
        if function in (any, all) and args:
            truths = [self.truth(x) for x in self.iterate(args[0])]
            if isinstance(args[0], Unknown) or ((function is any) not in truths and None in truths):
                return MISSING
            return function(bool(x) for x in truths)
        if not self.takes_unknown(function, args):
            if isinstance(function, type) and issubclass(function, BaseException):
                return function(*[self.text(x) for x in args])
            if any(isinstance(x, Unknown) for x in [*args, *kwargs.values()]):
                return MISSING
            if function is str and args:
                return self.text(args[0])
            args = [plain(x) for x in args]
        try:
            found = function(*args, **kwargs)
        except (Raised, OutOfSteps, Return):
            raise
        except Exception:
            return MISSING
        return list(found) if function in (enumerate, zip, map, filter, reversed, range) else found

    def takes_unknown(self, function: Value, args: list[Value]) -> bool:
        """Return whether a builtin or stand-in works on containers of unknown elements."""
        if getattr(function, "accepts_unknown", False):
            return True
        holder = getattr(function, "__self__", None)
        if isinstance(holder, list):
            return True
        if args and isinstance(args[0], Unknown):
            return False
        return isinstance(holder, dict | set) or function in (len, list, tuple, dict, set, enumerate)

    def call_by_name(self, node: ast.AST, args: list[Value], scope: Scope) -> Value:
        """Call a builtin that needs the interpreter, by the name in the source."""
        if not isinstance(node, ast.Call):
            return Unknown("call")
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "super":
            inner: Scope | None = scope
            while inner is not None and "__self__" not in inner:
                inner = inner.get("__parent__")
            return Super(inner["__owner__"], inner["__self__"]) if inner else Unknown("super()")
        if name == "isinstance" and len(args) == 2:
            return self.is_instance(args[0], args[1])
        if name == "issubclass" and len(args) == 2 and isinstance(args[0], Class):
            return any(one is args[1] for one in args[0].lineage())
        if name in ("getattr", "hasattr") and len(args) > 1 and isinstance(args[1], str):
            found = self.attribute(args[0], args[1])
            absent = isinstance(found, Unknown) and not isinstance(args[0], Unknown)
            if name == "hasattr":
                return found if isinstance(args[0], Unknown) else not absent
            return args[2] if absent and len(args) > 2 else found
        if name == "setattr" and len(args) == 3 and isinstance(args[1], str):
            if isinstance(args[0], Instance):
                args[0].fields[args[1]] = args[2]
            elif isinstance(args[0], Host):
                setattr(args[0], args[1], args[2])
            return None
        if name == "callable" and args and not isinstance(args[0], Unknown):
            return callable(args[0])
        if name == "vars" and args and isinstance(args[0], Instance):
            return args[0].fields
        return Unknown(ast.unparse(node)[:120])

    def is_instance(self, value: Value, kind: Value) -> Value:
        if isinstance(kind, tuple):
            results = [self.is_instance(value, one) for one in kind]
            return True if True in results else next((r for r in results if isinstance(r, Unknown)), False)
        if isinstance(value, Unknown) or isinstance(kind, Unknown):
            return Unknown("isinstance")
        if isinstance(kind, Class):
            return isinstance(value, Instance | Member) and any(one is kind for one in value.cls.lineage())
        return isinstance(plain(value), kind) if isinstance(kind, type) else Unknown("isinstance")

    def call_function(self, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Run a function of the source and return its result."""
        hook = self.hooks.get(function.qualified_name) or self.hooks.get(f"*.{function.name}")
        if hook is not None:
            found = hook(self, function, args, kwargs)
            if found is not NotImplemented:
                return found
        if self.depth >= MAX_DEPTH or isinstance(function.node, ast.AsyncFunctionDef):
            return Unknown(function.name)
        scope: Scope = {"__module__": function.module, "__parent__": function.closure or None}
        spec = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        scope.update(function.defaults)
        scope.update(zip(names, args, strict=False))
        if spec.vararg:
            scope[spec.vararg.arg] = tuple(args[len(names) :])
        known = {*names, *(a.arg for a in spec.kwonlyargs)}
        scope.update({k: v for k, v in kwargs.items() if k in known})
        if spec.kwarg:
            scope[spec.kwarg.arg] = {k: v for k, v in kwargs.items() if k not in known}
        for name in known:
            scope.setdefault(name, Unknown(name))
        if function.owner is not None and args:
            scope["__owner__"], scope["__self__"] = function.owner, args[0]
        self.depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.evaluate(function.node.body, scope)
            if contains_yield(function.node):
                scope["__yields__"] = []
            self.run_all(function.node.body, scope)
            return scope.get("__yields__")
        except Return as done:
            return scope.get("__yields__", done.value)
        finally:
            self.depth -= 1

    def make_instance(self, cls: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Construct an object: by its own __init__, by its fields, or look up a member of an enumeration."""
        if cls.has_base(*ENUMS):
            wanted = plain(args[0]) if args else None
            found = [m for m in cls.names.values() if isinstance(m, Member) and wanted in (m.value, m)]
            return found[0] if found else Unknown(cls.name)
        if isinstance(cls.find("__init__"), Function):
            made = Instance(cls)
            cls.find("__init__")(made, *args, **kwargs)
            return made
        fields: dict[str, Value] = {}
        for one in reversed(list(cls.lineage())):
            fields.update(one.fields)
        given = {**dict(zip(fields, args, strict=False)), **kwargs}
        made = Instance(cls)
        for name, default in fields.items():
            made.fields[name] = Unknown(f"{cls.name}.{name}") if default is MISSING else copy.copy(default)
        made.fields.update(given)
        if isinstance(cls.find("__post_init__"), Function):
            cls.find("__post_init__")(made)
        return made
