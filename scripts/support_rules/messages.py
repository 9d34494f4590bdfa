"""Messages with which an engine refuses a GPU generation, found anywhere in its sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .interpreter import parse

GPU = re.compile(
    r"\bSM ?\d|\bsm_?\d{2}|Hopper|Blackwell|Ampere|Ada Lovelace|Turing|[Cc]apability|\bMI3\d\d|\bgfx\d|H100|B200"
)
REFUSES = re.compile(r"\b(requires?|only|not supported|unsupported|does not support|do not support|need)\b")
# Folders without start checks: tests, vendored kernels, code of other platforms and of image models.
SKIPPED = re.compile(
    r"/(third_party|tests?|benchmarks?|multimodal_gen|xpu|cpu|npu|ascend|hardware_backend|vllm_flash_attn)/"
)
LONGEST = 150  # characters of a message


def literal_text(node: ast.expr) -> str:
    """Return the text of a string expression, with the parts that are computed in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(p.value) if isinstance(p, ast.Constant) else "{" + ast.unparse(p.value) + "}"
            for p in node.values
            if isinstance(p, ast.Constant | ast.FormattedValue)
        )
    if isinstance(node, ast.BinOp):
        return literal_text(node.left) + literal_text(node.right)
    return ""


def gpu_messages(root: Path, package: str) -> Iterator[tuple[str, str]]:
    """Yield the message and file:line of every exception about a GPU generation."""
    for path in sorted((root / package).rglob("*.py")):
        if SKIPPED.search(str(path)) or not GPU.search(path.read_text(encoding="utf-8-sig")):
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = " ".join(literal_text(node.exc.args[0]).split())
                if GPU.search(message) and REFUSES.search(message):
                    yield message[:LONGEST], f"{path.relative_to(root)}:{node.lineno}"
