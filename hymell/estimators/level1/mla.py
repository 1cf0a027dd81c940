"""Multi-head latent attention with DeepSeek-V3's widths: kernels and whole modules.

Prefill expands the latent and runs flash attention with as many key as query heads (keys of 192,
values of 128), except in libraries that absorb there too. Decode is absorbed: all heads of a
sequence read one latent of 576, whose first 512 are the value (arXiv 2405.04434, 2412.19437). A
module adds the projections around the kernel:

T_module = launch + join(projections at the tensor peak, their weights / bandwidth)
         + activations / bandwidth + T_kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from hymell.estimators.level1.attention_decode import l2_prior
from hymell.estimators.level1.attention_prefill import math_peak
from hymell.estimators.level1.attention_tiles import dynamic_splits, modern, tile
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

KEY: Final = 192.0
VALUE: Final = 128.0
LATENT: Final = 512.0
ROPE: Final = 64.0
QUERY_RANK: Final = 1536.0
NO_ROPE: Final = 128.0
HIDDEN: Final = 7168.0

#: Keys of a tile of an absorbed decoding kernel.
_DECODE_KEYS: Final = 64.0
_LONG_S: Final = 3e-3

DIMS: Final = ("batch", "q_len", "kv_len", "heads", "q_bytes", "kv_bytes", "cold")
MODULE_DIMS: Final = (*DIMS, "weight_bytes")
_RANGE: Final = ("batch", "q_len", "kv_len", "heads")

PREFILL_COEFFICIENTS: Final = (
    Coefficient("launch", "us", lambda _: 8.0),
    Coefficient("sequences", "us per 100 sequences", lambda _: 0.3, 1.5),
    Coefficient("bandwidth", "ratio to data sheet", lambda _: 0.8, 0.3),
    Coefficient("task", "key tiles per task", lambda _: 2.0),
    Coefficient("tail", "ratio to the longest task", lambda _: 0.15),
    Coefficient("throttle", "ratio", lambda _: 0.05),
    Coefficient("overlap", "exponent minus 1", lambda _: 0.5, 0.5),
    Coefficient("tile", "ratio to tensor peak", lambda _: 1.5),
)

DECODE_COEFFICIENTS: Final = (
    Coefficient("launch", "us", lambda _: 8.0),
    Coefficient("sequences", "us per 100 sequences", lambda _: 0.3, 1.5),
    Coefficient("task", "us", lambda _: 2.0, 1.5),
    Coefficient("task_heads", "us per full tile of heads", lambda _: 1.0, 1.5),
    Coefficient("l2_bandwidth", "GB/s per SM", l2_prior, 0.5),
    Coefficient("bandwidth", "ratio to data sheet", lambda _: 0.8, 0.3),
    Coefficient("l2_capacity", "ratio to data sheet", lambda _: 0.8, 0.3),
    Coefficient("l2_width", "exponent", lambda _: 0.12, 1.0),
    Coefficient("overlap", "exponent minus 1", lambda _: 1.0, 0.5),
    Coefficient("tile", "ratio to tensor peak", lambda _: 2.0),
    Coefficient("merge", "us", lambda _: 1.0, 1.5),
)

#: What a module adds.
_MODULE: Final = (
    Coefficient("projections", "ratio to tensor peak", lambda _: 1.5, 0.5),
    Coefficient("weights", "ratio to data sheet bandwidth", lambda _: 0.7, 0.5),
    Coefficient("activations", "passes over what lies between the kernels", lambda _: 3.0),
    Coefficient("module", "us", lambda _: 20.0, 1.5),
    Coefficient("quantise", "us per 1000 new tokens", lambda _: 0.5, 1.5),
)


def _shares(terms: Terms, names: tuple[str, ...]) -> list[Array]:
    parts = [terms.launch_s, terms.compute_s, terms.memory_s, *(terms.extra[n] for n in names)]
    return [np.log(part / terms.time_s + 1e-3) for part in parts]


def _sizes(dims: Dims, terms: Terms) -> list[Array]:
    waves = terms.extra["waves"]
    return [
        np.log2(dims["batch"]),
        np.log2(dims["q_len"]),
        np.log2(dims["kv_len"]),
        np.log2(dims["heads"]),
        np.log(terms.time_s * 1e6),
        np.log(waves),
        np.minimum(np.log(np.ceil(waves) / waves), 3.0),
        np.log(terms.extra["splits"]),
        np.log(terms.extra["imbalance"]),
        np.clip(np.log(terms.extra["footprint"]), -8.0, 4.0),
    ]


def prefill(coefficients: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    """Flash attention over expanded keys and values, or over the latents (``absorbed``)."""
    c = coefficients
    sms = float(device.sm_count)
    ones = np.ones_like(dims["heads"])
    absorbed = bool(choice["absorbed"])
    tiling = tile(
        dims["batch"],
        dims["q_len"],
        dims["kv_len"],
        ones if absorbed else dims["heads"],
        dims["heads"] if absorbed else ones,
        0.0 * ones,
        (64.0 if absorbed else 128.0) * ones,
        (128.0 if modern(device) and not absorbed else 64.0) * ones,
        causal=True,
    )
    width = 2.0 * LATENT + ROPE if absorbed else KEY + VALUE
    splits = ones
    if choice["split"]:
        splits = dynamic_splits(tiling.tasks, tiling.longest, sms)
    waves = tiling.tasks * splits / sms
    span = tiling.makespan(c["task"], sms, splits)
    span = span + c["tail"] * tiling.longest / splits * (1.0 - 1.0 / np.maximum(waves, 1.0))
    per_tile = 2.0 * tiling.m * tiling.n * width * sms
    compute = span * c["tile"] * per_tile / math_peak(dims["kv_bytes"], device)
    compute = compute * (1.0 + c["throttle"] * compute / (compute + _LONG_S))
    moved = absorbed_bytes(dims) if absorbed else expanded_bytes(dims)
    memory = moved / (c["bandwidth"] * device.bandwidth)
    launch = 1e-6 * (c["launch"] + c["sequences"] * dims["batch"] / 100.0)
    return Terms(
        launch + join(compute, memory, 1.0 + c["overlap"]),
        launch,
        memory,
        compute,
        {
            "waves": waves,
            "splits": splits,
            "imbalance": span / (np.maximum(tiling.total, 1.0) / sms),
            "footprint": moved / device.l2_bytes,
        },
    )


def decode(coefficients: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    """Absorbed attention: one latent per sequence, read by all its heads."""
    c = coefficients
    sms = float(device.sm_count)
    tile_rows = float(choice["rows"])
    rows = dims["q_len"] * dims["heads"]
    blocks = np.ceil(dims["kv_len"] / _DECODE_KEYS)
    tasks = dims["batch"] * np.ceil(rows / tile_rows)
    splits = np.minimum(dynamic_splits(tasks, blocks, sms), float(choice["most_splits"]))
    waves = tasks * splits / sms
    rounds = np.maximum(waves, 1.0)
    per_task = c["task"] + c["task_heads"] * np.minimum(rows, tile_rows) / tile_rows
    per_tile = 2.0 * tile_rows * _DECODE_KEYS * (2.0 * LATENT + ROPE) * sms
    tile_s = c["tile"] * per_tile / math_peak(dims["kv_bytes"], device)
    compute = rounds * (per_task * 1e-6 + np.ceil(blocks / splits) * tile_s)
    cache = latent_bytes(dims)
    missed = l2_miss(cache, device.l2_bytes, c["l2_capacity"], c["l2_width"])
    missed = np.where(dims["cold"] > 0, 1.0, missed)
    near = c["l2_bandwidth"] * 1e9 * device.sm_count
    far = c["bandwidth"] * device.bandwidth
    memory = cache * ((1.0 - missed) / near + missed / far) + decode_row_bytes(dims) / near
    launch = 1e-6 * (
        c["launch"] + c["sequences"] * dims["batch"] / 100.0 + c["merge"] * (splits > 1)
    )
    return Terms(
        launch + join(compute, memory, 1.0 + c["overlap"]),
        launch,
        memory,
        compute,
        {
            "waves": waves,
            "splits": splits,
            "imbalance": rounds / waves,
            "footprint": cache / device.l2_bytes,
        },
    )


def expanded_bytes(dims: Dims) -> Array:
    """Bytes of queries, outputs, and the keys and values of every head."""
    heads = dims["batch"] * dims["heads"]
    queries = dims["q_len"] * (KEY * dims["q_bytes"] + 2.0 * VALUE)
    return heads * (queries + dims["kv_len"] * (KEY + VALUE) * dims["q_bytes"])


def absorbed_bytes(dims: Dims) -> Array:
    """Bytes of absorbed queries, latent outputs and the latents."""
    return latent_bytes(dims) + decode_row_bytes(dims)


def latent_bytes(dims: Dims) -> Array:
    """Bytes of the latents in the cache."""
    return dims["batch"] * dims["kv_len"] * (LATENT + ROPE) * dims["kv_bytes"]


def decode_row_bytes(dims: Dims) -> Array:
    """Bytes of absorbed queries and latent outputs."""
    rows = dims["batch"] * dims["q_len"] * dims["heads"]
    return rows * ((LATENT + ROPE) * dims["q_bytes"] + LATENT * 2.0)


def projection_weights(heads: Array) -> Array:
    """Weights of the projections: queries down and up, latents down and up, output."""
    down = HIDDEN * (QUERY_RANK + LATENT + ROPE)
    per_head = QUERY_RANK * KEY + LATENT * (NO_ROPE + VALUE) + VALUE * HIDDEN
    return down + heads * per_head


def projection_peak(weight_bytes: Array, device: Device) -> Array:
    """FLOP/s of the projections by bytes per weight: 2, 1 (fp8), less (fp4), if the GPU has it."""
    wide = device.peak("bf16")
    narrow = device.peak_flops.get("fp8", wide)
    narrowest = device.peak_flops.get("fp4", narrow)
    return np.select([weight_bytes < 1, weight_bytes < 2], [narrowest, narrow], default=wide)


def prefill_floor_s(dims: Dims, device: Device) -> Array:
    """Data-sheet time of the products, or of the traffic that L2 cannot hold."""
    before = dims["kv_len"] - dims["q_len"]
    pairs = dims["q_len"] * before + dims["q_len"] * (dims["q_len"] + 1.0) / 2.0
    flops = 2.0 * dims["batch"] * dims["heads"] * (KEY + VALUE) * pairs
    moved = np.minimum(expanded_bytes(dims), absorbed_bytes(dims))
    beyond = np.maximum(moved - device.l2_bytes, 0.0)
    return np.maximum(flops / math_peak(dims["kv_bytes"], device), beyond / device.bandwidth)


def decode_floor_s(dims: Dims, device: Device) -> Array:
    """Data-sheet time of the latents, less what L2 can hold unless cold; or of the products."""
    moved = absorbed_bytes(dims)
    kept = np.where(dims["cold"] > 0, 0.0, device.l2_bytes)
    pairs = dims["batch"] * dims["q_len"] * dims["heads"] * dims["kv_len"]
    flops = 2.0 * pairs * (2.0 * LATENT + ROPE)
    return np.maximum(
        np.maximum(moved - kept, 0.0) / device.bandwidth,
        flops / math_peak(dims["kv_bytes"], device),
    )


def _module(
    kernel: Callable[[Coefficients, Dims, Device, Choice], Terms],
) -> Callable[[Coefficients, Dims, Device, Choice], Terms]:
    def evaluate(coefficients: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
        c = coefficients
        core = kernel(coefficients, dims, device, choice)
        tokens = dims["batch"] * dims["q_len"]
        weights = projection_weights(dims["heads"])
        flops = 2.0 * np.ceil(tokens / 64.0) * 64.0 * weights
        compute = c["projections"] * flops / projection_peak(dims["weight_bytes"], device)
        read = weights * dims["weight_bytes"] / (c["weights"] * device.bandwidth)
        projections = join(compute, read, 2.0)
        between = 2.0 * tokens * (HIDDEN + dims["heads"] * (KEY + VALUE))
        passes = c["activations"] * between / device.bandwidth
        quantise = np.where(dims["weight_bytes"] < 2, c["quantise"] * 1e-9 * tokens, 0.0)
        launch = core.launch_s + c["module"] * 1e-6
        total = core.time_s + c["module"] * 1e-6 + projections + passes + quantise
        return Terms(
            total,
            launch,
            core.memory_s + read + passes + quantise,
            core.compute_s + compute,
            {
                **core.extra,
                "core_s": core.time_s - core.launch_s,
                "projections_s": projections,
                "weights_s": read,
            },
        )

    return evaluate


def _module_floor(
    kernel: Callable[[Dims, Device], Array],
) -> Callable[[Dims, Device], Array]:
    def floor_s(dims: Dims, device: Device) -> Array:
        weights = projection_weights(dims["heads"])
        tokens = dims["batch"] * dims["q_len"]
        kept = np.where(dims["cold"] > 0, 0.0, device.l2_bytes)
        read = np.maximum(weights * dims["weight_bytes"] - kept, 0.0) / device.bandwidth
        flops = 2.0 * tokens * weights / projection_peak(dims["weight_bytes"], device)
        return np.asarray(kernel(dims, device) + np.maximum(read, flops))

    return floor_s


def features(dims: Dims, terms: Terms, device: Device) -> Array:
    """What the residual correction of a kernel sees."""
    return np.stack([*_sizes(dims, terms), *_shares(terms, ())], axis=1)


def module_features(dims: Dims, terms: Terms, device: Device) -> Array:
    """What the residual correction of a module sees."""
    parts = ("core_s", "projections_s", "weights_s")
    tokens = np.log2(dims["batch"] * dims["q_len"])
    return np.stack([*_sizes(dims, terms), *_shares(terms, parts), tokens], axis=1)


PREFILL: Final = Form(
    name="flash-tiles",
    op="mla_prefill",
    dims=DIMS,
    range_dims=_RANGE,
    coefficients=PREFILL_COEFFICIENTS,
    evaluate=prefill,
    floor_s=prefill_floor_s,
    features=features,
    choices=tuple(
        {"absorbed": absorbed, "split": split}
        for absorbed in (False, True)
        for split in (False, True)
    ),
    as_measured=as_benchmarked,
    source="DeepSeek-V2 (arXiv 2405.04434), FlashAttention-3 (arXiv 2407.08608)",
)

DECODE: Final = Form(
    name="absorbed",
    op="mla_decode",
    dims=DIMS,
    range_dims=_RANGE,
    coefficients=DECODE_COEFFICIENTS,
    evaluate=decode,
    floor_s=decode_floor_s,
    features=features,
    choices=tuple(
        {"rows": rows, "most_splits": most} for rows in (16, 64, 128) for most in (4, 128)
    ),
    as_measured=as_benchmarked,
    source="DeepSeek-V2 (arXiv 2405.04434), FlashMLA",
)

PREFILL_MODULE: Final = replace(
    PREFILL,
    name="flash-tiles and projections",
    op="mla_prefill_module",
    dims=MODULE_DIMS,
    coefficients=(*PREFILL_COEFFICIENTS, *_MODULE),
    evaluate=_module(prefill),
    floor_s=_module_floor(prefill_floor_s),
    features=module_features,
)

DECODE_MODULE: Final = replace(
    DECODE,
    name="absorbed and projections",
    op="mla_decode_module",
    dims=MODULE_DIMS,
    coefficients=(*DECODE_COEFFICIENTS, *_MODULE),
    evaluate=_module(decode),
    floor_s=_module_floor(decode_floor_s),
    features=module_features,
)
