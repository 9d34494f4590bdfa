"""Which damages of a model `moebox quality` separates from healthy variants, on the embedded engine.

    python benchmarks/quality.py [--only NAME,...] [--json FILE]
    python benchmarks/quality.py --routes 100      (false alarms of the check `routes`, in 100 runs on a healthy server)

The phantom is served as it is, in healthy variants (other kernels, batch sizes, cache types), with coarser weights, and
damaged. Three healthy servers are the references; their distance from each other is the noise. A variant is named if
`moebox quality` would call it different. Takes about 15 minutes on one core.
"""

import argparse
import json
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moebox import http, phantom
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.phantom.gguf import Q8_0, PhantomGguf
from moebox.quality.judge import judge_quality
from moebox.quality.reader import read_texts
from moebox.quality.reading import TextReading
from moebox.quality.texts import standard_texts
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

Damage = Callable[[PhantomGguf, bytearray], None]
EXPERTS, USED = 16, 4
REFERENCES = {"default": (), "flash attention off": ("-fa", "off"), "-ub 32": ("-ub", "32")}
HEALTHY: dict[str, tuple[str, ...]] = {
    "again": (),
    "bf16 cache": ("-ctk", "bf16", "-ctv", "bf16"),
    "f32 cache": ("-ctk", "f32", "-ctv", "f32", "-fa", "off"),
    "-ub 128": ("-ub", "128"),
    "-ub 64 -b 64": ("-ub", "64", "-b", "64"),
    "-ub 7 -b 7": ("-ub", "7", "-b", "7"),
    "2 threads": ("-t", "2"),
    "4 slots": ("-np", "4"),
    "flash attention on": ("-fa", "on"),
    "flash off, -ub 32": ("-fa", "off", "-ub", "32"),
    "flash off, bf16 cache": ("-fa", "off", "-ctk", "bf16"),
}
CACHES: dict[str, tuple[str, ...]] = {
    "q8_0 cache": ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"),
    "q4_0 cache": ("-ctk", "q4_0", "-ctv", "q4_0", "-fa", "on"),
}


def scale_tensor(pattern: str, factor: float) -> Damage:
    """Multiply float32 tensors."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        for name, tensor in model.tensors.items():
            if pattern in name and tensor.kind == 0:
                values = struct.unpack_from(f"<{tensor.value_count}f", raw, tensor.start)
                struct.pack_into(f"<{tensor.value_count}f", raw, tensor.start, *(value * factor for value in values))

    return damage


def swap_experts(first: int, second: int, patterns: tuple[str, ...], layers: tuple[int, ...]) -> Damage:
    """Exchange the weights of two experts."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        for layer in layers:
            for pattern in patterns:
                tensor = model.tensors[f"blk.{layer}.{pattern}.weight"]
                size = tensor.size_bytes // EXPERTS
                a, b = tensor.start + first * size, tensor.start + second * size
                raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]

    return damage


def kill_rows(name: str, start: float, share: float) -> Damage:
    """Set a part of a tensor to zero: an expert, or a head."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        tensor = model.tensors[name]
        unit = 34 if tensor.kind == Q8_0 else 2 if tensor.kind == 1 else 4
        a = tensor.start + round(tensor.size_bytes * start) // unit * unit
        size = round(tensor.size_bytes * share) // unit * unit
        raw[a : a + size] = bytes(size)

    return damage


def coarsen(bits: int, pattern: str = "") -> Damage:
    """Round q8_0 steps to fewer bits: what a quantized format of this width loses at least."""
    levels = 2 ** (bits - 1) - 1 if bits > 2 else 1.5
    values = [max(-127, min(127, round(round(step * levels / 127) * 127 / levels))) for step in range(-128, 128)]
    table = bytes((values[(byte - 256 if byte > 127 else byte) + 128]) & 0xFF for byte in range(256))

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        for name, tensor in model.tensors.items():
            if tensor.kind == Q8_0 and pattern in name:
                end = tensor.start + tensor.size_bytes
                for offset in range(2, 34):
                    part = slice(tensor.start + offset, end, 34)
                    raw[part] = raw[part].translate(table)

    return damage


def rot_blocks(share: float, pattern: str = "") -> Damage:
    """Replace some q8_0 blocks' values by random ones."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        rng = random.Random(7)
        for name, tensor in model.tensors.items():
            if tensor.kind == Q8_0 and pattern in name:
                for start in range(tensor.start, tensor.start + tensor.size_bytes, 34):
                    if rng.random() < share:
                        raw[start + 2 : start + 34] = rng.randbytes(32)

    return damage


def set_meta(key: str, kind: str, value: float) -> Damage:
    """Change one number of the header."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        at = raw.index(key.encode()) + len(key) + 4
        struct.pack_into("<" + kind, raw, at, value)

    return damage


def shift_bias(layer: int, shift: int) -> Damage:
    """Rotate the router's bias by some experts."""

    def damage(model: PhantomGguf, raw: bytearray) -> None:
        tensor = model.tensors[f"blk.{layer}.exp_probs_b.bias"]
        values = struct.unpack_from(f"<{EXPERTS}f", raw, tensor.start)
        struct.pack_into(f"<{EXPERTS}f", raw, tensor.start, *(values[shift:] + values[:shift]))

    return damage


ALL = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
DAMAGES: dict[str, Damage] = {
    "router bias zero": scale_tensor("exp_probs_b", 0.0),
    "router bias doubled": scale_tensor("exp_probs_b", 2.0),
    "router bias of layer 2 rotated": shift_bias(2, 3),
    "router weights -10%": scale_tensor("ffn_gate_inp", 0.9),
    "router weights halved": scale_tensor("ffn_gate_inp", 0.5),
    "experts swapped, layer 1": swap_experts(0, 1, ALL, (1,)),
    "experts swapped, layer 3": swap_experts(4, 9, ALL, (3,)),
    "experts swapped, layer 4": swap_experts(2, 11, ALL, (4,)),
    "down matrices swapped, layer 2": swap_experts(3, 5, ("ffn_down_exps",), (2,)),
    "experts swapped, all layers": swap_experts(6, 7, ALL, (1, 2, 3, 4)),
    "dead expert, layer 1": kill_rows("blk.1.ffn_down_exps.weight", 3 / EXPERTS, 1 / EXPERTS),
    "dead expert, layer 4": kill_rows("blk.4.ffn_down_exps.weight", 8 / EXPERTS, 1 / EXPERTS),
    "dead shared expert, layer 2": kill_rows("blk.2.ffn_down_shexp.weight", 0.0, 1.0),
    "dead head, layer 0": kill_rows("blk.0.attn_kv_b.weight", 0.0, 1 / 8),
    "dead head, layer 2": kill_rows("blk.2.attn_kv_b.weight", 3 / 8, 1 / 8),
    "dead head, layer 4": kill_rows("blk.4.attn_kv_b.weight", 6 / 8, 1 / 8),
    "3-bit experts": coarsen(3, "_exps"),
    "2-bit experts": coarsen(2, "_exps"),
    "one block in 1,000 rotten": rot_blocks(0.001),
    "one expert block in 300 rotten": rot_blocks(0.003, "_exps"),
    "3 active experts": set_meta("deepseek2.expert_used_count", "I", 3),
    "2 active experts": set_meta("deepseek2.expert_used_count", "I", 2),
    "softmax gating": set_meta("deepseek2.expert_gating_func", "I", 1),
    "expert scale 2.5": set_meta("deepseek2.expert_weights_scale", "f", 2.5),
    "expert weights not normalized": set_meta("deepseek2.expert_weights_norm", "B", 0),
    "rope base 10,000": set_meta("deepseek2.rope.freq_base", "f", 10_000.0),
    "rope base 60,000": set_meta("deepseek2.rope.freq_base", "f", 60_000.0),
}
WIDTHS: dict[str, Damage] = {f"{bits}-bit weights": coarsen(bits) for bits in (7, 6, 5, 4, 3, 2)}


@contextmanager
def serve_phantom(path: Path, flags: tuple[str, ...]) -> Iterator[Endpoint]:
    """Serve a GGUF with the embedded engine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "moebox.serve.embedded", "-m", str(path), "-a", "phantom", "--port", str(port)]
    argv += ["-c", "4096", "-t", "1", "-lv", "1", *flags]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = endpoint_from_url(f"http://127.0.0.1:{port}", "phantom", engine="embedded")
        while not http.get(f"{endpoint.base_url}/models").ok and server.poll() is None:
            time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def read_variant(path: Path, flags: tuple[str, ...] = (), damage: Damage | None = None) -> tuple[TextReading, ...]:
    """Score the short texts on one variant."""
    texts = [text for text in standard_texts() if not text.depths and text.kind not in ("languages",)]
    with tempfile.TemporaryDirectory() as folder:
        if damage:
            model = PhantomGguf(path)
            raw = bytearray(model.raw)
            damage(model, raw)
            path = Path(folder, "damaged.gguf")
            path.write_bytes(raw)
        with serve_phantom(path, flags) as endpoint:
            return read_texts(endpoint, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--routes", type=int, default=0, help="only run the check `routes` so often on a healthy server"
    )
    given = parser.parse_args()
    source = phantom.gguf_path()
    if given.routes:
        with serve_phantom(source, ("-np", "4", "-c", "16384")) as endpoint:
            for seed in range(given.routes):
                options = VerifyOptions(seed=seed, parallel=4)
                check = run_checks(endpoint, options, only=["routes"]).rungs[0]
                print(seed, check.verdict, [probe.reason for probe in check.probes], flush=True)
        return
    references = {name: read_variant(source, flags) for name, flags in REFERENCES.items()}
    cases: list[tuple[str, str, tuple[str, ...], Damage | None]] = []
    cases += [("healthy", name, flags, None) for name, flags in HEALTHY.items()]
    cases += [("cache", name, flags, None) for name, flags in CACHES.items()]
    cases += [("width", name, (), damage) for name, damage in WIDTHS.items()]
    cases += [("damage", name, (), damage) for name, damage in DAMAGES.items()]
    rows = []
    for group, name, flags, damage in cases:
        if given.only and name not in given.only.split(","):
            continue
        judged = judge_quality(list(references.values()), read_variant(source, flags, damage))
        figures = judged.figures
        rows.append({"group": group, "name": name, "different": judged.different, "kl": figures.mean_kl.value})
        interval = f"{figures.mean_kl.low:.4f} to {figures.mean_kl.high:.4f}"
        shown = "DIFFERENT" if judged.different else "no difference"
        ratio = figures.perplexity_ratio.value if figures.perplexity_ratio else 0.0
        noise = f"noise {judged.noise:.4f}" if judged.noise is not None else ""
        print(
            f"{group:8}{name:34}{figures.mean_kl.value:8.4f} ({interval})  p99 {figures.p99_kl.value:6.3f}"
            f"  top-1 {figures.same_top.value:6.1%}  ppl x{ratio:.3f}  {shown}  {noise}",
            flush=True,
        )
    for group in dict.fromkeys(str(row["group"]) for row in rows):
        some = [row for row in rows if row["group"] == group]
        print(f"{group}: {sum(bool(row['different']) for row in some)} of {len(some)} called different")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
