"""Writes src/moebox/data/kernel_files.toml: hashes of the files that a kernel patch may touch, by release.

python scripts/kernel_files.py FOLDER   # holds unpacked wheels as sglang-VERSION/ and vllm-VERSION/
"""

import hashlib
import sys
from pathlib import Path

NAMES = {
    "sglang": ("extend_attention.py", "decode_attention.py", "fused_moe_triton_config.py"),
    "vllm": ("triton_decode_attention.py",),
}
OTHERS = ("wave_ops", "multimodal", "/test", "dsv4", "cpu")
HEAD = """# Files that `moebox doctor kernels --fix` may patch: SHA-256 of each as released.
# Made by scripts/kernel_files.py.

[sha256]
"""


def main(folder: Path) -> None:
    """Collect and write."""
    found: dict[str, list[str]] = {}
    for engine, names in NAMES.items():
        for release in sorted(folder.glob(f"{engine}-*")):
            for name in names:
                for path in sorted(release.glob(f"{engine}/**/{name}")):
                    if not any(word in str(path) for word in OTHERS):
                        mark = hashlib.sha256(path.read_bytes()).hexdigest()
                        found.setdefault(mark, []).append(f"{release.name} {name}")
    lines = [f'{mark} = "{"; ".join(where)}"' for mark, where in sorted(found.items(), key=lambda item: item[1])]
    out = Path(__file__).parent.parent / "src/moebox/data/kernel_files.toml"
    out.write_text(HEAD + "\n".join(lines) + "\n")
    print(f"{len(found)} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
