"""Stand-ins for the libraries that engines ask about the machine. They answer for one GPU generation."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .values import Bound, Function, Host, LiteralType, Record, Symbol, Unknown, Value

# Versions that the releases are built for (METADATA of the wheels: torch 2.9 to 2.13 with CUDA 12.9 or 13.0).
CUDA_VERSION = "13.0"
ROCM_VERSION = "7.2.0"


@dataclass(frozen=True)
class Target:
    """A GPU generation: "sm120" or "gfx942"."""

    name: str

    @property
    def is_amd(self) -> bool:
        return self.name.startswith("gfx")

    @cached_property
    def capability(self) -> tuple[int, int]:
        """Compute capability; for AMD, PyTorch's reading of the architecture name (gfx942 is 9.4)."""
        if self.is_amd:
            digits = re.sub(r"\D", "", self.name[3:])
            return (int(digits[0]), int(digits[1])) if len(digits) == 3 else (int(digits[:2]), int(digits[2]))
        number = int(self.name[2:])
        return number // 10, number % 10


class Symbols(Host):
    """A library whose attributes are named constants."""

    def __init__(self, name: str, **known: Value) -> None:
        self.__dict__.update(known)
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(f"{self._name}.{name}")


def accept_unknown(function: Callable[..., Value]) -> Callable[..., Value]:
    """Mark a stand-in that may be called with unknown arguments."""
    function.accepts_unknown = True  # type: ignore[attr-defined]
    return function


@accept_unknown
def get_args(kind: Value) -> Value:
    return tuple(kind) if isinstance(kind, LiteralType) else Unknown("get_args")


@accept_unknown
def make_field(default: Value = None, default_factory: Value = None, **_: Value) -> Value:
    """dataclasses.field and pydantic.Field: the default."""
    return default_factory() if callable(default_factory) else default


@accept_unknown
def replace_fields(instance: Value, **changes: Value) -> Value:
    return (
        Unknown("replace")
        if isinstance(instance, Unknown)
        else type(instance)(instance.cls, {**instance.fields, **changes})
    )


@accept_unknown
def partial(function: Value, *first: Value, **given: Value) -> Value:
    if not isinstance(function, Function | Bound):
        return Unknown("partial")
    return accept_unknown(lambda *rest, **more: function(*first, *rest, **{**given, **more}))


@accept_unknown
def remember(function: Value = None, **_: Value) -> Value:
    """functools.cache and lru_cache: the function itself."""
    return function if isinstance(function, Function | Bound) or callable(function) else accept_unknown(lambda f: f)


@accept_unknown
def cast(kind: Value, value: Value) -> Value:
    return value


@accept_unknown
def ignore(*_: Value, **__: Value) -> None:
    return None


def torch_for(target: Target) -> Host:
    """torch: named dtypes, and the answers of torch.cuda and torch.version for one GPU generation."""
    cuda = Record(
        is_available=lambda *_: True,
        get_device_capability=accept_unknown(lambda *_: target.capability),
        device_count=lambda: 8,
        get_device_name=accept_unknown(lambda *_: target.name),
        get_device_properties=accept_unknown(
            lambda *_: Record(
                major=target.capability[0],
                minor=target.capability[1],
                gcnArchName=target.name if target.is_amd else "",
            )
        ),
    )
    version = Record(
        cuda=None if target.is_amd else CUDA_VERSION, hip=ROCM_VERSION if target.is_amd else None, xpu=None
    )
    unavailable = Record(is_available=lambda *_: False)
    return Symbols(
        "torch",
        cuda=cuda,
        version=version,
        backends=Record(mps=unavailable),
        xpu=unavailable,
        npu=unavailable,
        __version__="2.11.0",
        nn=Unknown("torch.nn"),
        Tensor=Unknown("torch.Tensor"),
        ops=Unknown("torch.ops"),
        distributed=Unknown("torch.distributed"),
        library=Unknown("torch.library"),
        compile=Unknown("torch.compile"),
        finfo=Unknown("torch.finfo"),
        tensor=Unknown("torch.tensor"),
        empty=Unknown("torch.empty"),
        zeros=Unknown("torch.zeros"),
    )


def libraries_for(target: Target) -> dict[str, Value]:
    """Return the stand-ins by the name that the source imports."""
    environ: dict[str, str] = {}
    literal = Record(
        Literal=Symbol("typing.Literal"),
        get_args=get_args,
        TYPE_CHECKING=False,
        cast=cast,
        NamedTuple=Unknown("NamedTuple"),
    )
    return {
        "torch": torch_for(target),
        "typing": literal,
        "typing_extensions": literal,
        "dataclasses": Record(field=make_field, replace=replace_fields),
        "pydantic": Record(Field=make_field),
        "functools": Record(partial=partial, lru_cache=remember, cache=remember),
        "math": Record(ceil=math.ceil, floor=math.floor, gcd=math.gcd, log2=math.log2, prod=math.prod),
        "re": Record(match=re.match, search=re.search, compile=re.compile, sub=re.sub, fullmatch=re.fullmatch),
        "os": Record(
            environ=environ,
            getenv=accept_unknown(lambda name, default=None: default),
            path=Record(isdir=lambda *_: False, exists=lambda *_: False, isfile=lambda *_: False),
        ),
        "copy": Record(copy=lambda x: x, deepcopy=lambda x: x),
        "logging": Record(getLogger=lambda *_: Unknown("logger")),
        "collections": Record(defaultdict=lambda *_: {}, OrderedDict=dict, deque=list),
        "platform": Record(system=lambda: "Linux", machine=lambda: "x86_64"),
        "sys": Record(platform="linux", version_info=(3, 12, 0)),
    }
