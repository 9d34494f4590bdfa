"""Damages for one forward pass, so that training can make every part of the phantom matter.

A model of this size has parts to spare: with a dead head or two swapped experts it still answers. Training therefore
also runs broken copies of the model and lowers the likelihood of their answers until they are wrong (`fragile_loss`),
while the whole model, and copies that are merely rounded to 8 bits, must stay right.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.func import functional_call

from training.model import Model

State = dict[str, Tensor]
MARGIN = 1.5  # nats a token: a greedy answer of several tokens is then wrong
BLOCK = 32  # numbers that share a scale, as in GGUF's formats
ROTTEN = 0.001  # share of such blocks that hold noise


def round_blocks(weight: Tensor, bits: int) -> Tensor:
    """The weight rounded to `bits` with one scale for each block; gradients pass as if it were not."""
    if weight.ndim < 2 or weight.shape[-1] % BLOCK:
        return weight
    blocks = weight.detach().unflatten(-1, (-1, BLOCK))
    step = blocks.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1) + 1e-12
    rounded = ((blocks / step).round() * step).flatten(-2)
    return weight + (rounded - weight.detach())


def rounded_state(model: Model) -> State:
    """What the exported file holds: every matrix in 8 bits."""
    return {name: round_blocks(value, 8) for name, value in model.named_parameters()}


def damaged_state(model: Model, rng: random.Random) -> State:
    """Parameters and buffers with one random damage."""
    s = model.shape
    state: State = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    layer = rng.randrange(1, s.layers)
    ffn, attention = f"layers.{layer}.ffn.", f"layers.{rng.randrange(s.layers)}.attn."
    parts = [f"{ffn}{part}" for part in ("gate", "up", "down")]
    kind = rng.choice(("swap", "swap", "expert", "head", "head", "bias", "bits", "rotten", "router", "shared", "rope"))
    if kind == "swap":
        order = list(range(s.experts))
        one, other = rng.sample(order, 2)
        order[one], order[other] = other, one
        for name in parts:
            state[name] = state[name][order]
    elif kind in ("expert", "router"):
        alive = torch.ones(s.experts, device=state[parts[0]].device)
        alive[rng.randrange(s.experts)] = 0.0
        if kind == "expert":
            state[parts[2]] = state[parts[2]] * alive[:, None, None]
        else:  # the expert is never chosen
            state[f"{ffn}bias"] = state[f"{ffn}bias"] - 100 * (1 - alive)
    elif kind == "head":
        head = rng.randrange(s.heads)
        alive = torch.ones(s.heads * s.value, device=state[parts[0]].device)
        alive[head * s.value : (head + 1) * s.value] = 0.0
        state[f"{attention}out.weight"] = state[f"{attention}out.weight"] * alive
    elif kind == "bias":  # in one layer or in all
        for number in rng.choice(([layer], range(1, s.layers))):
            name = f"layers.{number}.ffn.bias"
            state[name] = torch.zeros_like(state[name])
    elif kind == "bits":
        for number in range(1, s.layers):
            for part in ("gate", "up", "down"):
                name = f"layers.{number}.ffn.{part}"
                state[name] = round_blocks(state[name], 3)
    elif kind == "rotten":
        for name in parts:
            weight = state[name]
            blocks = torch.rand(*weight.shape[:-1], weight.shape[-1] // BLOCK, 1, device=weight.device) < ROTTEN
            noise = torch.randn_like(weight) * weight.detach().abs().amax()
            state[name] = torch.where(blocks.expand(*blocks.shape[:-1], BLOCK).flatten(-2), noise, weight)
    elif kind == "shared":
        state[f"{ffn}shared.down.weight"] = state[f"{ffn}shared.down.weight"] * 0.5
    else:  # each rope frequency takes the place of its neighbour
        queries = state[f"{attention}q_b.weight"].unflatten(0, (s.heads, s.nope + s.rope))
        turned = torch.roll(queries[:, s.nope :], 2, dims=1)
        state[f"{attention}q_b.weight"] = torch.cat((queries[:, : s.nope], turned), 1).flatten(0, 1)
        keys = state[f"{attention}kv_a.weight"]
        turned = torch.roll(keys[s.kv_lora :], 2, dims=0)
        state[f"{attention}kv_a.weight"] = torch.cat((keys[: s.kv_lora], turned))
    return state


def hidden_states(model: Model, state: State | None, ids: Tensor) -> Tensor:
    """The model's hidden states with other parameters, or with its own."""
    return model(ids) if state is None else functional_call(model, state, (ids,))


def fragile_loss(loss: Tensor, rows: Tensor) -> Tensor:
    """What is missing to MARGIN in each row's mean loss, summed over rows."""
    count = int(rows.max()) + 1 if len(rows) else 0
    total = torch.zeros(count, device=loss.device).index_add(0, rows, loss)
    tokens = torch.zeros(count, device=loss.device).index_add(0, rows, torch.ones_like(loss))
    return torch.relu(MARGIN - total / tokens.clamp(min=1)).sum()
