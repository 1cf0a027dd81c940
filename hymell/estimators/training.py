"""Training of `hymell.estimators.mlp.Mlp`. Imports torch, so only calibration imports this."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.mlp import Mlp

Array = NDArray[np.float64]


def train_mlp(
    features: Array,
    log_ratio: Array,
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 250,
    learning_rate: float = 4e-3,
    weight_decay: float = 1e-3,
    huber: float = 0.05,
    batch: int = 512,
    bound: float = 1.0,
    seeds: Sequence[int] = (0, 1, 2),
) -> Mlp:
    """Fit log(measured / analytical) with one network per seed (AdamW, one-cycle, Huber loss).

    ``features`` (rows, n), ``log_ratio`` (rows,). Features with (almost) no spread are given a
    floor, so that a constant column cannot explode outside the training rows. Deterministic on
    one thread.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mean = features.mean(0)
        scale = np.maximum(features.std(0), 1e-3)
        centre, spread = float(np.median(log_ratio)), float(log_ratio.std() + 1e-6)
        x = torch.tensor((features - mean) / scale, dtype=torch.float32)
        y = torch.tensor((log_ratio - centre) / spread, dtype=torch.float32)
        rows = len(y)
        size = min(batch, max(32, rows // 8))
        steps = max(1, rows // size)
        sizes = [features.shape[1], *hidden, 1]
        members: list[list[tuple[Array, Array]]] = []
        for seed in seeds:
            torch.manual_seed(seed)
            layers: list[torch.nn.Module] = []
            for inputs, outputs in pairwise(sizes):
                layers += [torch.nn.Linear(inputs, outputs), torch.nn.SiLU()]
            net = torch.nn.Sequential(*layers[:-1])
            optimiser = torch.optim.AdamW(
                net.parameters(), lr=learning_rate, weight_decay=weight_decay
            )
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimiser, max_lr=learning_rate, total_steps=epochs * steps + 1, pct_start=0.1
            )
            loss = torch.nn.HuberLoss(delta=huber / spread)
            for _ in range(epochs):
                order = torch.randperm(rows)
                for step in range(steps):
                    chosen = order[step * size : (step + 1) * size]
                    optimiser.zero_grad()
                    error = loss(net(x[chosen])[:, 0], y[chosen])
                    error.backward()
                    optimiser.step()
                    schedule.step()
            members.append(
                [
                    (m.weight.detach().double().numpy().T, m.bias.detach().double().numpy())
                    for m in net
                    if isinstance(m, torch.nn.Linear)
                ]
            )
    finally:
        torch.set_num_threads(threads)
    depth = len(members[0])
    return Mlp(
        mean,
        scale,
        features.min(0),
        features.max(0),
        tuple(np.stack([member[layer][0] for member in members]) for layer in range(depth)),
        tuple(np.stack([member[layer][1] for member in members]) for layer in range(depth)),
        centre,
        spread,
        bound,
    )
