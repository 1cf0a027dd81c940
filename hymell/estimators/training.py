"""Training of `hymell.estimators.mlp.Mlp`. Imports torch, so only calibration imports this."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.mlp import Mlp

Array = NDArray[np.float64]

#: Fewest steps of a training: a small table is gone through more often.
_FEWEST_STEPS = 1500

#: Steps at one learning rate: setting it takes as long as a fifth of a step.
_STEPS_AT_A_RATE = 10


def train_mlp(
    features: Array,
    log_ratio: Array,
    *,
    hidden: Sequence[int] = (32, 32, 32),
    epochs: int = 60,
    learning_rate: float = 1.6e-2,
    huber: float = 0.05,
    batch: int = 256,
    bound: float = 1.0,
    seeds: Sequence[int] = (0, 1, 2),
    fewest_steps: int = _FEWEST_STEPS,
) -> Mlp:
    """Fit log(measured / analytical) with one network per seed (Adam, one-cycle, Huber loss).

    ``features`` (rows, n), ``log_ratio`` (rows,). Features with (almost) no spread are given a
    floor, so that a constant column cannot explode outside the training rows. Networks are trained
    side by side, each with its own start and order of rows, and see a small table more often than
    ``epochs`` times, until ``fewest_steps`` are done. Deterministic on one thread.
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
        size = min(batch, max(32, rows // 8), rows)
        steps = rows // size
        epochs = max(epochs, -(-fewest_steps // steps))
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]

        def start(*shape: int, reach: float) -> torch.Tensor:
            drawn = [(2.0 * torch.rand(shape, generator=draw) - 1.0) * reach for draw in draws]
            return torch.stack(drawn).requires_grad_()

        layers = [
            (start(inputs, outputs, reach=inputs**-0.5), start(1, outputs, reach=inputs**-0.5))
            for inputs, outputs in pairwise([features.shape[1], *hidden, 1])
        ]
        optimiser = torch.optim.Adam(
            [values for layer in layers for values in layer], lr=learning_rate, fused=True
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser,
            max_lr=learning_rate,
            total_steps=epochs * steps // _STEPS_AT_A_RATE + 1,
            pct_start=0.1,
        )
        loss = torch.nn.HuberLoss(delta=huber / spread)
        for epoch in range(epochs):
            order = torch.stack([torch.randperm(rows, generator=draw) for draw in draws])
            for step in range(steps):
                chosen = order[:, step * size : (step + 1) * size]
                optimiser.zero_grad()
                output = x[chosen]
                for weight, bias in layers[:-1]:
                    output = torch.nn.functional.silu(torch.baddbmm(bias, output, weight))
                weight, bias = layers[-1]
                output = torch.baddbmm(bias, output, weight)
                # A mean over the members would slow each of them down by their number.
                error = len(seeds) * loss(output[..., 0], y[chosen])
                error.backward()
                optimiser.step()
                if (epoch * steps + step + 1) % _STEPS_AT_A_RATE == 0:
                    schedule.step()
    finally:
        torch.set_num_threads(threads)
    return Mlp(
        mean,
        scale,
        features.min(0),
        features.max(0),
        tuple(weight.detach().double().numpy() for weight, _ in layers),
        tuple(bias.detach().double().numpy()[:, 0] for _, bias in layers),
        centre,
        spread,
        bound,
    )
