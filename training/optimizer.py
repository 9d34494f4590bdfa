"""Muon for the matrices (as Kimi K2 was trained), AdamW for embeddings, head, norms and routers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Newton-Schulz coefficients of Keller Jordan's Muon, https://kellerjordan.github.io/posts/muon/
_A, _B, _C = 3.4445, -4.7750, 2.0315


@torch.no_grad()
def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """The nearest (roughly) orthogonal matrices to a stack of matrices."""
    x = g.bfloat16() if g.is_cuda else g.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = _A * x + (_B * a + _C * a @ a) @ x
    return (x.mT if tall else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; matrices of one shape are handled as one stack."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.momentum, self.decay = momentum, decay
        self.stacks: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for p in params:
            self.stacks.setdefault(tuple(p.shape), []).append(p)
        self.buffers = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.stacks.items()}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        lr = self.param_groups[0]["lr"]
        for shape, ps in self.stacks.items():
            g = torch.stack([p.grad for p in ps])
            buffer = self.buffers[shape].lerp_(g, 1 - self.momentum)
            update = orthogonal(g.lerp(buffer, self.momentum)) * max(1, shape[-2] / shape[-1]) ** 0.5
            for p, u in zip(ps, update, strict=True):
                p.mul_(1 - lr * self.decay).add_(u, alpha=-lr)


def optimizers(model: nn.Module, kind: str, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """The optimizers for a model: `muon` (with AdamW for the rest) or `adam` alone."""

    def plain(name: str) -> bool:
        return name.startswith(("embed", "head")) or "router" in name

    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim >= 2 and not plain(n)]
    rest = [p for n, p in named if p.ndim < 2 or plain(n)]
    fused = next(model.parameters()).is_cuda
    if kind == "adam":
        return [torch.optim.AdamW([p for _, p in named], lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)]
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
    return [Muon(matrices, muon_lr), adam]
