"""The experts of one MoE layer on one rank: two grouped GEMMs and what stands around them.

    time = t0 + local experts + all experts + all pairs           (launch, sorting, gather)
         + sum over the two GEMMs of join(weights / bandwidth, tiles)
         + routed rows / bandwidth + imbalance

A GEMM works in tiles of 16 to 128 rows by 128 columns; every expert's rows are padded to whole
tiles. Its tiles run in waves over the SMs, and a tile takes a step per 64 of k: as long as the
tensor cores need, or the latency of a step where that is longer. The height of the tiles follows
the mean rows per expert, or is the fastest (a choice made on training rows).

All features of the correction are ratios, logs of ratios and shares: architecture parameters as
such are left out, because they mislead on unseen families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import (
    Array,
    Choice,
    Coefficient,
    Coefficients,
    Dims,
    Form,
    Terms,
    as_benchmarked,
    join,
    l2_miss,
)
from hymell.estimators.level1.routing import BLOCKS, independent, loads
from hymell.op_registry.primitives import Experts

#: Sizes of one rank's share: ``tokens`` before routing, ``all_pairs`` (token, expert) pairs of all
#: ranks, then of the fullest rank its ``pairs``, ``active`` experts, rows of the ``fullest`` and
#: rows padded to each block; ``width`` is the intermediate size after tensor parallelism;
#: ``cold`` 1 says that weights are never found in L2 (serving), 0 that a benchmark replays them.
MOE_DIMS: Final = (
    "tokens",
    "all_pairs",
    "pairs",
    "active",
    "fullest",
    *(f"padded_{block}" for block in BLOCKS),
    "hidden",
    "width",
    "local_experts",
    "ranks",
    "gated",
    "cold",
)

#: Of each dtype that tables name: bytes per stored weight, and the data-sheet row of its math.
FORMATS: Final[Mapping[str, tuple[float, str]]] = {
    "bfloat16": (2.0, "bf16"),
    "float16": (2.0, "fp16"),
    "float8_e4m3": (1.0, "fp8"),
    "float8_block128": (bytes_per_element("float8_block128"), "fp8"),
    "int4_wo": (bytes_per_element("int4_g128_sym"), "bf16"),
    "w4a16_mxfp4": (bytes_per_element("mxfp4"), "bf16"),
    "w4a8_mxfp4_mxfp8": (bytes_per_element("mxfp4"), "fp8"),
    "nvfp4": (bytes_per_element("nvfp4"), "fp4"),
}

#: Height of the tiles by mean rows per expert: (largest mean, rows).
_RULES: Final[Mapping[str, tuple[tuple[float, int], ...]]] = {
    "fine": ((16, 16), (32, 32), (96, 64), (np.inf, 128)),
}

_COLUMNS = 128
_K_STEP = 64

_COEFFICIENTS: Final = (
    Coefficient("t0", "s", lambda d: 15e-6, 0.7),
    Coefficient("local_expert_s", "s per expert", lambda d: 5e-9, 1.5),
    Coefficient("expert_s", "s per expert of all ranks", lambda d: 1e-9, 1.5),
    Coefficient("pair_s", "s per pair", lambda d: 1e-10, 1.5),
    Coefficient("hbm_bandwidth", "byte/s", lambda d: 0.8 * d.bandwidth, 0.25),
    Coefficient("l2_bandwidth", "byte/s", lambda d: 1.5 * d.bandwidth, 0.5),
    Coefficient("l2_capacity", "share of L2", lambda d: 0.7, 0.5),
    Coefficient("l2_width", "1", lambda d: 0.25),
    Coefficient("efficiency", "share of peak", lambda d: 0.6, 0.5),
    Coefficient("low_tile", "1", lambda d: 0.5),
    Coefficient("step_s", "s per step", lambda d: 2e-7),
    Coefficient("tile_s", "s per tile", lambda d: 1e-6),
    Coefficient("tiles_per_sm", "1", lambda d: 2.0, 0.7),
    Coefficient("quantised", "1", lambda d: 0.5),
    Coefficient("overlap", "1", lambda d: 1.0, 0.6),
    Coefficient("row_bandwidth", "share of bandwidth", lambda d: 0.5),
    Coefficient("gather", "share of bytes of all pairs", lambda d: 0.2, 2.0),
    Coefficient("imbalance_s", "s", lambda d: 2e-7, 1.5),
    Coefficient("misaligned", "1", lambda d: 0.3, 1.5),
)


def expert_dims(primitive: Experts, *, ranks: int = 1) -> Dims:
    """`MOE_DIMS` of a primitive on the fullest of ``ranks``: independent routing, cold weights.

    ``primitive`` holds the experts of all ranks and the width of one rank's share of an expert.
    """
    tokens = np.maximum(np.atleast_1d(np.asarray(primitive.tokens, float)), 1.0)
    constants = (primitive.top_k, primitive.experts, ranks, primitive.skew)
    columns = [np.ceil(tokens), *(np.full(len(tokens), float(value)) for value in constants)]
    return moe_dims(
        loads(independent, *columns),
        tokens=tokens,
        top_k=primitive.top_k,
        experts=primitive.experts,
        ranks=ranks,
        hidden=primitive.hidden,
        width=primitive.intermediate,
        gated=primitive.gated,
        cold=1.0,
    )


def moe_dims(
    loads_of_rank: tuple[Array, Array, Array, tuple[Array, ...]],
    *,
    tokens: Array,
    top_k: Any,
    experts: Any,
    ranks: Any,
    hidden: Any,
    width: Any,
    gated: Any,
    cold: float,
) -> Dims:
    """`MOE_DIMS` from what `routing.loads` gives and the sizes, arrays or numbers."""
    pairs, active, fullest, padded = loads_of_rank
    local = np.asarray(experts, float) / ranks
    values = (tokens, tokens * top_k, pairs, active, fullest, *padded)
    columns = np.broadcast_arrays(*values, hidden, width, local, ranks, gated, cold)
    return {name: np.asarray(a, float) for name, a in zip(MOE_DIMS, columns, strict=True)}


@dataclass(frozen=True, slots=True)
class _Gemms:
    """Both grouped GEMMs at one height of tiles: seconds, and tiles per SM of each."""

    time_s: Array
    memory_s: Array
    compute_s: Array
    block: Array
    padded: Array
    filled: tuple[Array, Array]


def _weights(dims: Dims, weight_bytes: float) -> Array:
    """Bytes of the active experts."""
    matrices = 2.0 + dims["gated"]
    return dims["active"] * matrices * dims["width"] * dims["hidden"] * weight_bytes


def _gemms(
    c: Coefficients,
    dims: Dims,
    device: Device,
    block: Array,
    padded: Array,
    weight_bytes: float,
    peak: float,
) -> _Gemms:
    miss = _miss(c, dims, device, weight_bytes)
    bandwidth = 1.0 / ((1.0 - miss) / c["l2_bandwidth"] + miss / c["hbm_bandwidth"])
    slow = np.where(dims["width"] % 16 > 0, 1.0 + c["misaligned"], 1.0)
    efficiency = c["efficiency"] / (1.0 + c["low_tile"] * (128.0 / block - 1.0) / 7.0)
    step_s = 2.0 * block * _COLUMNS * _K_STEP * device.sm_count / (peak * efficiency)
    share = min(c["quantised"], 1.0)
    time_s = memory_s = compute_s = np.zeros_like(padded)
    filled = []
    hidden, width = dims["hidden"], dims["width"]
    for n, k in (((1.0 + dims["gated"]) * width, hidden), (hidden, width)):
        tiles = padded / block * np.ceil(n / _COLUMNS) / device.sm_count
        steps = np.ceil(k / _K_STEP)
        waves = share * np.ceil(tiles) + (1.0 - share) * np.maximum(tiles, 1.0)
        latency = np.maximum(tiles / c["tiles_per_sm"], 1.0) * (steps * c["step_s"] + c["tile_s"])
        compute = join(waves * steps * step_s, latency, 2.0) * slow
        memory = dims["active"] * n * k * weight_bytes / bandwidth * slow
        time_s = time_s + join(memory, compute, 1.0 + c["overlap"])
        memory_s, compute_s = memory_s + memory, compute_s + compute
        filled.append(tiles)
    return _Gemms(time_s, memory_s, compute_s, block, padded, (filled[0], filled[1]))


def _pick(index: NDArray[np.int64], tried: list[_Gemms]) -> _Gemms:
    """Row by row the one that ``index`` says."""

    def of(columns: list[Array]) -> Array:
        return np.asarray(np.choose(index, columns))

    return _Gemms(
        of([one.time_s for one in tried]),
        of([one.memory_s for one in tried]),
        of([one.compute_s for one in tried]),
        of([one.block for one in tried]),
        of([one.padded for one in tried]),
        (of([one.filled[0] for one in tried]), of([one.filled[1] for one in tried])),
    )


def _miss(c: Coefficients, dims: Dims, device: Device, weight_bytes: float) -> Array:
    warm = l2_miss(_weights(dims, weight_bytes), device.l2_bytes, c["l2_capacity"], c["l2_width"])
    return np.maximum(warm, dims["cold"])


def _mean_rows(dims: Dims) -> Array:
    return dims["all_pairs"] / (dims["local_experts"] * dims["ranks"])


def _evaluate(
    c: Coefficients, dims: Dims, device: Device, choice: Choice, *, weight_bytes: float, math: str
) -> Terms:
    peak = device.peak(math)
    padded = [dims[f"padded_{block}"] for block in BLOCKS]
    at = partial(_gemms, c, dims, device, weight_bytes=weight_bytes, peak=peak)
    if choice["rule"] == "fastest":
        tried = [at(np.full_like(p, b), p) for b, p in zip(BLOCKS, padded, strict=True)]
        index = np.argmin([one.time_s for one in tried], axis=0)
        gemms = _pick(index, tried)
    else:
        rule = _RULES[str(choice["rule"])]
        found = np.searchsorted([limit for limit, _ in rule[:-1]], _mean_rows(dims))
        index = np.array([BLOCKS.index(rows) for _, rows in rule])[found]
        gemms = at(np.asarray(BLOCKS, float)[index], np.choose(index, padded))
    row_bytes = 2.0 * (2.0 * dims["hidden"] + 1.5 * (1.0 + dims["gated"]) * dims["width"])
    mine = dims["pairs"] * row_bytes / (device.bandwidth * c["row_bandwidth"])
    rows_s = mine + c["gather"] * dims["all_pairs"] * row_bytes / device.bandwidth
    launch = (
        c["t0"]
        + c["local_expert_s"] * dims["local_experts"]
        + c["expert_s"] * dims["local_experts"] * dims["ranks"]
        + c["pair_s"] * dims["all_pairs"]
    )
    imbalance = c["imbalance_s"] * dims["fullest"] * dims["active"] / dims["pairs"]
    extra = {
        "rows": rows_s,
        "miss": _miss(c, dims, device, weight_bytes),
        "weights": _weights(dims, weight_bytes),
        "block": gemms.block,
        "padded": gemms.padded,
        "filled_up": gemms.filled[0],
        "filled_down": gemms.filled[1],
    }
    total = launch + gemms.time_s + rows_s + imbalance
    return Terms(total, launch, gemms.memory_s + rows_s, gemms.compute_s, extra)


def _floor_s(dims: Dims, device: Device, *, weight_bytes: float, math: str) -> Array:
    """Weights that L2 cannot hold at the data-sheet bandwidth, or the FLOPs at the peak."""
    weights = _weights(dims, weight_bytes)
    held = np.where(dims["cold"] > 0, 0.0, device.l2_bytes)
    flops = 2.0 * dims["pairs"] * (2.0 + dims["gated"]) * dims["width"] * dims["hidden"]
    return np.maximum(np.maximum(weights - held, 0.0) / device.bandwidth, flops / device.peak(math))


def _features(dims: Dims, terms: Terms, device: Device) -> Array:
    extra, total = terms.extra, terms.time_s
    pairs, active, width = dims["pairs"], dims["active"], dims["width"]
    up, down = extra["filled_up"], extra["filled_down"]

    def share(part: Array) -> Array:
        return np.log(part / total + 1e-3)

    columns = (
        np.log2(_mean_rows(dims)),
        np.log2(pairs / active),
        np.log2(dims["fullest"] * active / pairs),
        np.log2(extra["padded"] / pairs),
        np.log2(extra["block"]),
        np.log2(active / dims["local_experts"]),
        np.log2(dims["tokens"]),
        np.log2(dims["all_pairs"] / pairs),
        np.log2(width / dims["hidden"]),
        share(terms.launch_s),
        share(terms.memory_s),
        share(terms.compute_s),
        share(extra["rows"]),
        np.log(total / terms.launch_s),
        extra["miss"],
        np.clip(np.log2(extra["weights"] / device.l2_bytes), -8.0, 8.0),
        np.log2(up),
        np.log2(down),
        np.ceil(up) / (up + 0.2),
        np.ceil(down) / (down + 0.2),
        *((width % block > 0).astype(float) for block in (16, 64, 128)),
        np.log(np.ceil(width / _COLUMNS) * _COLUMNS / width),
        dims["gated"],
    )
    return np.column_stack(columns)


@cache
def moe_form(dtype: str) -> Form:
    """The form for experts stored and computed in a dtype of `FORMATS`.

    Raises HymellError for any other dtype, naming those there are.
    """
    if dtype not in FORMATS:
        raise HymellError(f"no MoE form for dtype {dtype!r}; there are: {', '.join(FORMATS)}")
    weight_bytes, math = FORMATS[dtype]
    return Form(
        name=f"moe-tile-{dtype}",
        op="moe",
        dims=MOE_DIMS,
        range_dims=("tokens", "all_pairs", "hidden", "width", "local_experts"),
        coefficients=_COEFFICIENTS,
        evaluate=partial(_evaluate, weight_bytes=weight_bytes, math=math),
        floor_s=partial(_floor_s, weight_bytes=weight_bytes, math=math),
        features=_features,
        choices=tuple({"rule": rule} for rule in (*_RULES, "fastest")),
        as_measured=as_benchmarked,
        source="grouped tiles in waves beside an L2/HBM roofline; docs/estimators/moe.md",
    )
