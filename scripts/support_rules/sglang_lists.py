"""Names that an SGLang release knows: architectures, parsers, flag choices, quantisations with their minimum GPU."""

import ast
from collections.abc import Iterator
from pathlib import Path

from .interpreter import parse
from .sglang_rules import SglangRelease
from .values import Class, Function, Member, Raised, Unknown, Value

FLAGS = {
    "attention-backend": "attention_backend",
    "cache-type": "kv_cache_dtype",
    "moe-backend": "moe_runner_backend",
    "quantization": "quantization",
}
TABLES = {
    "tool-parser": ("sglang.srt.function_call.function_call_parser", "FunctionCallParser", "ToolCallParserEnum"),
    "reasoning-parser": ("sglang.srt.parser.reasoning_parser", "ReasoningParser", "DetectorMap"),
}


def architectures(release: SglangRelease) -> tuple[list[str], str]:
    """Return the classes that the files of models/ register as EntryClass."""
    found: list[str] = []
    folder = release.root / "sglang/srt/models"
    for path in sorted(folder.rglob("*.py")):
        for node in parse(path).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "EntryClass" for t in node.targets):
                found += [x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)]
    return sorted(set(found)), release.line_of("sglang.srt.models.registry", "import_model_classes")


def table(release: SglangRelease, kind: str) -> tuple[list[str], str]:
    """Return the keys of a class's table of parsers."""
    module, cls, name = TABLES[kind]
    owner = release.find(f"{module}.{cls}")
    found = owner.find(name) if isinstance(owner, Class) else {}
    return [str(k) for k in release.reader.iterate(found)], release.line_of(module, name)


def choices(release: SglangRelease, kind: str) -> tuple[list[str], str]:
    """Return the choices of a flag, from add_argument or from the annotation of its field."""
    field = FLAGS[kind]
    flag = "--" + field.replace("_", "-")
    paths = [release.root / "sglang/srt/server_args.py", *release.root.glob("sglang/srt/arg_groups/fields/*.py")]
    for path in paths:
        for node in ast.walk(parse(path)):
            call: ast.Call | None = None
            if isinstance(node, ast.Call) and any(getattr(a, "value", None) == flag for a in node.args):
                call = node
            elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == field:
                calls = [x for x in ast.walk(node.annotation) if isinstance(x, ast.Call)]
                call = next((x for x in calls if any(k.arg == "choices" for k in x.keywords)), None)
            value = next((k.value for k in call.keywords if k.arg == "choices"), None) if call else None
            if value is not None:
                found = release.reader.evaluate(value, module_of(release, path).names)
                return [
                    str(x) for x in release.reader.iterate(found)
                ], f"{path.relative_to(release.root)}:{value.lineno}"
    return [], ""


def module_of(release: SglangRelease, path: Path) -> Value:
    return release.reader.module(".".join(path.relative_to(release.root).with_suffix("").parts))


def speculative_methods(release: SglangRelease) -> tuple[list[str], str]:
    module = "sglang.srt.speculative.spec_info"
    cls = release.find(f"{module}.SpeculativeAlgorithm")
    members = [m.name for m in release.reader.iterate(cls) if isinstance(m, Member)]
    at = f"sglang/srt/speculative/spec_info.py:{cls.line}" if isinstance(cls, Class) else ""
    return [name for name in members if name != "NONE"], at


def draft_backends(release: SglangRelease) -> tuple[list[str], str]:
    """Return the attention backends that can decode a draft model: the table of the draft backend factory."""
    path = release.root / "sglang/srt/speculative/draft_utils.py"
    for node in ast.walk(parse(path)) if path.is_file() else ():
        if isinstance(node, ast.FunctionDef) and node.name == "create_decode_backend":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Dict):
                    keys = [k.value for k in inner.keys if isinstance(k, ast.Constant)]
                    return [str(k) for k in keys], f"{path.relative_to(release.root)}:{inner.lineno}"
    return [], ""


def quantizations(release: SglangRelease) -> Iterator[tuple[str, int, str]]:
    """Yield each quantisation with the minimum compute capability that its configuration declares, and file:line."""
    methods = release.find("sglang.srt.layers.quantization.QUANTIZATION_METHODS")
    methods = methods or release.find("sglang.srt.layers.quantization.BASE_QUANTIZATION_METHODS")
    for name, cls in methods.items() if isinstance(methods, dict) else ():
        method = cls.find("get_min_capability") if isinstance(cls, Class) else None
        if not isinstance(method, Function) or not method.module.path:
            continue
        try:
            minimum = release.reader.attribute(cls, "get_min_capability")()
        except Raised:
            continue
        if not isinstance(minimum, Unknown):
            yield str(name), int(minimum), f"{method.module.path.relative_to(release.root)}:{method.node.lineno}"
