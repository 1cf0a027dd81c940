"""What a run is made of: seconds of kernels by group and phase, steps, exchanges; one row per run.

Kernels are priced one by one by the deployment's estimator and summed exactly over decode steps
(`rollup.in_blocks`); nothing is traced or lowered twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from hymell.estimators.base import Array, Deployment, Mask
from hymell.estimators.level3.groups import GROUPS, group_of
from hymell.estimators.rollup import (
    Steps,
    decode_steps,
    in_blocks,
    mha_extra_s,
    split_by_region,
)
from hymell.graph import Phase

#: Columns of a phase beside its groups. ``mha_extra``: seconds that attention would take more with
#: as many KV heads as query heads. ``messages``: exchanges between GPUs. ``expert_layers``: layers
#: of experts x steps, ``attention_layers`` the same of attention. ``sequence_steps``: steps x
#: sequences of one GPU. ``launches``: kernels that the host starts.
_COUNTS: Final = (
    *("mha_extra", "messages", "expert_layers", "attention_layers", "steps", "sequence_steps"),
    "launches",
)

#: Groups whose kernels are counted as well.
_COUNTED: Final = {
    "comm": "messages",
    "experts": "expert_layers",
    "attention": "attention_layers",
}

_PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")

#: Every column, in order: kernel groups and ``mha_extra`` in seconds, the others are counts.
FEATURES: Final = tuple(f"{phase}_{name}" for phase in _PHASES for name in (*GROUPS, *_COUNTS))

Features = Mapping[str, Array]


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


def _of_phase(model: Deployment, phase: Phase, steps: Steps) -> Iterator[tuple[str, Mask, Array]]:
    for index, rows, part in split_by_region(model, phase, steps):
        yield "steps", rows, part.count
        yield "sequence_steps", rows, part.count * part.B / model.parallel.batch_parts
        kernels = model.lowered(index).kernels
        for kernel, (_, sums) in zip(kernels, in_blocks(kernels, model, phase, part), strict=True):
            group, time_s = group_of(kernel.primitive), sums.time_s
            yield group, rows, np.broadcast_to(time_s, part.B.shape)
            if group in _COUNTED:
                yield _COUNTED[group], rows, kernel.repeat * part.count
            yield "launches", rows, kernel.repeat * kernel.launches * part.count
            yield "mha_extra", rows, mha_extra_s(kernel, model, part, time_s)
