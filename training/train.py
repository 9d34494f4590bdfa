"""Train the phantom and its draft by the clock, and write weights, log and accuracy.

python -m training.train --minutes 8.5 --out out/phantom     # one H200; CPU with --tiny for a check
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from training.data import LESSON_SHARES, SHARES, batch, batches, held_out
from training.model import DRAFT, PHANTOM, Model, Shape
from training.optimizer import optimizers
from training.tokenizer import load

TINY = Shape(hidden=64, layers=2, heads=2, q_lora=32, dense_ff=128, experts=4, used=2, expert_ff=32)
LEARNED = ("phantom", "draft")


def feed(queue: Any, seed: int, tokens: int, phase: Any, boost: dict[str, float], lessons: bool) -> None:
    """A worker: makes batches until it is ended."""
    torch.set_num_threads(1)
    for ids, mask in batches(load(), seed, tokens, phase, boost, lessons=lessons):
        queue.put((ids, mask))


def rate(progress: float, warm: float = 0.02, fall: float = 0.45) -> float:
    """Warm up, hold, then fall to (almost) nothing."""
    if progress < warm:
        return progress / warm
    return 1.0 if progress < 1 - fall else max(0.01, (1 - progress) / fall)


def losses(model: Model, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each answer token, and whether the best guess was right."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model(ids)[:, :-1][mask[:, 1:]]
        logits = model.head(hidden).float()
    target = ids[:, 1:][mask[:, 1:]]
    return F.cross_entropy(logits, target, reduction="none"), logits.argmax(-1) == target


@torch.no_grad()
def exact(model: Model, samples: list[tuple[list[int], list[int]]], device: str, pad: int) -> float:
    """Share of samples whose every answer token is the best guess: what greedy decoding reproduces exactly."""
    model.eval()
    right = 0
    samples = sorted(samples, key=lambda s: len(s[0]) + len(s[1]))
    step = 64
    for at in range(0, len(samples), step):
        part = samples[at : at + step]
        ids, mask = batch(part, max(len(p) + len(a) for p, a in part), pad)
        _, hit = losses(model, torch.from_numpy(ids).long().to(device), torch.from_numpy(mask).to(device))
        ends = np.cumsum([len(a) for _, a in part])
        right += sum(bool(h.all()) for h in np.split(hit.cpu().numpy(), ends[:-1]))
    model.train()
    return right / len(samples)


def table(model: Model, device: str, count: int, seed: int, *, lessons: bool = False) -> dict[str, float]:
    """Exact-match accuracy per family, thinking off and on."""
    tokenizer = load()
    pad = tokenizer.ids["[PAD]"]
    return {
        f"{family}{'+think' if thinking else ''}": exact(
            model, held_out(tokenizer, family, thinking, count, seed), device, pad
        )
        for family in (*SHARES, *(LESSON_SHARES if lessons else ()))
        for thinking in (False, True)
    }


def save(model: Model, path: Path) -> None:
    """Weights in f16 as plain numpy, small enough to carry."""
    state = {name: value.detach().half().cpu().numpy() for name, value in model.state_dict().items()}
    state |= {n: v.detach().float().cpu().numpy() for n, v in model.state_dict().items() if n.endswith("ffn.bias")}
    with path.open("wb") as file:
        np.savez(file, **state)


def main() -> None:
    """Train until the clock says stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--out", type=Path, default=Path("out/phantom"))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--optimizer", default="muon", choices=["muon", "adam"])
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--horizon", type=float, help="minutes the schedule is made for; default the run's length")
    parser.add_argument("--long-after", type=float, default=0.35, help="share of the run before long texts come in")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--check", type=int, default=256, help="samples per family in the final table")
    parser.add_argument("--no-draft", action="store_true")
    parser.add_argument("--start", type=Path, help="go on from phantom.npz (and draft.npz) in this folder")
    parser.add_argument("--boost", default="", help="practise families more, such as sums=3,copy=2")
    parser.add_argument("--lessons", action="store_true", help="also what moebox.phantom.lessons adds")
    args = parser.parse_args()
    boost = {name: float(factor) for name, factor in (part.split("=") for part in args.boost.split(",") if part)}
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    context = mp.get_context("spawn")
    phase = context.Value("i", 0)
    queue = context.Queue(maxsize=48)
    workers = [
        context.Process(
            target=feed, args=(queue, 1000 * args.seed + n, args.tokens, phase, boost, args.lessons), daemon=True
        )
        for n in range(args.workers)
    ]
    for worker in workers:
        worker.start()

    names = LEARNED[:1] if args.no_draft else LEARNED
    shapes = [TINY] if args.tiny else [PHANTOM, DRAFT][: len(names)]
    models = {name: Model(shape).to(device) for name, shape in zip(names, shapes, strict=False)}
    if args.start:
        for name, model in models.items():
            state = {key: torch.from_numpy(value) for key, value in np.load(args.start / f"{name}.npz").items()}
            model.load_state_dict(state)
    steppers = {n: optimizers(m, args.optimizer, args.muon_lr, args.adam_lr) for n, m in models.items()}
    base = {n: [o.param_groups[0]["lr"] for o in os] for n, os in steppers.items()}
    print({n: f"{sum(p.numel() for p in m.parameters()) / 1e6:.2f} M" for n, m in models.items()}, flush=True)

    log, seen, step, answers = [], 0, 0, 0
    queue.get()  # the first batch shows that the workers are up
    start = shown = time.monotonic()
    budget, horizon = args.minutes * 60, (args.horizon or args.minutes) * 60
    window: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    while (spent := time.monotonic() - start) < budget:
        progress = min(1.0, spent / horizon)
        phase.value = int(progress >= args.long_after)
        ids, mask = (torch.from_numpy(x) for x in queue.get())
        if device == "cuda":
            ids, mask = ids.pin_memory().to(device, non_blocking=True), mask.pin_memory().to(device, non_blocking=True)
        ids = ids.long()
        for name, model in models.items():
            if name == "draft" and step % 3:  # it needs less practice than it costs
                continue
            loss, _ = losses(model, ids, mask)
            # A fixed divisor: a batch of long texts with few answer tokens must not weigh as much as a full one.
            (loss.sum() / 4096).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            for optimizer, lr in zip(steppers[name], base[name], strict=True):
                optimizer.param_groups[0]["lr"] = lr * rate(progress)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for layer in model.experts():
                layer.balance(0.01 * rate(progress))
            window[name].append(loss.detach().mean())
        seen, step, answers = seen + ids.numel(), step + 1, answers + len(loss)
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            row = {
                "s": round(shown - start, 1),
                "step": step,
                "tokens": seen,
                "answers": answers,
                "waiting": queue.qsize(),
            }
            row |= {name: round(float(torch.stack(w).mean()), 5) for name, w in window.items() if w}
            window = {name: [] for name in models}
            log.append(row)
            print(json.dumps(row), flush=True)
    for worker in workers:
        worker.terminate()
    for name, model in models.items():
        save(model, args.out / f"{name}.npz")
    loads = [[round(float(x), 3) for x in layer.load / layer.load.sum()] for layer in models["phantom"].experts()]
    result = {"log": log, "args": {k: str(v) for k, v in vars(args).items()}, "device": device, "loads": loads}
    result["exact"] = {
        name: table(model, device, args.check, 77, lessons=args.lessons) for name, model in models.items()
    }
    (args.out / "log.json").write_text(json.dumps(result))
    for family in result["exact"]["phantom"]:
        print(f"{family:24}" + "".join(f"{result['exact'][n][family]:8.3f}" for n in models), flush=True)
    print("loads", loads, "lowest loss", min(r["phantom"] for r in log) if log else math.nan)


if __name__ == "__main__":
    main()
