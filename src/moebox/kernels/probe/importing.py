"""Imports single files of an engine whose wheel was only unpacked, without its compiled parts or dependencies.

Packages of the engine become bare namespaces (their __init__ does not run), modules named in `stand_ins` answer what
they are given, and what is not installed at all becomes a module that answers everything with something harmless.
The kernel files themselves, and the Python that launches them, are the engine's own.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

REAL = {"triton", "torch", "numpy"}  # never replaced: a missing one is an error worth seeing


class Answer:
    """Anything at all: can be called, subclassed, indexed, used as a decorator; false in a condition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes anything."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Anything may inherit."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Answer()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Answer()

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
        return (Answer,)


class Blank(types.ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = "<stand-in>"
        self.__version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = Answer()
        setattr(self, name, value)
        return value


class Engine(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an engine's modules under `root`, and stands in for those that are named or missing."""

    def __init__(self, root: Path, package: str, stand_ins: dict[str, dict[str, Any]]) -> None:
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

    def create_module(self, spec: Any) -> types.ModuleType:
        module = Blank(spec.name)
        module.__spec__ = spec
        for name, value in self.stand_ins.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last resort for packages that are not installed, when the engine itself asks for them.

    Others that probe for optional packages (sympy looks for gmpy2) must go on finding nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.split(".")[0]
        loaded = sys.modules.get(top)
        if top in REAL or top.startswith("_") or (loaded is not None and not isinstance(loaded, Blank)):
            return None
        if not isinstance(loaded, Blank) and not _importer().startswith(self.root):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = Blank(spec.name)
        module.__spec__ = spec
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def no(*args: Any, **kwargs: Any) -> bool:
    """What a platform that is not this one says."""
    return False


def yes(*args: Any, **kwargs: Any) -> bool:
    """What this platform says."""
    return True


def open_sglang(root: Path, capability: int, device_name: str = "stand-in") -> Engine:
    """SGLang's files, told that they run on CUDA of this capability."""
    utils: dict[str, Any] = {
        "is_cuda": yes,
        "is_hip": no,
        "is_sm120_supported": yes if capability // 10 == 12 else no,
        "is_sm100_supported": yes if capability // 10 == 10 else no,
        "is_sm90_supported": yes if capability // 10 == 9 else no,
        "is_blackwell": yes if capability // 10 in (10, 12) else no,
        "get_bool_env_var": no,
        "get_int_env_var": lambda name, default=0: default,
        "direct_register_custom_op": lambda *args, **kwargs: None,
        "register_custom_op": lambda *args, **kwargs: lambda function: function,
        "get_device_name": lambda *args: device_name,
    }
    for other in ("xpu", "npu", "cpu", "musa", "hpu", "mps"):
        utils[f"is_{other}"] = no
    for other in ("is_gfx95_supported", "is_gfx1250_supported", "cpu_has_amx_support"):
        utils[other] = no
    pdl = {"is_arch_support_pdl": yes if capability >= 90 else no}
    stand_ins: dict[str, dict[str, Any]] = {
        "sglang.srt.utils": utils,
        "sglang.srt.utils.common": utils,
        "sglang.srt.environ": {},
        "sglang.srt.server_args": {},
        "sglang.srt.runtime_context": {},
        "sglang.srt.platforms": {"current_platform": _triton_platform()},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": no},
        "sglang.srt.layers.moe.utils": {"get_moe_padding_size": lambda *args: 0},
        "sglang.kernels.jit.utils": pdl,
        "sglang.jit_kernel.utils": pdl,
    }
    for package in ("sglang.kernels.ops.quantization", "sglang.srt.layers.quantization"):
        stand_ins[f"{package}.fp8_kernel"] = _activation_quant()
        stand_ins[f"{package}.int8_kernel"] = {}
    return _open(Engine(root, "sglang", stand_ins))


def _triton_platform() -> Any:
    """A platform that has Triton, for versions that ask."""
    return types.SimpleNamespace(capabilities=types.SimpleNamespace(supports_triton=True))


def _activation_quant() -> dict[str, Any]:
    """SGLang quantises activations with compiled kernels first; here only the shapes they return matter."""
    import torch

    def scaled(values: Any, scale: Any = None, **kwargs: Any) -> Any:
        return values.to(torch.float8_e4m3fn), scale

    def grouped(values: Any, group: int, **kwargs: Any) -> Any:
        sizes = (*values.shape[:-1], values.shape[-1] // group)
        return values.to(torch.float8_e4m3fn), torch.empty(sizes, dtype=torch.float32, device="meta")

    grouped_names = ("per_token_group_quant_fp8", "sglang_per_token_group_quant_fp8")
    return {"scaled_fp8_quant": scaled, **dict.fromkeys(grouped_names, grouped)}


def open_vllm(root: Path, capability: int, device_name: str, sms: int) -> Engine:
    """vLLM's files, told that they run on CUDA of this capability."""
    import triton
    import triton.language as language

    for name in ("info_once", "warning_once", "debug_once"):
        setattr(logging.Logger, name, lambda self, *args, **kwargs: None)
    tuned = "VLLM_TUNED_CONFIG_FOLDER"
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm.platforms": {"current_platform": _platform(capability, device_name, sms)},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.triton_utils": {"tl": language, "triton": triton, "HAS_TRITON": True},
        "vllm._custom_ops": {},
        "vllm.triton_utils.allocation": {},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False, tuned: os.environ.get(tuned)},
        "vllm.utils.torch_utils": {"direct_register_custom_op": lambda *args, **kwargs: None},
        "vllm.utils.math_utils": {"next_power_of_2": triton.next_power_of_2, "cdiv": triton.cdiv},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda: device_name.replace(" ", "_")},
    }
    moe = "vllm.model_executor.layers.fused_moe"
    stand_ins |= {f"{moe}.{part}": {} for part in ("modular_kernel", "activation", "config", "moe_align_block_size")}
    stand_ins[f"{moe}.utils"] = {
        "enable_swap_ab": lambda rows, columns: capability == 90 and rows < 64 <= columns,
        "resolve_moe_use_td": no,
        "warn_if_moe_use_td_ineffective": lambda *args, **kwargs: None,
    }
    return _open(Engine(root, "vllm", stand_ins))


def _open(engine: Engine) -> Engine:
    sys.meta_path.insert(0, engine)
    sys.meta_path.append(Absent(engine.root))
    return engine


def _importer() -> str:
    """The file whose import statement is being carried out."""
    frame = sys._getframe(2)
    while frame.f_back and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename


def _platform(capability: int, device_name: str, sms: int) -> Any:
    """vLLM's idea of the GPU."""
    import torch

    class Capability(NamedTuple):
        major: int
        minor: int

        def to_int(self) -> int:
            return self.major * 10 + self.minor

        def as_version_str(self) -> str:
            return f"{self.major}.{self.minor}"

    def number(wanted: Any) -> int:
        return wanted if isinstance(wanted, int) else wanted[0] * 10 + wanted[1]

    class Platform:
        device_type = device_name_kind = "cuda"
        simple_compile_backend = "eager"
        dispatch_key = "CUDA"

        def get_device_capability(self, device: int = 0) -> Any:
            return Capability(*divmod(capability, 10))

        def has_device_capability(self, wanted: Any, device: int = 0) -> bool:
            return capability >= number(wanted)

        def is_device_capability(self, wanted: Any, device: int = 0) -> bool:
            return capability == number(wanted)

        def is_device_capability_family(self, wanted: int, device: int = 0) -> bool:
            return capability // 10 == wanted // 10

        def get_device_name(self, device: int = 0) -> str:
            return device_name

        def num_compute_units(self, device: int = 0) -> int:
            return sms

        def fp8_dtype(self) -> Any:
            return torch.float8_e4m3fn

        is_cuda = is_cuda_alike = supports_fp8 = yes

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return no  # is_rocm, is_cpu, is_fp8_fnuz and the like

    return Platform()
