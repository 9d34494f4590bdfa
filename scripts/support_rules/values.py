"""Values of the static interpreter: what a Python source file defines, without importing it."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Value = Any  # a plain Python value, or one of the classes below


class Unknown:
    """A value that cannot be read from the source. Every operation on it is unknown too."""

    def __init__(self, label: str = "?") -> None:
        self.label = label

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def __bool__(self) -> bool:
        raise TypeError(f"truth of {self.label} is unknown")

    def __deepcopy__(self, memo: Any) -> "Unknown":
        return self


class Host:
    """Base of stand-ins written for this script (torch, a model's config): attributes that they lack are unknown."""

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{type(self).__name__}.{name}")


class Record(Host):
    """A stand-in with the given attributes."""

    def __init__(self, **fields: Value) -> None:
        self.__dict__.update(fields)


class Symbol(str):
    """A named constant of a library that is not read, such as torch.bfloat16."""


class LiteralType(tuple[Value, ...]):
    """The choices of a typing.Literal."""


class Raised(Exception):
    """An exception that the interpreted source raises."""

    def __init__(self, kind: type[BaseException], text: str, at: str) -> None:
        super().__init__(text)
        self.kind, self.text, self.at = kind, text, at


class OutOfSteps(Exception):
    """The interpreted code ran longer than its budget."""


@dataclass(eq=False, repr=False)
class Module:
    """A source file and the names it defines."""

    name: str
    path: Path | None
    names: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Lazy:
    """An import that is resolved when its name is used."""

    module: str
    name: str = ""


@dataclass(eq=False, repr=False)
class Function:
    """A function of the source. Callable, so that sorted() and map() of this process can use it."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    closure: dict[str, Value]
    call: Callable[..., Value]
    owner: "Class | None" = None
    kind: str = "function"  # function, static, class, property
    defaults: dict[str, Value] = field(default_factory=dict)

    @property
    def qualified_name(self) -> str:
        return ".".join(x for x in (self.module.name, self.owner.name if self.owner else "", self.name) if x)

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self.call(self, list(args), kwargs)


@dataclass(eq=False, repr=False)
class Bound:
    """A method with its receiver."""

    function: Function
    receiver: Value

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self.function(self.receiver, *args, **kwargs)


@dataclass(eq=False, repr=False)
class Class:
    """A class of the source."""

    name: str
    module: Module
    bases: list[Value]
    names: dict[str, Value] = field(default_factory=dict)
    fields: dict[str, Value] = field(default_factory=dict)  # annotated names in order, with MISSING or the default
    line: int = 0

    def lineage(self) -> Iterator["Class"]:
        """Yield the class and its bases, depth first with duplicates moved last, near enough to Python's order."""
        found: list[Class] = [self]
        for base in self.bases:
            if isinstance(base, Class):
                found += list(base.lineage())
        yield from (c for i, c in enumerate(found) if c not in found[i + 1 :])

    def find(self, name: str) -> Value:
        """Return the attribute of the class or its bases, or MISSING."""
        for one in self.lineage():
            if name in one.names:
                return one.names[name]
        return MISSING

    def has_base(self, *names: str) -> bool:
        """Return whether a base, of the source or of a library, has one of the names."""
        return any(
            str(getattr(base, "name", getattr(base, "label", getattr(base, "__name__", base)))).rsplit(".", 1)[-1]
            in names
            for one in self.lineage()
            for base in one.bases
        )

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self.names["__make__"](self, list(args), kwargs)

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, repr=False)
class Instance:
    """An object of a class of the source."""

    cls: Class
    fields: dict[str, Value] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Instance) or self.cls is not other.cls:
            return False
        return self is other or (bool(self.cls.fields) and self.fields == other.fields)

    def __hash__(self) -> int:
        return hash(self.cls.name)

    def __repr__(self) -> str:
        return f"{self.cls.name}({', '.join(f'{k}={v!r}' for k, v in self.fields.items())})"


@dataclass(frozen=True)
class Member:
    """A member of an enumeration of the source."""

    cls: Class
    name: str
    value: Value = field(compare=False, hash=False)

    def __repr__(self) -> str:
        return f"{self.cls.name}.{self.name}"


class Missing:
    """No value."""


MISSING = Missing()
