"""Which damages of a model `moebox quality` separates from healthy variants, on the embedded engine.

    python benchmarks/quality.py [--only "NAME;..."] [--part 1/4] [--json FILE] [--server PATH --engine ik_llama.cpp]
    python benchmarks/quality.py --server VENV/bin/vllm --engine vllm

The phantom is served as it is, in healthy variants (other kernels, batch sizes, threads, slots), and damaged. Three
healthy servers are the references; their distance from each other is the noise. A variant is named if `moebox quality`
would call it different. Quants are made by llama.cpp's own quantizer from an f16 model whose q8_0 is the phantom, and
are compared with three servers of that model. Takes about 20 minutes on one idle core; --part takes every such case.
--server names a llama-server that was built elsewhere; variants whose flags it refuses are left out. vLLM has healthy
variants of its own, serves the same weights as safetensors in bfloat16, and quants as what they decode to.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xllamacpp

from moebox import http, phantom
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import ExternalError, MoeboxError
from moebox.gguf_file import F16, WeightEntry, align_up, header_bytes
from moebox.phantom.folder import write_hf_folder
from moebox.phantom.gguf import Q8_0, PhantomGguf, write_latent_gguf
from moebox.quality.judge import judge_quality
from moebox.quality.reader import read_texts
from moebox.quality.texts import standard_texts
from moebox.quality.wire import TextReading

Damage = Callable[[PhantomGguf, bytearray], None]
Variant = tuple[tuple[str, ...], Path, Damage | None]  # flags, weights, and what is done to them
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
    "-ub 2 -b 2": ("-ub", "2", "-b", "2"),
    "-ub 16, flash off": ("-ub", "16", "-fa", "off"),
    "3 threads, -ub 48": ("-t", "3", "-ub", "48"),
    "experts not repacked": ("-ot", "exps=CPU"),
    "no weights repacked": ("-ot", ".*=CPU"),
    "4 slots, bf16 cache": ("-np", "4", "-ctk", "bf16", "-ctv", "bf16"),
    "context of 8192": ("-c", "8192"),
}
LATENT: dict[str, tuple[str, ...]] = {  # the same weights with keys and values read through the latent cache
    "latent attention": (),
    "latent attention, flash off": ("-fa", "off"),
}
CACHES: dict[str, tuple[str, ...]] = {
    "q8_0 cache": ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"),
    "q4_0 cache": ("-ctk", "q4_0", "-ctv", "q4_0", "-fa", "on"),
}
VLLM = ("--enforce-eager", "--dtype", "float32", "--max-model-len", "4096")
VLLM_REFERENCES = {
    "default": (),
    "small steps": ("--max-num-batched-tokens", "64"),
    "no cached prefixes": ("--no-enable-prefix-caching",),
}
VLLM_HEALTHY: dict[str, tuple[str, ...]] = {
    "again": (),
    "steps of 32 tokens": ("--max-num-batched-tokens", "32", "--max-num-seqs", "32"),
    "steps of 500 tokens": ("--max-num-batched-tokens", "500"),
    "blocks of 64 tokens": ("--block-size", "64"),
    "one sequence at a time": ("--max-num-seqs", "1"),
    "whole prompts in a step": ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"),
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

# ggml.h, enum ggml_type; the second is what llama.cpp takes for rows that are not a multiple of 256 (llama-quant.cpp)
QUANTS: dict[str, tuple[int, int]] = {
    "q8_0": (8, 8),
    "q6_K": (14, 8),
    "q5_K": (13, 7),
    "q4_K": (12, 6),
    "q3_K": (11, 20),
    "q2_K": (10, 20),
}
DECODERS = {8: "q8_0", 14: "q6_K", 13: "q5_K", 12: "q4_K", 11: "q3_K", 10: "q2_K", 7: "q5_1", 6: "q5_0", 20: "iq4_nl"}


class FineModel:
    """An f16 model whose rounding to q8_0 is the phantom, and its quants, which keep in f16 what the phantom does.

    Some columns of attn_output are tiny and meet large activations. Formats without an exact zero (q4_K) spoil them,
    q3_K does not.
    """

    def __init__(self, source: Path) -> None:
        self.model = PhantomGguf(source)
        self.values: dict[str, array[float]] = {}
        self.ggml = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        self.ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
        rng = random.Random(11)
        for name, tensor in self.model.tensors.items():
            if tensor.kind == Q8_0:
                values = self.values[name] = array("f")
                for scale, *steps in struct.iter_unpack("<e32b", self.model.tensor_bytes(name)):
                    values.extend([scale * (step + 0.98 * (rng.random() - 0.5)) for step in steps])

    def write(self, path: Path, quant: str = "") -> None:
        """Write the model in f16, or in a quantized format; for vLLM in f16 what that decodes to."""
        entries, contents = [], []
        for name, tensor in self.model.tensors.items():
            kind, content = tensor.kind, self.model.tensor_bytes(name)
            width = tensor.shape[-1]
            if name in self.values:
                kind = QUANTS[quant][width % 256 > 0] if quant else F16
                content = self.encode(kind, self.values[name], width)
                if quant and Server.engine == "vllm":
                    content, kind = self.encode(F16, self.decode(kind, content, len(self.values[name])), width), F16
            entries.append(WeightEntry(name=name, shape=tuple(reversed(tensor.shape)), type=kind, bytes=len(content)))
            contents.append(content.ljust(align_up(len(content)), b"\0"))
        path.write_bytes(header_bytes(self.model.meta, entries) + b"".join(contents))

    def encode(self, kind: int, values: "array[float]", width: int) -> bytes:
        buffer = ctypes.create_string_buffer(4 * len(values))
        source = (ctypes.c_float * len(values)).from_buffer(values)
        rows = ctypes.c_int64(len(values) // width)
        size = self.ggml.ggml_quantize_chunk(
            ctypes.c_int(kind), source, buffer, ctypes.c_int64(0), rows, ctypes.c_int64(width), None
        )
        return buffer.raw[:size]

    def decode(self, kind: int, content: bytes, count: int) -> "array[float]":
        values = array("f", bytes(4 * count))
        target = (ctypes.c_float * count).from_buffer(values)
        getattr(self.ggml, f"dequantize_row_{DECODERS[kind]}")(content, target, ctypes.c_int64(count))
        return values


class Server:
    """How to start a server: the embedded engine, another llama-server, or vLLM."""

    engine = "embedded"
    words: tuple[str, ...] = (sys.executable, "-m", "moebox.serve.embedded", "-lv", "1")


def write_vllm_folder(path: Path, folder: Path) -> None:
    """Write a GGUF as safetensors, with the two settings of routing that only the damaged ones change."""
    if folder.exists():
        return
    folder.mkdir()
    write_hf_folder(path, folder)
    meta, file = PhantomGguf(path).meta, folder / "config.json"
    config = json.loads(file.read_text())
    config["norm_topk_prob"] = bool(meta["deepseek2.expert_weights_norm"])
    config["scoring_func"] = "softmax" if meta["deepseek2.expert_gating_func"] == 1 else "sigmoid"
    file.write_text(json.dumps(config))


@contextmanager
def serve_phantom(path: Path, flags: tuple[str, ...]) -> Iterator[Endpoint]:
    """Serve a GGUF."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [*Server.words, "-m", str(path), "-a", "phantom", "--port", str(port), "-c", "4096", "-t", "1", *flags]
    env = {**os.environ}
    if Server.engine == "vllm":
        write_vllm_folder(path, folder := path.with_suffix(".hf"))
        argv = [*Server.words, "serve", str(folder), "--served-model-name", "phantom", "--port", str(port)]
        argv += ["--host", "127.0.0.1", *VLLM, *flags]
        env |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = endpoint_from_url(f"http://127.0.0.1:{port}", "phantom", engine=Server.engine)
        while not http.get(f"{endpoint.base_url}/models").ok:
            if server.poll() is not None:
                raise ExternalError(f"the server ended with {server.returncode}")
            time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def read_variant(
    path: Path, flags: tuple[str, ...] = (), damage: Damage | None = None, *, every: int
) -> tuple[TextReading, ...]:
    """Score the short texts, or every second or third of them, on one variant."""
    texts = [text for text in standard_texts() if not text.depths and text.kind not in ("languages",)][::every]
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
    parser.add_argument("--only", default="", help="names of variants")
    parser.add_argument("--every", type=int, default=1, help="score every such text only, on a slow machine")
    parser.add_argument("--part", default="1/1", help="the first of four parts of the cases: 1/4")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--server", default="", help="another llama-server")
    parser.add_argument("--engine", default="llama.cpp", help="what --server is")
    given = parser.parse_args()
    if given.server:
        Server.words, Server.engine = (given.server,), given.engine
    part, parts = map(int, given.part.split("/"))
    source = phantom.gguf_path()
    like_these, own = (VLLM_REFERENCES, VLLM_HEALTHY) if Server.engine == "vllm" else (REFERENCES, HEALTHY)
    kept = [name for name in given.only.split(";") if name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copy(source, folder))
        healthy: dict[str, Variant] = {name: (flags, source, None) for name, flags in own.items()}
        caches: dict[str, Variant] = {}
        if Server.engine != "vllm":
            write_latent_gguf(source, latent := Path(folder, "latent.gguf"))
            healthy |= {name: (flags, latent, None) for name, flags in LATENT.items()}
            caches = {name: (flags, source, None) for name, flags in CACHES.items()}
        groups: list[tuple[str, Path, dict[str, Variant]]] = [
            ("healthy", source, healthy),
            ("cache", source, caches),
            ("damage", source, {name: ((), source, damage) for name, damage in DAMAGES.items()}),
        ]
        fine, quants = FineModel(source), {}
        fine.write(original := Path(folder, "f16.gguf"))
        for name in QUANTS:
            fine.write(path := Path(folder, f"{name}.gguf"), name)
            quants[name] = ((), path, None)
        groups.append(("quant", original, {"f16": ((), original, None), **quants}))
        references: dict[Path, list[tuple[TextReading, ...]]] = {}
        every = [(group, like, name, *case) for group, like, cases in groups for name, case in cases.items()]
        for number, (group, like, name, flags, path, damage) in enumerate(every):
            if (not kept or name in kept) and number % parts == part - 1:
                if like not in references:
                    references[like] = [read_variant(like, each, every=given.every) for each in like_these.values()]
                try:
                    judged = judge_quality(references[like], read_variant(path, flags, damage, every=given.every))
                except MoeboxError as problem:
                    print(f"| {group} | {name} | left out: {problem} |", flush=True)
                    continue
                figures = judged.figures
                rows.append({"group": group, "name": name, "different": judged.different, "kl": figures.mean_kl.value})
                interval = f"{figures.mean_kl.low:.4f} to {figures.mean_kl.high:.4f}"
                ratio = figures.perplexity_ratio.value if figures.perplexity_ratio else 0.0
                print(
                    f"| {group} | {name} | {figures.mean_kl.value:.4f} ({interval}) | {figures.p99_kl.value:.3f} "
                    f"| {figures.same_top.value:.1%} | x{ratio:.3f} | {judged.noise or 0:.4f} "
                    f"| {'different' if judged.different else 'no difference'} |",
                    flush=True,
                )
    for group in dict.fromkeys(str(row["group"]) for row in rows):
        some = [row for row in rows if row["group"] == group]
        print(f"{group}: {sum(bool(row['different']) for row in some)} of {len(some)} called different")
    found = [float(str(row["kl"])) for row in rows if row["group"] == "quant"]
    print(f"quants in the right order: {'yes' if found == sorted(found) else 'no'}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
