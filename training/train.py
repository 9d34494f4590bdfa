"""Train the phantom and its draft by the clock, and write weights, log and accuracy.

    python -m training.train --minutes 20 --start weights --out out/phantom     # one H200; CPU with --tiny for a check

A run that was ended (SIGTERM, or its machine went away) goes on where its last checkpoint was when the same command is
given again. Families are practised by what goes wrong in them: every 20 seconds the shares follow the errors.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import random
import signal
import time
from pathlib import Path
from queue import Full
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from training import damage, restore
from training.data import FAMILY_NAMES, Batch, Sample, batch, batches, held_out
from training.model import DRAFT, PHANTOM, Model, Shape
from training.optimizer import optimizers
from training.tokenizer import load

TINY = Shape(hidden=64, layers=2, heads=2, q_lora=32, dense_ff=128, experts=4, used=2, expert_ff=32)
LEARNED = ("phantom", "draft")
FREE = frozenset({"invent", "babble"})  # answers that nobody can foresee: errors there mean nothing
SHOW_S, ADAPT_S = 10.0, 20.0
CHECK_TOKENS = 65536


def feed(queue: Any, seed: int, tokens: int, phase: Any, boost: Any) -> None:
    """A worker: makes batches until it is ended, or whoever wanted them is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    parent = mp.parent_process()
    for made in batches(load(), seed, tokens, phase, boost):
        while parent is not None and parent.is_alive():
            try:
                queue.put(made, timeout=5)
                break
            except Full:
                continue
        else:
            queue.cancel_join_thread()
            return


def rate(progress: float, warm: float = 0.02, fall: float = 0.5) -> float:
    """Warm up, hold, then fall to (almost) nothing."""
    if progress < warm:
        return progress / warm
    return 1.0 if progress < 1 - fall else max(0.01, (1 - progress) / fall)


def losses(
    model: Model, ids: torch.Tensor, mask: torch.Tensor, state: damage.State | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each answer token, and whether the best guess was right; `state` replaces the model's parameters."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):  # few CPUs have it, and others crawl
        hidden = damage.hidden_states(model, state, ids)[:, :-1][mask[:, 1:]]
        logits = model.head(hidden).float()
    target = ids[:, 1:][mask[:, 1:]]
    return F.cross_entropy(logits, target, reduction="none"), logits.argmax(-1) == target


def rows_right(mask: torch.Tensor, hit: torch.Tensor) -> torch.Tensor:
    """Whether every learned token of a row is the best guess: what greedy decoding reproduces exactly."""
    wrong = torch.zeros(len(mask), device=mask.device)
    wrong.index_add_(0, mask[:, 1:].nonzero()[:, 0], (~hit).float())
    return wrong == 0


@torch.no_grad()
def exact(model: Model, samples: list[Sample], device: str, pad: int) -> float:
    """Share of samples that greedy decoding reproduces."""
    model.eval()
    right = 0
    samples = sorted(samples, key=lambda sample: len(sample.ids))
    while samples:
        step = max(1, min(64, CHECK_TOKENS // len(samples[min(63, len(samples) - 1)].ids)))
        part, samples = samples[:step], samples[step:]
        made = batch(part, max(len(sample.ids) for sample in part), pad)
        ids, mask = torch.from_numpy(made.ids).long().to(device), torch.from_numpy(made.mask).to(device)
        right += int(rows_right(mask, losses(model, ids, mask)[1]).sum())
    model.train()
    return right


def table(models: dict[str, Model], device: str, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Exact-match accuracy per family, thinking off and on, printed as it comes."""
    tokenizer = load()
    pad = tokenizer.ids["[PAD]"]
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    for family in FAMILY_NAMES:
        if family == "babble":
            continue
        for thinking in (False, True):
            samples = held_out(tokenizer, family, thinking, count, seed)
            row = f"{family}{'+think' if thinking else ''}"
            for name, model in models.items():
                found[name][row] = exact(model, samples, device, pad) / count
            print(f"{row:24}" + "".join(f"{found[name][row]:8.3f}" for name in models), flush=True)
    return found


class Practice:
    """How often each family is right, and how much more or less it is practised for that."""

    def __init__(self, shared: Any, fixed: dict[str, float], device: str) -> None:
        self.shared, self.fixed = shared, fixed
        self.asked = torch.zeros(len(FAMILY_NAMES), device=device)
        self.right = torch.zeros(len(FAMILY_NAMES), device=device)
        self.errors = dict.fromkeys(FAMILY_NAMES, 0.1)
        for place, name in enumerate(FAMILY_NAMES):
            shared[place] = fixed.get(name, 1.0)

    def add(self, families: torch.Tensor, right: torch.Tensor) -> None:
        """One batch."""
        self.asked.index_add_(0, families, torch.ones_like(right, dtype=torch.float32))
        self.right.index_add_(0, families, right.float())

    def adapt(self) -> dict[str, float]:
        """Shares for the next while; the share right of each family since the last time."""
        asked, right = self.asked.tolist(), self.right.tolist()
        self.asked.zero_()
        self.right.zero_()
        seen = {}
        for place, name in enumerate(FAMILY_NAMES):
            if not asked[place]:
                continue
            seen[name] = round(right[place] / asked[place], 4)
            self.errors[name] += 0.5 * (1 - seen[name] - self.errors[name])
            wanted = 1.0 if name in FREE else min(2.5, 0.5 + 8 * self.errors[name])
            self.shared[place] = wanted * self.fixed.get(name, 1.0)
        return seen


def arrays(model: Model) -> dict[str, np.ndarray]:
    """Weights in f16 as plain numpy, small enough to carry."""
    state = {name: value.detach().half().cpu().numpy() for name, value in model.state_dict().items()}
    return state | {n: v.detach().float().cpu().numpy() for n, v in model.state_dict().items() if n.endswith("bias")}


def save(models: dict[str, Model], out: Path, spent: float) -> None:
    """Weights, and how far the clock had run; a half-written file never replaces a whole one."""
    for name, model in models.items():
        part = out / f"{name}.part"
        with part.open("wb") as file:
            np.savez(file, **arrays(model))
        part.replace(out / f"{name}.npz")
    (out / "clock.json").write_text(json.dumps({"spent_s": spent}))


def fill(models: dict[str, Model], start: str) -> None:
    """Weights from a folder of npz files, or from the committed ones ("weights")."""
    for name, model in models.items():
        found = restore.state(name) if start == "weights" else dict(np.load(Path(start) / f"{name}.npz"))
        model.load_state_dict({key: torch.from_numpy(np.array(value, np.float32)) for key, value in found.items()})


def options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=8.5, help="of the whole run, what an ended one had included")
    parser.add_argument("--out", type=Path, default=Path("out/phantom"))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--optimizer", default="muon", choices=["muon", "adam"])
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long-after", type=float, default=0.35, help="share of the run before long texts come in")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--check", type=int, default=128, help="samples per family in the final table; 0 for none")
    parser.add_argument("--no-draft", action="store_true")
    parser.add_argument("--start", default="", help="a folder with phantom.npz (and draft.npz), or `weights`")
    parser.add_argument("--boost", default="", help="practise families more, such as sums=3,copy=2")
    parser.add_argument("--fragile", type=float, default=0.0, help="weight of the loss that makes damaged copies wrong")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds between checkpoints")
    return parser.parse_args()


class Trainer:
    """Models, their optimizers, and one step of both."""

    def __init__(self, args: argparse.Namespace, device: str) -> None:
        names = LEARNED[:1] if args.no_draft or args.tiny else LEARNED
        shapes = [TINY] if args.tiny else [PHANTOM, DRAFT][: len(names)]
        self.device = device
        self.models = {name: Model(shape).to(device) for name, shape in zip(names, shapes, strict=True)}
        self.steppers = {n: optimizers(m, args.optimizer, args.muon_lr, args.adam_lr) for n, m in self.models.items()}
        self.base = {n: [o.param_groups[0]["lr"] for o in os] for n, os in self.steppers.items()}
        self.window: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        self.fragile, self.rng = args.fragile, random.Random(args.seed)

    def tensors(self, made: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A batch on the device."""
        found = [torch.from_numpy(array) for array in (made.ids, made.mask, made.families)]
        if self.device == "cuda":
            found = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in found]
        return found[0].long(), found[1], found[2]

    def step(self, number: int, made: Batch, speed: float, practice: Practice) -> None:
        """Learn from one batch."""
        ids, mask, families = self.tensors(made)
        for name, model in self.models.items():
            if name == "draft" and number % 3:  # it needs less practice than it costs
                continue
            exported = self.fragile and name == "phantom" and number % 2
            loss, hit = losses(model, ids, mask, damage.rounded_state(model) if exported else None)
            # A fixed divisor: a batch of long texts with few answer tokens must not weigh as much as a full one.
            (loss.sum() / 4096).backward()
            if self.fragile and name == "phantom":
                self.break_model(model, ids, mask)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            for optimizer, lr in zip(self.steppers[name], self.base[name], strict=True):
                optimizer.param_groups[0]["lr"] = lr * speed
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for layer in model.experts():
                layer.balance(0.01 * speed)
            self.window[name].append(loss.detach().mean())
            if name == "phantom":
                practice.add(families, rows_right(mask, hit))

    def break_model(self, model: Model, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Make a damaged copy wrong on a quarter of the rows."""
        few = slice(0, max(1, len(ids) // 4))
        loads = [layer.load.clone() for layer in model.experts()]
        loss, hit = losses(model, ids[few], mask[few], damage.damaged_state(model, self.rng))
        for layer, before in zip(model.experts(), loads, strict=True):  # a damaged copy does not count for the balance
            layer.load.copy_(before)
        missing = damage.fragile_loss(loss, mask[few][:, 1:].nonzero()[:, 0])
        (self.fragile * missing / 128).backward()
        self.window.setdefault("broken", []).append(loss.detach().mean())
        self.window.setdefault("broken_right", []).append(rows_right(mask[few], hit).float().mean())

    def shown(self) -> dict[str, float]:
        """Mean losses since the last time."""
        row = {name: round(float(torch.stack(w).mean()), 5) for name, w in self.window.items() if w}
        self.window = {name: [] for name in self.window}
        return row


def main() -> None:
    """Train until the clock says stop."""
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    clock = args.out / "clock.json"
    before = json.loads(clock.read_text())["spent_s"] if clock.exists() else 0.0
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    context = mp.get_context("spawn")
    phase, boost = context.Value("i", 0), context.Array("d", len(FAMILY_NAMES), lock=False)
    fixed = {name: float(factor) for name, factor in (part.split("=") for part in args.boost.split(",") if part)}
    practice = Practice(boost, fixed, device)
    queue = context.Queue(maxsize=64)
    seed = 1000 * args.seed + 100_000 * round(before)
    workers = [
        context.Process(target=feed, args=(queue, seed + n, args.tokens, phase, boost), daemon=True)
        for n in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    trainer = Trainer(args, device)
    models = trainer.models
    start = str(args.out) if before else args.start
    if start:
        fill(models, start)
    print({n: f"{sum(p.numel() for p in m.parameters()) / 1e6:.2f} M" for n, m in models.items()}, flush=True)
    print(f"{device}, started from {start or 'nothing'}, {before:.0f} s done before", flush=True)

    log: list[dict[str, Any]] = []
    seen, step, answers = 0, 0, 0
    budget = args.minutes * 60
    queue.get()  # the first batch shows that the workers are up
    began = shown = saved = adapted = time.monotonic()
    began -= before
    while (spent := time.monotonic() - began) < budget and not ended:
        progress = spent / budget
        phase.value = int(progress >= args.long_after)
        made = queue.get()
        warming = min(1.0, (spent - before + 0.1) / 10)  # the optimizers start anew after a checkpoint
        trainer.step(step, made, rate(progress) * warming, practice)
        seen, step, answers = seen + made.ids.size, step + 1, answers + int(made.mask.sum())
        now = time.monotonic()
        if now - shown > SHOW_S:
            shown = now
            row = {"s": round(now - began, 1), "step": step, "tokens": seen, "answers": answers}
            row |= {"waiting": queue.qsize(), **trainer.shown()}
            if now - adapted > ADAPT_S:
                adapted = now
                row["right"] = practice.adapt()
            log.append(row)
            print(json.dumps(row), flush=True)
        if now - saved > args.save_every:
            save(models, args.out, now - began)
            saved = time.monotonic()
    for worker in workers:
        worker.terminate()
    save(models, args.out, time.monotonic() - began)
    loads = [[round(float(x), 3) for x in layer.load / layer.load.sum()] for layer in models["phantom"].experts()]
    result: dict[str, Any] = {"log": log, "args": {k: str(v) for k, v in vars(args).items()}, "device": device}
    result["loads"] = loads
    (args.out / "log.json").write_text(json.dumps(result))
    print("loads", loads, "lowest loss", min((r["phantom"] for r in log), default=math.nan), flush=True)
    if args.check and not ended:
        result["exact"] = table(models, device, args.check, 77)
        (args.out / "log.json").write_text(json.dumps(result))
    print("ended early" if ended else "finished", flush=True)


if __name__ == "__main__":
    main()
