"""What a run is made of: seconds of kernels by group and phase, steps, exchanges; one row per run.

Kernels are priced one by one by the deployment's estimator and summed exactly over decode steps
(`rollup.kernel_sums`); nothing is traced or lowered twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from hymell.estimators.base import Array, Deployment, Mask
from hymell.estimators.rollup import Steps, decode_steps, kernel_sums, split_by_region
from hymell.graph import Phase
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    Gemm,
    GroupedGemm,
    Primitive,
)

#: Groups of kernels that a phase's seconds are summed by.
GROUPS: Final = ("gemm", "experts", "rest", "attention", "comm")

#: Columns of a phase beside its groups. ``mha_extra``: seconds that attention would take more with
#: as many KV heads as query heads. ``messages``: exchanges between GPUs. ``sequence_steps``: steps
#: x sequences of one GPU.
_COUNTS: Final = ("mha_extra", "messages", "launches", "steps", "sequence_steps")

_PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")

#: Every column, in order: kernel groups and ``mha_extra`` in seconds, the others are counts.
FEATURES: Final = tuple(
    f"{phase}_{name}" for phase in _PHASES for name in (*GROUPS, *_COUNTS)
)

Features = Mapping[str, Array]


def group_of(primitive: Primitive) -> str:
    """The group of `GROUPS` that a kernel counts in."""
    if isinstance(primitive, Attention):
        return "attention"
    if isinstance(primitive, Collective):
        return "comm"
    if isinstance(primitive, Experts | GroupedGemm):
        return "experts"
    return "gemm" if isinstance(primitive, Gemm) else "rest"


def all_heads(primitive: Primitive) -> Attention | None:
    """The same attention with as many KV heads as query heads, None where it has them or none."""
    if not isinstance(primitive, Attention) or primitive.latent:
        return None
    if primitive.kv_heads >= primitive.heads:
        return None
    return replace(primitive, kv_heads=primitive.heads)


def features(model: Deployment, B: Array, prompt: Array, output: Array) -> dict[str, Array]:
    """The columns of `FEATURES` of many workloads: arrays of one entry per workload.

    ``output`` 1 decodes nothing. Raises HymellError for a workload that no traced region holds.
    """
    zero = np.zeros_like(B)
    found = {name: np.zeros(len(B)) for name in FEATURES}
    runs = {"prefill": Steps(B, prompt, zero, zero)}
    if "decode" in model.graph.phases():
        runs["decode"] = decode_steps(model, B, prompt, output)
    for phase in _PHASES:
        if phase in runs:
            for name, rows, values in _of_phase(model, phase, runs[phase]):
                found[f"{phase}_{name}"][rows] += values
    return found


def _of_phase(
    model: Deployment, phase: Phase, steps: Steps
) -> Iterator[tuple[str, Mask, Array]]:
    for index, rows, part in split_by_region(model, phase, steps):
        yield "steps", rows, part.count
        yield "sequence_steps", rows, part.count * part.B / model.parallel.batch_parts
        for kernel in model.lowered(index).kernels:
            yield "launches", rows, kernel.repeat * kernel.launches * part.count
            group = group_of(kernel.primitive)
            time_s = kernel_sums(kernel, model, part).time_s
            yield group, rows, np.broadcast_to(time_s, part.B.shape)
            if group == "comm":
                yield "messages", rows, kernel.repeat * part.count
            yield "mha_extra", rows, mha_extra_s(kernel, model, part, time_s)


def mha_extra_s(kernel: Kernel, model: Deployment, steps: Steps, time_s: Array) -> Array:
    """Seconds that an attention would take more with all heads of its own, 0 of other kernels."""
    whole = all_heads(kernel.primitive)
    if whole is None:
        return np.zeros(len(steps.B))
    longer = kernel_sums(replace(kernel, primitive=whole), model, steps).time_s
    return np.maximum(longer - time_s, 0.0)
