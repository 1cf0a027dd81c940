"""GEMM as tiles of C on streaming multiprocessors: the default level-1 form.

C (m x n) is cut into tiles; each SM walks K for its tiles, bound by its tensor cores or by the
shared memory that feeds them; small grids split K. The best tile of the family's menu runs, while
A, B and C move through L2 and DRAM:

    T = launch + min(join(tile, memory), join(split tile, memory) + split_launch)

Arithmetic follows the dtype of ``dims``: float64 for fitting, float32 for pricing in bulk. Blocks
of about 8k rows keep the work in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

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
from hymell.estimators.level1.gemm_formats import GemmFormat, of

#: ``copies`` is how many distinct B matrices are in flight: the tables rotate 5 or 6 so that small
#: weights do not stay in L2, and in serving it is infinite (every layer has its own weights).
DIMS: Final = ("m", "n", "k", "batch", "copies")

#: More copies than any table rotates say nothing about which kernel runs, so that the correction
#: sees the time at this many: cold weights cost what the analytical form says they add.
_COPIES_SEEN: Final = 6.0

_DEEPEST_SPLIT: Final = 32.0
_NEVER: Final = 1e30
_K_STEP: Final = 64.0

#: Sides of C tiles and the largest tile (elements): accumulators in registers, in tensor memory on
#: Blackwell (CUTLASS tile shapes; cuBLAS kernel names).
_MENUS: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]] = {
    "hopper": ((8, 16, 32, 64, 96, 128, 160, 192, 256), (64, 128, 192, 256), 40960),
    "blackwell": ((8, 16, 32, 64, 96, 128, 192, 256), (128, 256), 65536),
    "ampere": ((32, 64, 128, 256), (64, 128, 256), 32768),
}
_MENU_OF: Final = {"hopper": "hopper", "blackwell": "blackwell"}

#: Multiple that K is padded to: 128 bytes of bf16 per TMA box, half of it with cp.async.
_K_PADDING: Final = {"hopper": 64.0, "blackwell": 64.0}

#: Whether K may be split anywhere, or as cuBLAS does before Hopper: when m n k reaches 2^21 or K
#: is deep (read off the L40S tables, where the step is tenfold).
_CHOICES: Final[tuple[Choice, ...]] = (
    {"split_from_mnk": 0.0, "split_from_k": 0.0},
    {"split_from_mnk": 2.0**21, "split_from_k": 8192.0},
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Seconds of the tile loop without and with a split of K."""

    whole_s: Array
    split_s: Array


@cache
def tiles(family: str) -> tuple[tuple[int, int], ...]:
    """The (rows, columns) of C that one block may compute, transposes included."""
    rows, columns, largest = _MENUS[_MENU_OF.get(family, "ampere")]
    kept = {(a, b) for a in rows for b in columns if a * b <= largest}
    return tuple(sorted(kept | {(b, a) for a, b in kept}))


def _join(a: Array, b: Array, power: float) -> Array:
    """`form.join` by exponentials, which numpy vectorises in float32 where it has no power."""
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / high
    return high * np.exp(np.log(1.0 + np.exp(power * np.log(ratio))) * (1.0 / power))


def _miss(footprint: Array, capacity_bytes: float, width: float) -> Array:
    """`form.l2_miss` by exponentials; 1 for an infinite footprint."""
    return 1.0 / (1.0 + np.exp(np.log(footprint * (1.0 / capacity_bytes)) * (-1.0 / width)))


def _tile_time(
    c: Coefficients, dims: Dims, device: Device, fmt: GemmFormat, throttle: Array
) -> _Parts:
    """Seconds of the fastest tile, unsplit and with the best split of K.

    A split into s parts is taken as continuous: s balances K/s against writing and adding s
    partial results, and never makes more work than one wave.
    """
    m, n, k, batch = dims["m"], dims["n"], dims["k"], dims["batch"]
    sms = float(device.sm_count)
    padding = _K_PADDING.get(device.family, 32.0)
    steps = np.ceil(k / padding) * (padding / _K_STEP)
    depth = steps * throttle
    rate = c["tensor_rate"] / sms
    tail = min(c["wave"], 1.0)
    reduce_s = m * n * batch * (4.0 / c["split_rate"])
    balance = np.sqrt(depth / reduce_s)
    most = np.minimum(steps * 0.5, _DEEPEST_SPLIT)
    menu = tiles(device.family)
    down = {a: np.ceil(m / a) for a in {a for a, _ in menu}}
    across = {b: np.ceil(n / b) * batch * (1.0 / sms) for b in {b for _, b in menu}}
    whole = np.full_like(m, np.inf)
    split = np.full_like(m, np.inf)
    for a, b in menu:
        step = max(
            2.0 * a * b * _K_STEP / rate, (a + b) * _K_STEP * fmt.tile_bytes / c["feed_rate"]
        )
        epilogue = c["epilogue"] * (a * b / 16384.0)
        waves = down[a] * across[b]
        loop = depth * step
        padded = np.maximum(waves, 1.0) * (1.0 - tail) + np.ceil(waves) * tail
        np.minimum(whole, padded * (loop + epilogue), out=whole)
        parts = np.minimum(np.minimum(balance * float(np.sqrt(step)), most), 1.0 / waves)
        parts = np.maximum(parts, 1.0)
        np.minimum(split, padded * (loop / parts + epilogue) + parts * reduce_s, out=split)
    return _Parts(whole, split)


def _memory_time(
    c: Coefficients, device: Device, sizes: tuple[Array, Array, Array], copies: Array
) -> tuple[Array, Array, Array]:
    """Seconds of DRAM and L2 traffic, and the L2 miss shares of B and of A and C."""
    a_bytes, b_bytes, out_bytes = sizes
    capacity, width = c["l2_share"] * device.l2_bytes, c["l2_width"]
    live = a_bytes + out_bytes
    b_miss = _miss(copies * b_bytes + live, capacity, width)
    miss = _miss(live, capacity, width)
    dram = (b_bytes * b_miss + live * miss) * (1.0 / c["dram_rate"])
    return dram + out_bytes * (1.0 - miss) * (1.0 / c["l2_rate"]), b_miss, miss


def _evaluate(fmt: GemmFormat) -> Callable[[Coefficients, Dims, Device, Choice], Terms]:
    def evaluate(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
        m, k, copies = dims["m"], dims["k"], dims["copies"]
        rows, work = m * dims["batch"], m * dims["n"] * dims["k"]
        sizes = _bytes(dims, fmt)
        flops = 2.0 * work * dims["batch"]
        throttle = 1.0 + c["throttle"] * (flops / (flops + c["throttle_flops"]))
        parts = _tile_time(c, dims, device, fmt, throttle)
        split_s = parts.split_s
        split_from = float(choice["split_from_mnk"])
        if split_from:
            # a single row runs a matrix-vector kernel, which always splits K
            allowed = (work >= split_from) | (k > float(choice["split_from_k"])) | (m == 1)
            split_s = np.where(allowed, split_s, split_s.dtype.type(_NEVER))
        launch = np.full_like(m, c["launch"])
        if fmt.quantises:
            launch = launch + _quantise_time(c, rows, k, device)

        def total(memory_s: Array) -> Array:
            whole = _join(parts.whole_s, memory_s, c["overlap"])
            split = _join(split_s, memory_s, c["overlap"]) + c["split_launch"]
            return launch + np.minimum(whole, split)

        seen = np.minimum(copies, _COPIES_SEEN)
        memory_s, b_miss, miss = _memory_time(c, device, sizes, seen)
        time_s = seen_s = total(memory_s)
        extra = {"b_miss": b_miss, "miss": miss, "split_s": split_s, "seen_memory_s": memory_s}
        if bool((copies > _COPIES_SEEN).any()):
            memory_s, _, _ = _memory_time(c, device, sizes, copies)
            time_s = total(memory_s)
        compute_s = np.minimum(parts.whole_s, split_s)
        extra |= {"seen_s": seen_s, "whole_s": parts.whole_s}
        return Terms(time_s, launch, memory_s, compute_s, extra)

    return evaluate


def _quantise_time(c: Coefficients, rows: Array, k: Array, device: Device) -> Array:
    """Seconds to scale and round A before the product: a row per block, then 3 bytes per element.

    A 16-bit element is read and one byte written; two blocks share an SM.
    """
    waves = np.maximum(rows * (0.5 / device.sm_count), 1.0)
    per_row = k * (c["quantise_row"] / 1024.0) * waves
    return per_row + rows * k * (3.0 / c["quantise_rate"]) + rows * (c["scale_row"] / 1000.0)


def _bytes(dims: Dims, fmt: GemmFormat) -> tuple[Array, Array, Array]:
    m, n, k, batch = dims["m"], dims["n"], dims["k"], dims["batch"]
    a, b, out = fmt.a_bytes * batch, fmt.b_bytes * batch, fmt.out_bytes * batch
    return m * k * a, n * k * b, m * n * out


def _floor(fmt: GemmFormat) -> Callable[[Dims, Device], Array]:
    def floor_s(dims: Dims, device: Device) -> Array:
        """Data-sheet seconds: FLOPs at the peak, or the bytes that L2 cannot be holding."""
        a_bytes, b_bytes, out_bytes = _bytes(dims, fmt)
        flops = a_bytes * dims["n"] * (2.0 / fmt.a_bytes)
        live = a_bytes + out_bytes
        kept = device.l2_bytes / (dims["copies"] * b_bytes + live)
        cold = b_bytes * np.maximum(1.0 - kept, 0.0) + np.maximum(live - device.l2_bytes, 0.0)
        return np.maximum(flops * (1.0 / device.peak(fmt.math)), cold * (1.0 / device.bandwidth))

    return floor_s


#: Grids whose last wave the correction sees, (rows, columns) of a tile.
_GRIDS: Final = ((128, 128), (128, 256), (64, 128), (256, 128))
_ROW_PADDINGS: Final = (16, 64, 128, 256)
#: (centre, reach below, reach above) in octaves: where libraries switch kernels.
_N_STEPS: Final = ((6, 1.0, 1.0), (8, 0.5, 0.5), (10, 0.5, 0.5), (12, 0.5, 0.5))
_K_STEPS: Final = ((9, 0.5, 0.5), (11, 1.0, 1.0), (12, 0.5, 0.5), (13, 0.0, 0.3))
_WORK_STEPS: Final = ((21, 1.0, 0.0), (21, 0.2, 0.0))
_M_EDGES: Final = (1, 8, 16, 32, 64)


def features(dims: Dims, terms: Terms, device: Device) -> Array:
    """(rows, 38): sizes and terms in logs, padding and tail of common grids, and switch points."""
    m, n, k, batch = dims["m"], dims["n"], dims["k"], dims["batch"]
    extra = terms.extra
    seen_s = extra["seen_s"]
    log_m, log_n, log_k = np.log2(m), np.log2(n), np.log2(k)
    work = log_m + log_n + log_k
    per_second = 1.0 / seen_s
    columns = [
        log_m,
        log_n,
        log_k,
        np.log2(batch),
        np.log(seen_s),
        np.log(extra["whole_s"] * per_second),
        np.log(extra["seen_memory_s"] * per_second),
        np.clip(np.log(extra["split_s"] * per_second), -1.0, 3.0),
        extra["b_miss"],
        extra["miss"],
    ]
    columns += [np.log2(np.ceil(m / side) * side) - log_m for side in _ROW_PADDINGS]
    for a, b in _GRIDS:
        waves = np.ceil(m / a) * np.ceil(n / b) * batch * (1.0 / device.sm_count)
        columns += [np.log(np.ceil(waves) / waves), np.log2(waves)]
    columns += [np.clip(m - edge, 0.0, 1.0) for edge in _M_EDGES]
    columns.append(np.clip(log_m - 4.0, -1.0, 1.0))
    columns += [np.clip(log_n - at, -low, high) for at, low, high in _N_STEPS]
    columns += [np.clip(log_k - at, -low, high) for at, low, high in _K_STEPS]
    columns += [np.clip(work - at, -low, high) for at, low, high in _WORK_STEPS]
    return np.stack(columns).T


def _relative(device: Device) -> float:
    """16-bit tensor rate of an SM relative to an H100's, which sized the priors."""
    math = "bf16" if {"bf16", "fp16"} & set(device.peak_flops) else "fp32"
    return device.peak(math) / device.sm_count / (989.4e12 / 132)


def _coefficients(fmt: GemmFormat) -> tuple[Coefficient, ...]:
    common = (
        Coefficient("launch", "s", lambda d: 2.4e-6),
        Coefficient(
            "tensor_rate",
            "FLOP/s",
            lambda d: 0.8 * d.peak(fmt.math),
            most=lambda d: d.peak(fmt.math),
        ),
        Coefficient(
            "dram_rate", "bytes/s", lambda d: 0.85 * d.bandwidth, most=lambda d: d.bandwidth
        ),
        Coefficient("feed_rate", "bytes/s per SM", lambda d: 118e9 * _relative(d)),
        Coefficient("epilogue", "s per 128x128 tile", lambda d: 0.8e-6),
        Coefficient("overlap", "1", lambda d: 3.0, least=lambda d: 1.0),
        Coefficient("split_launch", "s", lambda d: 2.6e-6),
        Coefficient("split_rate", "bytes/s", lambda d: 1.8 * d.bandwidth),
        Coefficient("l2_share", "1", lambda d: 0.5),
        Coefficient("l2_width", "1", lambda d: 0.25),
        Coefficient("throttle", "1", lambda d: 0.2),
        Coefficient("throttle_flops", "FLOP", lambda d: 1e11),
        Coefficient("l2_rate", "bytes/s", lambda d: 1.2 * d.bandwidth, least=lambda d: d.bandwidth),
        Coefficient("wave", "1", lambda d: 0.15 if d.family in _MENU_OF else 0.8),
    )
    if not fmt.quantises:
        return common
    return (
        *common,
        Coefficient("quantise_row", "s per 1024 columns", lambda d: 0.3e-6),
        Coefficient("quantise_rate", "bytes/s", lambda d: d.bandwidth),
        Coefficient("scale_row", "s per 1000 rows", lambda d: 0.3e-6),
    )


@cache
def tile_form(dtype: str) -> Form:
    """The tile form for a dtype of `gemm_formats.FORMATS`; HymellError for another.

    ``dims``: m, n, k, ``batch`` (products, each with its own B) and ``copies`` (distinct B in
    flight; infinity in serving), float arrays.
    """
    fmt = of(dtype)
    return Form(
        name=f"tile-{fmt.name}",
        op="gemm",
        dims=DIMS,
        range_dims=("m", "n", "k"),
        coefficients=_coefficients(fmt),
        evaluate=_evaluate(fmt),
        floor_s=_floor(fmt),
        features=features,
        choices=_CHOICES,
        source="tiles, waves and split-K: NVIDIA, Matrix Multiplication Background User's Guide",
    )
