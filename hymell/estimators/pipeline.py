"""Stages of consecutive layers: how long a phase lasts, and what all GPUs draw in it.

With p stages and m micro-batches, each as large as the others, the first one passes through all
stages and the slowest stage adds each of the rest (GPipe, arXiv 1811.06965). With t the time of one
micro-batch in all stages and s the slowest stage's share of it,

    time = t * (1 + (m - 1) * s),

so that of even stages (s = 1/p) the share (p - 1)/(m + p - 1) of the time stands idle. A GPU that
waits draws idle power.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hymell.estimators.base import Array, Deployment
from hymell.estimators.energy import PowerModel
from hymell.op_registry.parallel import layer_count
from hymell.workload import SINGLE

if TYPE_CHECKING:
    from hymell.estimators.rollup import PhaseTotals


def largest_stage(model: Deployment) -> float:
    """Share of the layers in the largest stage."""
    layers = layer_count(model.graph.regions[0])
    return ceil(layers / model.parallel.pp) / layers if layers else 1.0


def overlap(model: Deployment) -> float:
    """Time that passes per second of work of all stages together; 1 with one micro-batch."""
    parts = model.parallel.microbatches
    return 1.0 if parts == 1 else (1 + (parts - 1) * largest_stage(model)) / parts


def over_stages(model: Deployment, totals: PhaseTotals) -> PhaseTotals:
    """A phase as long as it lasts, from the work of all stages one after another."""
    if model.parallel == SINGLE:
        return totals
    fixed_s = model.engine.overheads.step_s * totals.steps
    time_s = overlap(model) * (totals.time_s - fixed_s) + fixed_s
    return replace(totals, time_s=time_s)


def energy_j(model: Deployment, totals: PhaseTotals, power: PowerModel) -> Array:
    """Joules of all GPUs: of their kernels, and of idle boards for the rest of the time."""
    parallel = model.parallel
    idle_s = parallel.pp * totals.time_s - totals.kernel_s
    found: Array = parallel.per_stage * (totals.kernel_j + power.idle_w * idle_s)
    if model.offsets is not None:
        found = np.asarray(
            model.offsets.energy_j(found, totals.time_s, parallel.gpus * power.tdp_w)
        )
    return found
