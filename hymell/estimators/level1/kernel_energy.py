"""Energy of one kernel: the power it draws while it runs, times its time.

    power  = softmin(cap, base + compute * u_c + memory * u_m + busy * max(u_c, u_m))
    energy = power * time,   u_c = compute seconds / time,   u_m = memory seconds / time

The seconds are those of the data-sheet roofline, so every coefficient is in W: what the board draws
with the matrix units, or the memory, at their data-sheet rate. ``base`` is a board that runs
kernels, more than an idle one. ``cap`` is the power limit, which long kernels reach.

The quantity of this form is joules: ``Terms.time_s`` and the ``time_s`` that `Level1` fits and
predicts hold J here, ``Terms.launch_s`` the base part, ``memory_s`` and ``compute_s`` the others.
Coefficients are fitted only where labels allow (`hymell.measure.splits.energy`); elsewhere
`hymell.estimators.energy` stands, which is the data sheet alone and says so.
"""

from __future__ import annotations

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
from hymell.estimators.level1.roofline import limits
from hymell.estimators.level1.row_ops import as_dims
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Primitive, Value

#: Measured or predicted seconds of the kernel, and its data-sheet seconds of compute and memory.
ENERGY_DIMS = ("time_s", "compute_s", "memory_s")

#: Settings of `Level1`, chosen on the MoE table of H200.
FIT: Final[dict[str, Any]] = {
    "f_scale": 0.05,
    "ridge": 0.003,
    "bound": 0.6,
    "hidden": (32, 32),
    "epochs": 120,
}

#: Least power of a board that runs anything, as a share of TDP: an idle H200 shows 70 of 700 W.
_LEAST_SHARE = 0.10


def energy_dims(primitive: Primitive, gpu: Gpu, time_s: Value) -> Dims:
    """`ENERGY_DIMS` of a kernel that takes ``time_s`` seconds; numbers or arrays.

    Raises HymellError for a format that nothing on the GPU stands in for.
    """
    bound = limits(primitive, gpu)
    compute_s = np.maximum(bound.matrix_s, bound.vector_s)
    return as_dims(time_s=time_s, compute_s=compute_s, memory_s=bound.memory_s)


def _utilisation(dims: Dims) -> tuple[Array, Array]:
    """Shares of the data-sheet rates, at most 1.5: bytes may come out of L2."""
    time_s = np.maximum(dims["time_s"], 1e-12)
    return (
        np.minimum(dims["compute_s"] / time_s, 1.5),
        np.minimum(dims["memory_s"] / time_s, 1.5),
    )


def _evaluate(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    compute, memory = _utilisation(dims)
    busy_w = c["busy_w"] * np.maximum(compute, memory)
    wanted = c["base_w"] + c["compute_w"] * compute + c["memory_w"] * memory + busy_w
    limit, sharp = c["cap_w"], 1.0 + c["sharpness"]
    power = wanted * (1.0 + (wanted / limit) ** sharp) ** (-1.0 / sharp)
    scale = power / wanted * dims["time_s"]
    return Terms(
        power * dims["time_s"],
        c["base_w"] * scale,
        c["memory_w"] * memory * scale,
        (c["compute_w"] * compute + busy_w) * scale,
        {"power": power, "compute": compute, "memory": memory},
    )


def _floor_j(dims: Dims, device: Device) -> Array:
    return _LEAST_SHARE * device.tdp_w * dims["time_s"]


def _features(dims: Dims, terms: Terms, device: Device) -> Array:
    compute, memory = terms.extra["compute"], terms.extra["memory"]
    tdp = max(device.tdp_w, 1.0)
    return np.column_stack(
        (
            terms.extra["power"] / tdp,
            compute,
            memory,
            np.log2(np.maximum(compute, 1e-4)),
            np.log2(np.maximum(memory, 1e-4)),
            np.log2(np.maximum(dims["time_s"], 1e-9)),
            np.log2(np.maximum(dims["memory_s"], 1e-9)),
        )
    )


def kernel_energy(op: str) -> Form:
    """The power form for the kernels of one op."""
    return Form(
        name="power",
        op=op,
        dims=ENERGY_DIMS,
        range_dims=("time_s",),
        coefficients=(
            Coefficient("base_w", "W", lambda d: 0.22 * d.tdp_w, 0.4),
            Coefficient("compute_w", "W at the peak rate", lambda d: 0.7 * d.tdp_w),
            Coefficient("memory_w", "W at full bandwidth", lambda d: 0.4 * d.tdp_w),
            Coefficient("busy_w", "W", lambda d: 0.1 * d.tdp_w, 1.5),
            Coefficient("cap_w", "W", lambda d: d.tdp_w, 0.1),
            Coefficient("sharpness", "1", lambda d: 6.0),
        ),
        evaluate=_evaluate,
        floor_s=_floor_j,
        features=_features,
        source="linear power under a cap; docs/estimators/energy.md",
    )
