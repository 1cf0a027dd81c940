"""Reductions over rows: RMSNorm, LayerNorm, softmax, and every kernel with one block per row.

Each row is one thread block. The blocks run in waves over the SMs, each wave taking a latency and
a part per column; meanwhile the bytes come out of L2 or HBM:

    time = t0 + join(waves * (row_s + col_s * cols / 1024), bytes / bandwidth(L2 share))

``bytes`` is everything the kernel reads and writes, so that a fused residual add or a change of
format shows there and nowhere else. Activations may lie in L2, so the floor counts only the bytes
that L2 cannot hold.

HYMELL's own forms (arXiv 2608.06723), regressions by regime, are `NORM_REGIMES` and
`SOFTMAX_REGIMES`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
    join,
    l2_miss,
)
from hymell.op_registry.primitives import Gather, RowReduce

#: Sizes of a row kernel: rows, columns of each, and bytes read and written by all rows together.
ROW_DIMS = ("rows", "cols", "bytes")

#: Settings of `Level1`, chosen on A40: times are clean, so residuals count from 3% on and the
#: priors weigh little.
FIT: Final[dict[str, Any]] = {"f_scale": 0.03, "ridge": 0.005}

#: Widest row of PyTorch's softmax with one warp per row; wider ones take a block.
_WARP_SOFTMAX_COLS = 1024

#: Blocks that share an SM in one wave, tried on the training rows.
_OCCUPANCIES: tuple[Choice, ...] = tuple({"occupancy": float(n)} for n in (1, 2, 4, 8, 16))


def row_dims(primitive: RowReduce | Gather) -> Dims:
    """`ROW_DIMS` of a primitive whose sizes are numbers or arrays."""
    return as_dims(
        rows=primitive.rows,
        cols=primitive.cols,
        bytes=primitive.bytes_read + primitive.bytes_written,
    )


def warm_floor_s(dims: Dims, device: Device) -> Array:
    """Seconds for the bytes that do not fit into L2, at the data-sheet bandwidth."""
    return np.maximum(dims["bytes"] - device.l2_bytes, 0.0) / device.bandwidth


def waves(blocks: Array, slots: float | Array, quantised: float) -> Array:
    """Waves of ``blocks`` on ``slots``: a mix of whole waves and a steady flow, at least one.

    ``quantised`` 1: every wave waits for its last block; 0: blocks follow each other freely.
    """
    filled = np.maximum(blocks, 1.0) / slots
    share = min(quantised, 1.0)
    return share * np.ceil(filled) + (1.0 - share) * np.maximum(filled, 1.0)


def memory_seconds(c: Coefficients, moved: Array, device: Device) -> tuple[Array, Array]:
    """Seconds to move bytes from L2 and HBM, and the share that misses L2.

    L2 is never slower than HBM, so the seconds grow with the bytes.
    """
    miss = l2_miss(moved, device.l2_bytes, c["l2_capacity"], c["l2_width"])
    return moved / c["hbm_bandwidth"] * ((1.0 - miss) / (1.0 + c["l2_gain"]) + miss), miss


def _l2_share(device: Device) -> float:
    """Share of L2 that one kernel can fill: less where two halves keep copies of each other.

    The halves came with A100 (NVIDIA A100 whitepaper, 2020); smaller dies have one L2.
    """
    halved = device.family in ("ampere", "hopper", "blackwell") and device.sm_count > 100
    return 0.7 if halved else 1.1


#: Coefficients that every form bound by activations in L2 or HBM shares.
MEMORY_COEFFICIENTS = (
    Coefficient("t0", "s", lambda d: 2e-6),
    Coefficient("hbm_bandwidth", "byte/s", lambda d: 0.85 * d.bandwidth, 0.3),
    Coefficient("l2_gain", "bandwidth of L2 over HBM, less 1", lambda d: 1.5),
    Coefficient("l2_capacity", "share of L2", _l2_share, 0.7),
    Coefficient("l2_width", "1", lambda d: 0.2),
    Coefficient("overlap", "1", lambda d: 1.0),
)

_WAVE_COEFFICIENTS = (
    *MEMORY_COEFFICIENTS,
    Coefficient("row_s", "s per wave", lambda d: 1e-6, 1.5),
    Coefficient("col_s", "s per wave and 1024 columns", lambda d: 3e-7, 1.5),
    Coefficient("quantised", "1", lambda d: 0.5),
)


def _evaluate_rows(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    slots = device.sm_count * float(choice["occupancy"])
    wave = waves(dims["rows"], slots, c["quantised"])
    work = wave * (c["row_s"] + c["col_s"] * dims["cols"] / 1024.0)
    memory, miss = memory_seconds(c, dims["bytes"], device)
    launch = np.full_like(memory, c["t0"])
    filled = np.maximum(dims["rows"], 1.0) / slots
    extra = {"miss": miss, "filled": filled, "idle": np.ceil(filled) / filled}
    return Terms(launch + join(work, memory, 1.0 + c["overlap"]), launch, memory, work, extra)


def row_features(dims: Dims, terms: Terms, device: Device) -> Array:
    """Shares of each part, wave filling and L2 footprint: nothing in absolute seconds."""
    filled = terms.extra["filled"]
    total = terms.time_s
    columns = (
        np.log2(np.maximum(dims["rows"], 1.0) / device.sm_count),
        np.log2(dims["cols"]),
        np.log2(np.maximum(dims["bytes"], 1.0) / device.l2_bytes),
        terms.extra["miss"],
        terms.launch_s / total,
        terms.memory_s / total,
        terms.compute_s / total,
        np.log2(filled),
        np.minimum(filled, 4.0) - np.floor(np.minimum(filled, 4.0)),
        np.log2(np.minimum(terms.extra["idle"], 8.0)),
    )
    return np.column_stack(columns)


def row_wave(op: str, name: str = "row-wave") -> Form:
    """The wave form for kernels with one block per row."""
    return Form(
        name=name,
        op=op,
        dims=ROW_DIMS,
        range_dims=ROW_DIMS,
        coefficients=_WAVE_COEFFICIENTS,
        evaluate=_evaluate_rows,
        floor_s=warm_floor_s,
        features=row_features,
        choices=_OCCUPANCIES,
        source="waves of row blocks over SMs beside an L2/HBM roofline; docs/estimators/rows.md",
    )


RMS_NORM = row_wave("rms_norm")
LAYER_NORM = row_wave("layer_norm")


#: Threads that an SM holds, L1 and shared memory of an SM in bytes (CUDA C++ programming guide,
#: table of compute capabilities), by family.
_SM_THREADS = {"turing": 1024.0, "ada": 1536.0, "blackwell-consumer": 1536.0}
_L1_BYTES = {"volta": 128e3, "turing": 96e3, "ampere": 192e3, "ada": 128e3, "hopper": 256e3}

_SOFTMAX_COEFFICIENTS = (
    *MEMORY_COEFFICIENTS,
    Coefficient("row_s", "s per wave of blocks", lambda d: 3e-6, 1.5),
    Coefficient("pass_s", "s per wave and pass over a block's threads", lambda d: 1e-6, 1.5),
    Coefficient("warp_s", "s per wave of one-warp rows of 1024", lambda d: 3e-6, 1.5),
    Coefficient("quantised", "1", lambda d: 0.3),
    Coefficient("l1_capacity", "byte per SM", lambda d: 0.7 * _L1_BYTES.get(d.family, 128e3), 0.5),
    Coefficient("l1_width", "1", lambda d: 0.15),
    Coefficient("reread", "share of the traffic", lambda d: 0.7, 0.5),
    Coefficient("unaligned", "share of the traffic", lambda d: 0.05),
)


def softmax_block(dims: Dims) -> tuple[Array, Array]:
    """Threads per row of PyTorch's block softmax, and the passes they make over a row.

    Vectors of 16 bytes; the block is the power of two that leaves at least two vectors to each
    thread, 32 to 512 threads. Whole passes take a vector per thread, the rest of the row and the
    elements before the first aligned one take one element per thread.
    """
    cols = dims["cols"]
    element = np.clip(np.round(dims["bytes"] / (2.0 * dims["rows"] * cols)), 1.0, 8.0)
    vector = 16.0 / element
    vectors = np.minimum(np.floor(cols / vector), 1024.0)
    threads = np.exp2(np.ceil(np.log2(np.clip(np.floor(vectors / 2.0), 32.0, 512.0))))
    whole = np.floor(cols / (vector * threads))
    rest = np.ceil((cols - whole * vector * threads) / threads)
    # the share of rows that start off a vector's boundary
    period = vector / np.gcd(cols.astype(np.int64), vector.astype(np.int64))
    return threads, whole + rest + (1.0 - 1.0 / period)


def _misaligned(cols: Array) -> Array:
    """Share of rows of four-byte elements that start off a 32-byte sector."""
    return 1.0 - np.gcd(np.maximum(cols, 1.0).astype(np.int64), 8) / 8.0


def _evaluate_softmax(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    rows, cols = dims["rows"], dims["cols"]
    threads, passes = softmax_block(dims)
    held = _SM_THREADS.get(device.family, 2048.0) * float(choice["occupancy"])
    blocks = np.clip(held / threads, 1.0, 32.0)
    wide = cols > _WARP_SOFTMAX_COLS
    slots = device.sm_count * np.where(wide, blocks, held / 32.0)
    wave = waves(rows, slots, c["quantised"])
    padded = np.exp2(np.ceil(np.log2(np.maximum(cols, 32.0))))
    per_wave = np.where(wide, c["row_s"] + c["pass_s"] * passes, c["warp_s"] * padded / 1024.0)
    memory, miss = memory_seconds(c, dims["bytes"], device)
    # a block reads its row three times (maximum, sum, result): from L1 while all its rows fit
    row_bytes = dims["bytes"] / (2.0 * rows)
    spilled = wide * l2_miss(row_bytes * blocks, c["l1_capacity"], 1.0, c["l1_width"])
    off = _misaligned(cols)
    memory = memory * (1.0 + c["reread"] * spilled + c["unaligned"] * off)
    work = wave * per_wave
    launch = np.full_like(memory, c["t0"])
    filled = np.maximum(rows, 1.0) / slots
    extra = {
        "miss": miss,
        "filled": filled,
        "idle": np.maximum(np.ceil(filled), 1.0) / filled,
        "spilled": spilled,
        "passes": passes,
        "off": off,
        "wide": wide.astype(np.float64),
        "full": cols / np.where(wide, passes * threads, padded),
    }
    return Terms(launch + join(work, memory, 1.0 + c["overlap"]), launch, memory, work, extra)


def _softmax_features(dims: Dims, terms: Terms, device: Device) -> Array:
    extra = terms.extra
    more = (extra["spilled"], extra["off"], extra["wide"], extra["full"], np.log2(extra["passes"]))
    return np.column_stack((row_features(dims, terms, device), *more))


SOFTMAX = Form(
    name="softmax-wave",
    op="softmax",
    dims=ROW_DIMS,
    range_dims=ROW_DIMS,
    coefficients=_SOFTMAX_COEFFICIENTS,
    evaluate=_evaluate_softmax,
    floor_s=warm_floor_s,
    features=_softmax_features,
    choices=({"occupancy": 1.0}, {"occupancy": 0.5}, {"occupancy": 0.25}),
    source="one warp per row to 1024 columns, one block beyond, as in PyTorch; rows.md",
)


#: Bounds of the three regimes in elements, tried on the training rows.
_ELEMENT_BOUNDS: tuple[Choice, ...] = tuple(
    {"small": 2.0**low, "large": 2.0**high}
    for low, high in ((18, 21), (19, 22), (20, 22), (20, 23), (21, 23), (21, 24), (22, 25))
)


def _regimes(value: Array, small: float, large: float) -> NDArray[np.int64]:
    """0, 1 or 2: below ``small``, below ``large``, above."""
    return (value > small).astype(np.int64) + (value > large).astype(np.int64)


def _pick(c: Coefficients, name: str, regime: NDArray[np.int64]) -> Array:
    return np.array([c[f"{name}_{r}"] for r in range(3)], dtype=np.float64)[regime]


def _plain_features(dims: Dims, terms: Terms, device: Device) -> Array:
    return np.column_stack([np.log2(np.maximum(dims[name], 1.0)) for name in ROW_DIMS])


def _evaluate_norm_regimes(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    rows, cols = dims["rows"], dims["cols"]
    regime = _regimes(rows * cols, float(choice["small"]), float(choice["large"]))
    launch = _pick(c, "constant", regime)
    work = _pick(c, "per_row", regime) * rows + _pick(c, "per_col", regime) * cols
    memory = _pick(c, "per_byte", regime) * dims["bytes"]
    return Terms(launch + work + memory, launch, memory, work)


def _evaluate_softmax_regimes(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    cols = dims["cols"]
    regime = _regimes(cols, float(choice["small"]), float(choice["large"]))
    launch = _pick(c, "constant", regime)
    work = _pick(c, "per_level", regime) * np.log2(np.maximum(cols, 2.0))
    memory = _pick(c, "per_byte", regime) * dims["bytes"]
    return Terms(launch + work + memory, launch, memory, work)


#: HYMELL's RMSNorm (arXiv 2608.06723): a regression on rows and width in each of three regimes of
#: total elements. Linear terms and their product; the paper prints no coefficients.
NORM_REGIMES = Form(
    name="three-regime",
    op="rms_norm",
    dims=ROW_DIMS,
    range_dims=ROW_DIMS,
    coefficients=tuple(
        coefficient
        for r in range(3)
        for coefficient in (
            Coefficient(f"constant_{r}", "s", lambda d: 3e-6),
            Coefficient(f"per_row_{r}", "s per row", lambda d: 1e-9, 2.0),
            Coefficient(f"per_col_{r}", "s per column", lambda d: 1e-10, 2.0),
            Coefficient(f"per_byte_{r}", "s per byte", lambda d: 1.0 / d.bandwidth),
        )
    ),
    evaluate=_evaluate_norm_regimes,
    floor_s=warm_floor_s,
    features=_plain_features,
    choices=_ELEMENT_BOUNDS,
    source="HYMELL, arXiv 2608.06723",
)

#: HYMELL's softmax (arXiv 2608.06723): traffic and reduction depth log2 N, in regimes of N.
SOFTMAX_REGIMES = Form(
    name="three-regime",
    op="softmax",
    dims=ROW_DIMS,
    range_dims=ROW_DIMS,
    coefficients=tuple(
        coefficient
        for r in range(3)
        for coefficient in (
            Coefficient(f"constant_{r}", "s", lambda d: 3e-6),
            Coefficient(f"per_level_{r}", "s per level", lambda d: 5e-7, 2.0),
            Coefficient(f"per_byte_{r}", "s per byte", lambda d: 1.0 / d.bandwidth),
        )
    ),
    evaluate=_evaluate_softmax_regimes,
    floor_s=warm_floor_s,
    features=_plain_features,
    choices=({"small": 1024.0, "large": 2048.0}, {"small": 1024.0, "large": 4096.0}),
    source="HYMELL, arXiv 2608.06723",
)
