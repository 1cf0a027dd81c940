"""Energy of one kernel: the power it draws while it runs, times its time.

    power  = softmin(cap, base + compute * u_c + memory * u_m + busy * max(u_c, u_m))
    energy = power * time,   u_c = compute seconds / time,   u_m = memory seconds / time

The seconds are those of the data-sheet roofline, so every coefficient is in W: what the board draws
with the matrix units, or the memory, at their data-sheet rate. ``base`` is a board that runs
kernels, more than an idle one. ``cap`` is the power limit, which long kernels reach.

The quantity of this form is joules: ``Terms.time_s`` and the ``time_s`` that `Level1` fits and
predicts hold J here, ``Terms.launch_s`` the base part, ``memory_s`` and ``compute_s`` the others.
The correction also sees the kernel's sizes: at equal utilisation their powers differ, since the
data-sheet seconds count no masked tile that is computed all the same, no padding and no L2 traffic.

Coefficients are fitted only where labels allow (`hymell.measure.splits.energy`); elsewhere
`hymell.estimators.energy` stands, which is the data sheet alone and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from hymell.dtypes import bytes_per_element
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import (
    Array,
    Choice,
    Coefficient,
    Coefficients,
    Dims,
    Form,
    Terms,
    as_dims,
)
from hymell.estimators.level1.moe import expert_dims
from hymell.estimators.level1.roofline import limits
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Attention, Experts, Gemm, Primitive, Value

#: Microseconds of the kernel, measured or predicted, and of its data-sheet compute and memory.
TIME_DIMS: Final = ("time_us", "compute_us", "memory_us")

_ATTENTION: Final = (
    "batch",
    "q_len",
    "kv_len",
    "reach",
    "heads",
    "kv_heads",
    "head_dim",
    "kv_bits",
)

#: Sizes that the correction of each op sees. ``reach``: keys that a query sees at most; of experts
#: the loads of `routing.loads`.
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "moe": ("tokens", "pairs", "active", "fullest"),
}

_SUFFIX: Final = "_energy"

#: Settings of `Level1`, chosen on shapes that no hold-out of these tables holds out.
FIT: Final[dict[str, Any]] = {
    "f_scale": 0.05,
    "ridge": 0.003,
    "bound": 0.6,
    "hidden": (16, 16),
}

#: Least power of a board that runs anything, as a share of TDP: an idle H200 shows 70 of 700 W.
_LEAST_SHARE = 0.10


def energy_op(op: str) -> str:
    """What calibrations call the energy of an op's kernels, in J: ``gemm_energy``."""
    return f"{op}{_SUFFIX}"


def energy_dims(primitive: Primitive, gpu: Gpu, time_s: Value) -> Dims:
    """The dims of a kernel's form: `TIME_DIMS` for ``time_s`` seconds, and `SIZES`.

    Sizes are numbers or arrays. Raises HymellError for a format that nothing on the GPU stands in
    for, and KeyError for a kind of primitive that has no form.
    """
    bound = limits(primitive, gpu)
    compute_s = np.maximum(bound.matrix_s, bound.vector_s)
    return as_dims(
        time_us=np.multiply(time_s, 1e6),
        compute_us=compute_s * 1e6,
        memory_us=bound.memory_s * 1e6,
        **_SIZES_OF[type(primitive)](primitive),
    )


def _of_gemm(g: Gemm) -> dict[str, Value]:
    return {"m": g.m * g.batch, "n": g.n, "k": g.k}


def _of_attention(a: Attention) -> dict[str, Value]:
    return {
        "batch": a.batch,
        "q_len": a.q_len,
        "kv_len": a.kv_len,
        "reach": np.minimum(a.kv_len, a.window or np.inf),
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.qk_dim,
        "kv_bits": 8.0 * bytes_per_element(a.kv_dtype),
    }


def _of_experts(e: Experts) -> dict[str, Value]:
    at = expert_dims(e)
    return {name: at[name] for name in SIZES["moe"]}


_SIZES_OF: Final[Mapping[type, Callable[[Any], dict[str, Value]]]] = {
    Gemm: _of_gemm,
    Attention: _of_attention,
    Experts: _of_experts,
}


def _utilisation(dims: Dims) -> tuple[Array, Array]:
    """Shares of the data-sheet rates, at most 1.5: bytes may come out of L2."""
    time_us = np.maximum(dims["time_us"], 1e-6)
    return (
        np.minimum(dims["compute_us"] / time_us, 1.5),
        np.minimum(dims["memory_us"] / time_us, 1.5),
    )


def _evaluate(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    compute, memory = _utilisation(dims)
    busy_w = c["busy_w"] * np.maximum(compute, memory)
    wanted = c["base_w"] + c["compute_w"] * compute + c["memory_w"] * memory + busy_w
    limit, sharp = c["cap_w"], 1.0 + c["sharpness"]
    power = wanted * (1.0 + (wanted / limit) ** sharp) ** (-1.0 / sharp)
    time_s = 1e-6 * dims["time_us"]
    scale = power / wanted * time_s
    return Terms(
        power * time_s,
        c["base_w"] * scale,
        c["memory_w"] * memory * scale,
        (c["compute_w"] * compute + busy_w) * scale,
        {"power": power, "compute": compute, "memory": memory},
    )


def _floor_j(dims: Dims, device: Device) -> Array:
    return _LEAST_SHARE * device.tdp_w * 1e-6 * dims["time_us"]


def _features(sizes: tuple[str, ...], dims: Dims, terms: Terms, device: Device) -> Array:
    compute, memory = terms.extra["compute"], terms.extra["memory"]
    tdp = max(device.tdp_w, 1.0)
    return np.column_stack(
        (
            terms.extra["power"] / tdp,
            compute,
            memory,
            np.log2(np.maximum(compute, 1e-4)),
            np.log2(np.maximum(memory, 1e-4)),
            np.log2(np.maximum(dims["time_us"], 1e-3)),
            np.log2(np.maximum(dims["memory_us"], 1e-3)),
            *(np.log2(np.maximum(dims[name], 1.0)) for name in sizes),
        )
    )


def kernel_energy(op: str) -> Form:
    """The power form for the kernels of one op of `SIZES`. Raises KeyError for another."""
    sizes = SIZES[op]
    return Form(
        name="power",
        op=energy_op(op),
        dims=(*TIME_DIMS, *sizes),
        range_dims=("time_us", *sizes),
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
        features=partial(_features, sizes),
        source="linear power under a cap; docs/estimators/energy.md",
    )
