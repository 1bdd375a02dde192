"""A chip's attention, step by step, with some of its roundings left out. The comparison is attention_error.py.

The steps are those of golden_mesh's attention of a decode step and of a chunk of a prompt: without an exact part both
give equal bits (tests/evaluation/test_attention_by_position.py). Tensors are float32 and hold what the chip holds.
"""

from typing import Collection

import torch
import torch.nn.functional as F
from golden_mesh.arithmetic import engine, flash
from golden_mesh.arithmetic.decode_schedule import chunks_by_core, reduction_tree
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import ROWS, product

from models.demos.qwen25_7b.plans.grids import TILE

KERNEL = Kernel(phases=3, wide=True)  # HiFi3, sums in float32: tt/linear.py, compute_config
PARTS = ("scores", "exp", "weights", "running")  # that may be exact
Exact = Collection[str]


def attend_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    chunk: int,
    cores: int,
    approximate: bool,
    exact: Exact = (),
) -> torch.Tensor:
    """A query's attention to all keys: q [kv_heads, group, dim], k and v [kv_heads, tokens, dim] -> like q.

    - chunk: keys at a time. cores: that share a KV head.
    - approximate: whether exp is (ParallelPlan.exact_decode_attention).
    - exact: of PARTS. scores, weights: not rounded to bfloat16. exp: not approximate. running: results after a chunk
      and after a join stay float32.
    """
    tokens, dim = k.shape[1:]
    group = q.shape[1]
    order = chunks_by_core(torch.tensor([-(-tokens // chunk)]), cores)[0]  # [cores, turns]
    k, v = (
        F.pad(x, (0, 0, 0, -tokens % chunk)).unflatten(1, (-1, chunk)).transpose(0, 1)
        for x in (k, v)
    )
    k, v = (x[order.flatten().clamp(min=0)] for x in (k, v))  # [chunks, kv_heads, chunk, dim]
    queries = F.pad(q, (0, 0, 0, -group % ROWS))[None]
    scores = product(queries, k.transpose(-1, -2), KERNEL)
    if "scores" not in exact:
        scores = engine.to_bfloat16_(scores)
    position = (order.flatten() * chunk)[:, None] + torch.arange(chunk)
    hidden = ((position < 0) | (position >= tokens))[:, None, None]
    scores.masked_fill_(hidden, flash.HIDDEN)
    largest = scores.amax(-1, keepdim=True).unflatten(0, order.shape).cummax(1).values
    scale = dim**-0.5
    weights = _weights(scores, largest.flatten(0, 1), scale, approximate, exact)
    weights.masked_fill_(hidden, 0)
    if "weights" in exact:
        values, sums = weights @ v, weights.sum(-1, keepdim=True)
    else:
        weights = engine.to_bfloat16_(weights)
        values, sums = product(weights, v, KERNEL), flash.sum_of_rows(weights, KERNEL)
    state = torch.cat((values, sums), -1)  # the sum is a column more
    if "running" not in exact:
        state = engine.to_bfloat16_(state)
    state = _in_turns(state.unflatten(0, order.shape), largest, scale, exact)
    state = _joined(state, largest[:, -1], scale, exact)
    return _divided(state, exact)[:, :group]


def _weights(scores, largest, scale: float, approximate: bool, exact: Exact) -> torch.Tensor:
    if "scores" in exact:
        return torch.exp((scores - largest) * scale)
    return flash.weights(scores, largest, scale, KERNEL, approximate and "exp" not in exact)


def _factor(old: torch.Tensor, new: torch.Tensor, scale: float, exact: Exact) -> torch.Tensor:
    if "running" in exact:
        return torch.exp((old - new) * scale)
    return flash.correction(old, new, scale)


def _in_turns(parts: torch.Tensor, largest: torch.Tensor, scale: float, exact: Exact):
    """[cores, turns, ...] -> [cores, ...]: a core takes its chunks in order."""
    state = parts[:, 0]
    for turn in range(1, parts.shape[1]):
        factor = _factor(largest[:, turn - 1], largest[:, turn], scale, exact)
        if "running" in exact:
            state = state * factor + parts[:, turn]
        else:
            state = engine.add(
                flash.times(state, engine.to_bfloat16(factor), KERNEL), parts[:, turn]
            )
    return state


def _joined(state: torch.Tensor, largest: torch.Tensor, scale: float, exact: Exact) -> torch.Tensor:
    """[cores, ...] -> [...]: the cores of a head, along a tree of pairs."""
    states, most = list(state), list(largest)
    for pairs in reduction_tree(len(states)):
        for into, other in pairs:
            new = torch.maximum(most[into], most[other])
            factors = [_factor(most[core], new, scale, exact) for core in (into, other)]
            sides = list(zip((states[into], states[other]), factors))
            if "running" in exact:
                states[into] = sum(s * factor for s, factor in sides)
            else:
                values = [flash.times(s[..., :-1], engine.to_bfloat16(f), KERNEL) for s, f in sides]
                total = engine.to_bfloat16(sum(s[..., -1:] * f for s, f in sides))
                states[into] = torch.cat((engine.add(*values), total), -1)
            most[into] = new
    return states[-1]


def _divided(state: torch.Tensor, exact: Exact) -> torch.Tensor:
    """The result in bfloat16. state: values, and the sum of weights as the last column."""
    values, total = state[..., :-1], state[..., -1:]
    if "running" in exact:
        return engine.to_bfloat16(values / total)
    return flash.times(values, engine.to_bfloat16(1 / total), KERNEL)


def attend_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, chunk: int, exact: Exact = ()
) -> torch.Tensor:
    """A causal prompt's last rows: q [kv_heads, group, rows, dim], k and v [kv_heads, tokens, dim] -> like q.

    Row r sees the keys up to tokens - rows + r. Scores and weights are float32 on chips, so of PARTS only `running` counts.
    """
    tokens, dim = k.shape[1:]
    group, rows = q.shape[1:3]
    scale, state, largest = dim**-0.5, None, None
    seen = torch.arange(tokens - rows, tokens)[:, None]
    for at in range(0, tokens, chunk):
        keys, values = (x[:, at : at + chunk] for x in (k, v))
        scores = product(q.flatten(1, 2), keys.transpose(-1, -2), KERNEL)
        scores = scores.unflatten(1, (group, rows))
        hidden = torch.arange(at, at + keys.shape[1]) > seen
        scores.masked_fill_(hidden, flash.HIDDEN)
        new = engine.keep(scores.amax(-1, keepdim=True), engine.BFLOAT16)
        new = new if largest is None else torch.maximum(new, largest)
        weights = flash.weights(engine.keep(scores, engine.SRC_B), new, scale, KERNEL, False)
        weights.masked_fill_(hidden, 0)
        result = product(weights.flatten(1, 2), values, KERNEL).unflatten(1, (group, rows))
        sums = F.pad(weights, (0, -keys.shape[1] % TILE)).unflatten(-1, (-1, TILE)).sum(-2)
        if "running" not in exact:
            result = engine.to_bfloat16_(result.contiguous())
        if state is not None:
            factor = _factor(largest, new, scale, exact)
            if "running" in exact:
                state = (state[0] * factor + result, state[1] * factor + sums)
            else:
                factor = engine.to_bfloat16(factor)
                total = engine.add_in_float32_dest(sums, engine.multiply(state[1], factor, KERNEL))
                result = (result + flash.times(state[0], factor, KERNEL)).bfloat16().float()
                state = result, total
        else:
            state = result, sums
        largest = new
    result, total = state[0], flash.sum_of_rows(state[1], KERNEL)
    if "running" in exact:
        return engine.to_bfloat16(result / total)
    inverse = 1 / engine.keep(total, engine.SRC_B)
    return engine.to_bfloat16(engine.multiply(result, inverse, KERNEL))
