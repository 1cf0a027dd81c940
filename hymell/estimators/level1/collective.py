"""Collectives inside one machine: all-reduce, all-gather, reduce-scatter, all-to-all.

A library switches between protocols as messages grow: low latency at little bandwidth, then more of
both (NCCL: LL, LL128, Simple; vLLM's and TensorRT-LLM's own all-reduce: one-shot, two-shot). Each
is a line, and the library mostly takes the fastest:

    time(n) = softmin_i(alpha_i(n) + wire_bytes / beta_i(n)),   i = 1..3
    wire_bytes = (n - 1)/n * message_bytes, twice that for an all-reduce

with one set of lines per measured number of GPUs. Between two of them the lines are interpolated in
log2 n; beyond the largest, latency grows as log2 n and bandwidth stays. ``message_bytes`` is the
size in the meaning of nccl-tests: the buffer that an all-reduce reduces, the whole output of an
all-gather, the whole input of a reduce-scatter or an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import (
    Array,
    Choice,
    Coefficient,
    Coefficients,
    Dims,
    Form,
    Terms,
)

COLLECTIVE_DIMS = ("message_bytes", "n_gpus")

#: Settings of `Level1`, chosen on H200: a small net, since a table has some sixty rows.
FIT: Final[dict[str, Any]] = {
    "f_scale": 0.1,
    "ridge": 0.003,
    "bound": 0.35,
    "hidden": (32, 32),
    "epochs": 500,
}

#: Numbers of GPUs that have lines of their own.
GROUPS = (2, 4, 8)

#: The lines, fastest start first.
LINES = (1, 2, 3)
_GROWING = tuple(f"{kind}{i}" for kind in ("alpha", "beta") for i in LINES)

#: Times that the data crosses a ring's links, in units of (n - 1)/n of the message (nccl-tests,
#: PERFORMANCE.md).
CROSSINGS = {
    "all_reduce": 2.0,
    "custom_all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
}


def link_bytes_per_s(device: Device) -> float:
    """One direction of the link between GPUs: NVLink where there is one, else PCIe."""
    return (device.nvlink_bytes_per_s or device.pcie_bytes_per_s) / 2.0


def _share(n_gpus: Array) -> Array:
    return (n_gpus - 1.0) / n_gpus


def _floor_s(dims: Dims, device: Device) -> Array:
    """One crossing at the data-sheet rate: what a switch that reduces on the way (NVLS) needs."""
    link = link_bytes_per_s(device)
    if link == 0.0:
        return np.zeros_like(dims["message_bytes"])
    return _share(dims["n_gpus"]) * dims["message_bytes"] / link


def _lines(c: Coefficients) -> Array:
    """(group, alpha of each line, beta of each line, sharpness); alphas and betas both ascend."""
    rows = []
    growth = dict.fromkeys(_GROWING, 1.0)
    for n in GROUPS:
        if n > GROUPS[0]:
            growth = {name: growth[name] * c[f"{name}_to_{n}"] for name in _GROWING}
        size = {name: c[name] * growth[name] for name in _GROWING}
        alpha = np.cumsum([size[f"alpha{i}"] for i in LINES])
        beta = np.cumsum([size[f"beta{i}"] for i in LINES])
        rows.append(np.concatenate([alpha, beta, [1.0 + c["sharpness"]]]))
    return np.stack(rows)


def _evaluate(
    crossings: float,
) -> Callable[[Coefficients, Dims, Device, Choice], Terms]:
    """The evaluation of an operation whose data crosses the links ``crossings`` times."""

    def evaluate(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
        table = np.log(_lines(c))
        depth = np.log2(np.maximum(dims["n_gpus"], 2.0))
        knots = np.log2(np.array(GROUPS, dtype=float))
        lines = np.exp(np.stack([np.interp(depth, knots, column) for column in table.T]))
        beyond = np.maximum(depth / knots[-1], 1.0)
        count = len(LINES)
        alpha, beta, sharpness = lines[:count] * beyond, lines[count:-1], lines[-1]
        wire = crossings * _share(dims["n_gpus"]) * dims["message_bytes"]
        each = alpha + wire / beta
        best = each.min(axis=0)
        total = best * ((each / best) ** -sharpness).sum(axis=0) ** (-1.0 / sharpness)
        launch = np.minimum(alpha[0], total)
        return Terms(total, launch, total - launch, np.zeros_like(total), {"wire": wire})

    return evaluate


def _features(dims: Dims, terms: Terms, device: Device) -> Array:
    total = terms.time_s
    link = max(link_bytes_per_s(device), 1.0)
    use = terms.extra["wire"] / link / total
    return np.column_stack(
        (
            np.log2(dims["n_gpus"]),
            np.log2(np.maximum(dims["message_bytes"], 1.0)),
            terms.launch_s / total,
            use,
        )
    )


#: Prior of each line beyond the one before: latency at two GPUs, share of the link.
ALPHAS_S = (6e-6, 4e-6, 1.6e-5)
_LINK_SHARE = (0.05, 0.2, 0.5)

#: Prior of what doubling the number of GPUs does to latencies; bandwidths stay.
LATENCY_GROWTH = 1.35


def _share_of_link(share: float) -> Callable[[Device], float]:
    return lambda device: share * link_bytes_per_s(device)


def _constant(value: float) -> Callable[[Device], float]:
    return lambda device: value


def _coefficients() -> tuple[Coefficient, ...]:
    found = [Coefficient("sharpness", "1", _constant(8.0), 0.7)]
    for i, alpha, share in zip(LINES, ALPHAS_S, _LINK_SHARE, strict=True):
        found += [
            Coefficient(f"alpha{i}", "s", _constant(alpha)),
            Coefficient(f"beta{i}", "byte/s", _share_of_link(share), 1.5),
        ]
        for n in GROUPS[1:]:
            found += [
                Coefficient(f"alpha{i}_to_{n}", "ratio", _constant(LATENCY_GROWTH), 0.5),
                Coefficient(f"beta{i}_to_{n}", "ratio", _constant(1.0), 0.5),
            ]
    return tuple(found)


def collective(op: str) -> Form:
    """The three-line form of a collective of `hymell.measure.table.DIMS`."""
    return Form(
        name="three-lines",
        op=op,
        dims=COLLECTIVE_DIMS,
        range_dims=COLLECTIVE_DIMS,
        coefficients=_coefficients(),
        evaluate=_evaluate(CROSSINGS[op]),
        floor_s=_floor_s,
        features=_features,
        source="soft minimum of alpha-beta lines, one per protocol; docs/estimators/collectives.md",
    )


COLLECTIVES = {op: collective(op) for op in CROSSINGS}
