"""One rank of an all-reduce test, or the copies and the load of all GPUs, run by the engine's own Python.

rank_program.py reduce RANK RANKS BACKEND FILE    rank_program.py copies    rank_program.py load SECONDS

Each step prints one JSON object on a line, so that a process that hangs shows how far it came. Nothing of moebox is
imported: the engine's environment does not have it.
"""

import json
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

# A token's activations of one layer (8 KiB at a hidden size of 4,096 in bf16), and a prefill chunk's.
REDUCE_BYTES = ((8 * 1024, 50), (64 * 2**20, 5))  # with repetitions
COPY_BYTES, COPIES, LATENCY_COPIES = 256 * 2**20, 5, 200
MATRIX = 8192  # rows of the matrices that load a GPU: large enough for its full power


def report(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def reduce_values(torch: Any, rank: int, ranks: int, backend: str, file: str) -> None:
    """Sum tensors over all ranks and compare each element with the sum that it must have."""
    import torch.distributed as dist

    device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")

    def synchronize() -> None:
        if backend == "nccl":
            torch.cuda.synchronize(device)

    if backend == "nccl":
        torch.cuda.set_device(device)
    report(step="ready", torch=torch.__version__)
    # The process that started this one ends it at its own, shorter deadline.
    limit = timedelta(minutes=10)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=limit)
    report(step="joined")
    for size, repetitions in REDUCE_BYTES:
        values = torch.arange(size // 4, dtype=torch.float32, device=device) % 1000  # sums stay exact in float32
        times, wrong = [], 0
        for turn in range(repetitions):
            tensor = values * (rank + 1) + turn
            synchronize()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            synchronize()
            times.append(time.perf_counter() - began)
            wrong += int((tensor != values * (ranks * (ranks + 1) // 2) + turn * ranks).sum())
        report(step="reduced", bytes=size, us=statistics.median(times) * 1e6, wrong=wrong)
    dist.destroy_process_group()


def time_copies(torch: Any, source: Any, target: Any, gpus: tuple[int, ...]) -> tuple[float, float]:
    """Bytes per second of a large copy, and microseconds of a copy of four bytes."""

    def seconds(count: int, size: int) -> float:
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        began = time.perf_counter()
        for _ in range(count):
            target[:size].copy_(source[:size], non_blocking=True)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return (time.perf_counter() - began) / count

    seconds(1, COPY_BYTES)
    return COPY_BYTES / seconds(COPIES, COPY_BYTES), seconds(LATENCY_COPIES, 4) * 1e6


def copy_everywhere(torch: Any) -> None:
    """Copy between the host and each GPU, inside each GPU, and between each two GPUs in both directions."""
    count = torch.cuda.device_count()
    report(step="ready", torch=torch.__version__, gpus=count)
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    pattern = torch.arange(COPY_BYTES, dtype=torch.int64).remainder_(251).to(torch.uint8)
    buffers = []
    for gpu in range(count):
        there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}")
        to_gpu, latency = time_copies(torch, host, there, (gpu,))
        from_gpu, _ = time_copies(torch, there, host, (gpu,))
        report(step="host", gpu=gpu, to_gpu=to_gpu, from_gpu=from_gpu, us=latency)
        inside, _ = time_copies(torch, there, torch.empty_like(there), (gpu,))
        report(step="memory", gpu=gpu, rate=2 * inside)  # each byte is read and written
        buffers.append(there)
    for a in range(count):
        for b in range(count):
            if a != b:
                buffers[a].copy_(pattern)
                buffers[b].zero_()
                rate, latency = time_copies(torch, buffers[a], buffers[b], (a, b))
                wrong = int((buffers[b].cpu() != pattern).sum())
                p2p = torch.cuda.can_device_access_peer(a, b)
                report(step="pair", a=a, b=b, p2p=p2p, rate=rate, us=latency, wrong=wrong)


def load_gpus(torch: Any, seconds: float) -> None:
    """Multiply matrices on all GPUs at once."""
    count = torch.cuda.device_count()
    factors = [torch.randn(MATRIX, MATRIX, device=f"cuda:{gpu}", dtype=torch.bfloat16) for gpu in range(count)]
    for factor in factors:
        factor @ factor
    report(step="ready", torch=torch.__version__, gpus=count)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for factor in factors:
            for _ in range(10):
                factor @ factor
        for gpu in range(count):
            torch.cuda.synchronize(gpu)
        done += 10
    report(step="loaded", flops=done * 2 * MATRIX**3 / (time.perf_counter() - began))


if __name__ == "__main__":
    import torch

    words = sys.argv[2:]
    if sys.argv[1] == "reduce":
        reduce_values(torch, int(words[0]), int(words[1]), words[2], words[3])
    elif sys.argv[1] == "copies":
        copy_everywhere(torch)
    else:
        load_gpus(torch, float(words[0]))
