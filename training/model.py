"""The phantom in PyTorch: DeepSeek-V3's anatomy as Kimi K2 uses it, small.

Multi-head latent attention with the real head sizes (128 + 64 rope, latent 512), a dense first layer, then
routed experts with sigmoid scores, a selection bias and a shared expert. All experts are computed for every
token and masked: at this size that is one wide matrix product and faster than gathering.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes; the attention's are Kimi's own, because engines have kernels for these and no others."""

    vocab: int = 1152
    hidden: int = 256
    layers: int = 5
    heads: int = 8
    q_lora: int = 192
    kv_lora: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    dense_ff: int = 768
    experts: int = 16
    used: int = 4
    expert_ff: int = 128
    scale: float = 2.827  # Kimi K2's routed_scaling_factor
    theta: float = 50_000.0  # Kimi K2's rope_theta
    eps: float = 1e-5
    context: int = 8192


PHANTOM = Shape()
DRAFT = Shape(hidden=128, layers=2, q_lora=96, dense_ff=256, experts=8, used=2, expert_ff=64)


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def linear(inputs: int, outputs: int, *, zero: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight) if zero else nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


def angles(shape: Shape, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rope, [length, rope / 2]."""
    frequency = shape.theta ** (-torch.arange(0, shape.rope, 2, device=device).float() / shape.rope)
    turn = torch.arange(length, device=device).float()[:, None] * frequency
    return turn.cos(), turn.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rope on neighbouring pairs (DeepSeek's layout); x is [batch, length, heads, rope]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_a = linear(s.hidden, s.q_lora)
        self.q_norm = Norm(s.q_lora, s.eps)
        self.q_b = linear(s.q_lora, s.heads * (s.nope + s.rope))
        self.kv_a = linear(s.hidden, s.kv_lora + s.rope)
        self.kv_norm = Norm(s.kv_lora, s.eps)
        self.kv_b = linear(s.kv_lora, s.heads * (s.nope + s.value))
        self.out = linear(s.heads * s.value, s.hidden, zero=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.s
        q_nope, q_rope = self.q_b(self.q_norm(self.q_a(x))).unflatten(-1, (s.heads, -1)).split((s.nope, s.rope), -1)
        latent, k_rope = self.kv_a(x).split((s.kv_lora, s.rope), -1)
        k_nope, v = self.kv_b(self.kv_norm(latent)).unflatten(-1, (s.heads, -1)).split((s.nope, s.value), -1)
        k_rope = rotate(k_rope[:, :, None], cos, sin).expand(-1, -1, s.heads, -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope), -1).transpose(1, 2)
        v = F.pad(v, (0, s.nope + s.rope - s.value)).transpose(1, 2)  # flash attention wants one head size
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : s.value]
        return self.out(y.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self, hidden: int, ff: int) -> None:
        super().__init__()
        self.gate, self.up = linear(hidden, ff), linear(hidden, ff)
        self.down = linear(ff, hidden, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.router = linear(s.hidden, s.experts)
        self.gate = nn.Parameter(torch.randn(s.experts, s.expert_ff, s.hidden) * s.hidden**-0.5)
        self.up = nn.Parameter(torch.randn(s.experts, s.expert_ff, s.hidden) * s.hidden**-0.5)
        self.down = nn.Parameter(torch.zeros(s.experts, s.hidden, s.expert_ff))
        self.shared = Dense(s.hidden, s.expert_ff)
        self.register_buffer("bias", torch.zeros(s.experts))
        self.register_buffer("load", torch.zeros(s.experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.s
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.router.weight.T)
        chosen = (scores + self.bias).topk(s.used, -1).indices
        kept = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        if self.training:
            self.load.copy_(kept.detach().flatten(0, -2).sum(0))
        weight = scores * kept
        weight = (weight / (weight.sum(-1, keepdim=True) + 1e-20) * s.scale).to(x.dtype)
        inner = F.silu(F.linear(x, self.gate.flatten(0, 1))) * F.linear(x, self.up.flatten(0, 1))
        inner = (inner.unflatten(-1, (s.experts, -1)) * weight[..., None].to(inner.dtype)).flatten(-2)
        return F.linear(inner, self.down.transpose(0, 1).flatten(1)) + self.shared(x)

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Raise the bias of experts with less than their share, lower the others (no auxiliary loss)."""
        self.bias += rate * torch.sign(self.load.mean() - self.load)


class Layer(nn.Module):
    def __init__(self, s: Shape, index: int) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.attn = Attention(s)
        self.ffn = Experts(s) if index else Dense(s.hidden, s.dense_ff)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Model(nn.Module):
    """The whole network; `forward` gives hidden states, `head` the logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        nn.init.normal_(self.embed.weight, std=1.0)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)
        self.head = linear(shape.hidden, shape.vocab)
        nn.init.normal_(self.head.weight, std=0.002)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = angles(self.shape, ids.shape[1], ids.device)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def experts(self) -> list[Experts]:
        """The layers that route."""
        return [layer.ffn for layer in self.layers if isinstance(layer.ffn, Experts)]
