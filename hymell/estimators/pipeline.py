"""Stages of consecutive layers: how long a phase lasts, and what all GPUs draw in it.

Where a GPU's energies were fitted on whole models (`level3.energies`), they give the energy of a
phase; else it is that of the kernels, and idle power for the rest of the time.

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
from hymell.estimators.level3.energy_terms import Work, energy_columns
from hymell.graph import Phase
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


def energy_j(model: Deployment, phase: Phase, totals: PhaseTotals, power: PowerModel) -> Array:
    """Joules of all GPUs in a phase."""
    if model.energies is None:
        kernels_j: Array = model.parallel.per_stage * totals.kernel_j
        return _offset(model, totals, power, kernels_j + _idle_j(model, totals, power))
    columns = energy_columns(_work(model, phase, totals), _gpu_s(model, totals), model.gpu)
    drawn_j = model.energies.energy_j(columns, model.gpu, power.idle_w)
    return _offset(model, totals, power, drawn_j)


def outside_j(model: Deployment, totals: PhaseTotals, power: PowerModel) -> Array:
    """Joules of all GPUs while no kernel runs: idle power."""
    return _offset(model, totals, power, _idle_j(model, totals, power))


def _idle_j(model: Deployment, totals: PhaseTotals, power: PowerModel) -> Array:
    idle_s = model.parallel.pp * totals.time_s - totals.kernel_s
    found: Array = model.parallel.per_stage * power.idle_w * idle_s
    return found


def _offset(model: Deployment, totals: PhaseTotals, power: PowerModel, joules: Array) -> Array:
    """Joules as a user's own runs say."""
    if model.offsets is None:
        return joules
    limit_w = model.parallel.gpus * power.tdp_w
    return np.asarray(model.offsets.energy_j(joules, totals.time_s, limit_w))


def _gpu_s(model: Deployment, totals: PhaseTotals) -> Array:
    found: Array = model.parallel.gpus * totals.time_s
    return found


def _work(model: Deployment, phase: Phase, totals: PhaseTotals) -> Work:
    gpus = model.parallel.per_stage
    return Work(
        matrix_s=gpus * totals.matrix_s,
        padded_s=gpus * totals.padded_s,
        bytes=gpus * totals.bytes,
        weight_bytes=gpus * totals.weight_bytes,
        cache_bytes=gpus * totals.cache_bytes,
        activation_bytes=gpus * totals.activation_bytes,
        prompt_s=_gpu_s(model, totals) * (phase == "prefill"),
    )
