"""Flash attention over many new tokens: prefill (causal) and encoders (not causal).

T = launch + combine + join(busiest SM, activations and keys / bandwidth) + append.

The busiest SM walks `Tiling.makespan` tiles of keys and ``tail`` of the longest task more (tasks
are in order within a sequence, not across sequences), each tile a fixed time per head dim relative
to the tensor cores' peak; long kernels run slower by ``throttle`` (power). Where too few query
tiles fill the GPU the keys are split and a second kernel combines the parts. Benchmarks of some
libraries include the write of the new keys into the cache: ``append`` passes over them, or
``append_block`` per round of thread blocks.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from hymell.estimators.level1.attention_tiles import (
    HEAD_DIMS,
    Tiling,
    dynamic_splits,
    tile,
    tile_sizes,
)
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import (
    Array,
    Choice,
    Coefficient,
    Coefficients,
    Dims,
    Form,
    Terms,
    join,
)
from hymell.op_registry.primitives import attention_pairs

#: Kernels of this length draw the GPU's full power.
_LONG_S: Final = 3e-3

#: Threads of a block that appends to the cache, at most, and of an SM.
_APPEND_THREADS: Final = 512.0
_SM_THREADS: Final = 2048.0

DIMS: Final = (
    "batch",
    "q_len",
    "kv_len",
    "heads",
    "kv_heads",
    "head_dim",
    "window",
    "q_bytes",
    "kv_bytes",
)

_TILE_TIMES: Final = tuple(
    Coefficient(f"tile_{d}", "ratio to tensor peak", lambda _: 1.5) for d in HEAD_DIMS
)

COEFFICIENTS: Final = (
    Coefficient("launch", "us", lambda _: 8.0),
    Coefficient("sequences", "us per 100 sequences", lambda _: 0.3, 1.5),
    Coefficient("width", "us per 128 of head dim", lambda _: 1.0, 1.5),
    Coefficient("bandwidth", "ratio to data sheet", lambda _: 0.8, 0.3),
    Coefficient("append", "passes over new keys and values", lambda _: 1.0),
    Coefficient("append_block", "us per thread block", lambda _: 2.5),
    Coefficient("task", "key tiles per task", lambda _: 2.0),
    Coefficient("tail", "ratio to the longest task", lambda _: 0.15),
    Coefficient("throttle", "ratio", lambda _: 0.05),
    Coefficient("overlap", "exponent minus 1", lambda _: 0.5, 0.5),
    Coefficient("combine", "us", lambda _: 3.0),
    Coefficient("partials", "ratio to data sheet bandwidth", lambda _: 1.0, 0.5),
    Coefficient("wide_token", "us per lone token of a wide head and SM", lambda _: 20.0, 1.5),
    *_TILE_TIMES,
)


def math_peak(kv_bytes: Array, device: Device) -> Array:
    """FLOP/s of the products: in fp8 with a cache of one byte, where the GPU has it."""
    wide = device.peak("bf16")
    narrow = device.peak_flops.get("fp8", wide)
    return np.where(kv_bytes < 2, narrow, wide)


def tile_time(coefficients: Coefficients, head_dim: Array) -> Array:
    """Time of a tile relative to the tensor peak; between compiled head dims by their logarithm."""
    known = np.log([coefficients[c.name] for c in _TILE_TIMES])
    return np.asarray(np.exp(np.interp(np.log(head_dim), np.log(HEAD_DIMS), known)))


def cut(dims: Dims, device: Device, *, causal: bool, packed: bool) -> Tiling:
    """The tiling of each row; ``packed``: the query heads of a KV head share tiles.

    A lone query without a window is packed by every library: its group takes the place of the
    queries.
    """
    joint = ((dims["q_len"] == 1) & (dims["window"] == 0)) | packed
    group = np.where(joint, dims["heads"] / dims["kv_heads"], 1.0)
    sets = np.where(joint, dims["kv_heads"], dims["heads"])
    m, n = tile_sizes(dims["head_dim"], dims["kv_bytes"], device)
    return tile(
        dims["batch"],
        dims["q_len"],
        dims["kv_len"],
        sets,
        group,
        dims["window"],
        m,
        n,
        causal=causal,
    )


def evaluate(
    coefficients: Coefficients, dims: Dims, device: Device, choice: Choice, *, causal: bool
) -> Terms:
    """The form of this module."""
    c = coefficients
    sms = float(device.sm_count)
    tiling = cut(dims, device, causal=causal, packed=bool(choice["packed"]))
    splits = np.ones_like(tiling.tiles)
    if choice["split"]:
        splits = dynamic_splits(tiling.tasks, tiling.longest, sms)
    waves = tiling.tasks * splits / sms
    span = tiling.makespan(c["task"], sms, splits)
    span = span + c["tail"] * tiling.longest / splits * (1.0 - 1.0 / np.maximum(waves, 1.0))
    per_tile = 4.0 * tiling.m * tiling.n * dims["head_dim"] * sms
    compute = span * tile_time(c, dims["head_dim"]) * per_tile / math_peak(dims["kv_bytes"], device)
    compute = compute * (1.0 + c["throttle"] * compute / (compute + _LONG_S))
    outputs, keys = traffic(dims)
    bandwidth = c["bandwidth"] * device.bandwidth
    memory = (outputs + keys) / bandwidth
    append = join(
        c["append"] * new_key_bytes(dims) / bandwidth,
        c["append_block"] * 1e-6 * append_rounds(dims, device),
        2.0,
    )
    partials = 8.0 * dims["batch"] * dims["q_len"] * dims["heads"] * dims["head_dim"] * splits
    combine = np.where(
        splits > 1, c["combine"] * 1e-6 + partials / (c["partials"] * device.bandwidth), 0.0
    )
    launch = 1e-6 * (
        c["launch"] + c["sequences"] * dims["batch"] / 100.0 + c["width"] * dims["head_dim"] / 128.0
    )
    # A lone token of a wide head runs on a decoding kernel that cuts every cache, however short.
    wide = (dims["head_dim"] > HEAD_DIMS[-2]) & (dims["q_len"] == 1)
    combine = combine + c["wide_token"] * 1e-6 * wide * tiling.tasks / sms
    total = launch + combine + join(compute, memory, 1.0 + c["overlap"]) + append
    rows = dims["batch"] * dims["heads"] * dims["q_len"]
    return Terms(
        total,
        launch,
        memory + append,
        compute,
        {
            "waves": waves,
            "splits": splits,
            "padding": tiling.tasks * tiling.m / rows,
            "longest": tiling.longest,
            "imbalance": span / (np.maximum(tiling.total, 1.0) / sms),
            "combine_s": combine,
            "append_s": append,
        },
    )


def append_rounds(dims: Dims, device: Device) -> Array:
    """Rounds of thread blocks that write new keys into a paged cache, one block per token.

    A block has a thread per element of the token's keys, at most 512 (vLLM's reshape_and_cache), so
    narrow keys leave room for more blocks on an SM.
    """
    threads = np.minimum(dims["kv_heads"] * dims["head_dim"], _APPEND_THREADS)
    return dims["batch"] * dims["q_len"] * threads / (_SM_THREADS * device.sm_count)


def traffic(dims: Dims) -> tuple[Array, Array]:
    """(bytes of queries and outputs, bytes of keys and values) that have to move once."""
    per_head = dims["batch"] * dims["head_dim"]
    outputs = per_head * dims["q_len"] * dims["heads"] * (dims["q_bytes"] + 2.0)
    reach = np.where(
        dims["window"] > 0,
        np.minimum(dims["kv_len"], dims["window"] + dims["q_len"] - 1.0),
        dims["kv_len"],
    )
    return outputs, 2.0 * per_head * reach * dims["kv_heads"] * dims["kv_bytes"]


def new_key_bytes(dims: Dims) -> Array:
    """Bytes of the new tokens' keys and values as the layer computes them (16 bit)."""
    return 4.0 * dims["batch"] * dims["q_len"] * dims["kv_heads"] * dims["head_dim"]


def pairs(dims: Dims, *, causal: bool) -> Array:
    """(query, key) pairs of one sequence that the mask lets through."""
    window = np.where(dims["window"] > 0, dims["window"], np.inf)
    if not causal:
        return np.asarray(dims["q_len"] * np.minimum(dims["kv_len"], 2.0 * window + 1.0))
    window = np.minimum(window, dims["kv_len"])
    return np.asarray(attention_pairs(dims["q_len"], dims["kv_len"], True, window))  # type: ignore[arg-type]


def floor_s(dims: Dims, device: Device, *, causal: bool) -> Array:
    """Data-sheet time: products at the tensor peak, or the traffic that L2 cannot hold."""
    flops = 4.0 * dims["batch"] * dims["heads"] * dims["head_dim"] * pairs(dims, causal=causal)
    outputs, keys = traffic(dims)
    beyond = np.maximum(outputs + keys - device.l2_bytes, 0.0)
    return np.maximum(flops / math_peak(dims["kv_bytes"], device), beyond / device.bandwidth)


def features(dims: Dims, terms: Terms, device: Device) -> Array:
    """What the residual correction sees: sizes in octaves, shares of the time, waves, padding."""
    time, extra = terms.time_s, terms.extra
    reach = np.where(dims["window"] > 0, np.minimum(dims["window"], dims["kv_len"]), dims["kv_len"])

    def share(part: Array) -> Array:
        return np.log(part / time + 1e-3)

    waves = extra["waves"]
    group = dims["heads"] / dims["kv_heads"]
    outputs, keys = traffic(dims)
    return np.stack(
        [
            np.log2(dims["batch"]),
            np.log2(dims["q_len"]),
            np.log2(dims["kv_len"] / dims["q_len"]),
            np.log2(dims["heads"]),
            np.log2(dims["kv_heads"]),
            np.log2(group),
            (np.log2(group) % 1.0 == 0) * 1.0,
            np.log2(dims["head_dim"]),
            np.log2(reach / dims["kv_len"]),
            np.log2(reach),
            (dims["window"] > 0) * 1.0,
            np.log(time * 1e6),
            share(terms.launch_s),
            share(terms.compute_s),
            share(terms.memory_s),
            share(extra["append_s"]),
            share(extra["combine_s"]),
            np.log(waves),
            np.log(np.ceil(waves) / waves),
            np.log(extra["padding"]),
            np.log(extra["longest"]),
            np.log(extra["imbalance"]),
            np.log(extra["splits"]),
            np.log(outputs / device.l2_bytes),
            np.log(keys / device.l2_bytes),
        ],
        axis=1,
    )


CHOICES: Final = tuple(
    {"packed": packed, "split": split} for packed in (True, False) for split in (False, True)
)

PREFILL: Final = Form(
    name="flash-tiles",
    op="attention_prefill",
    dims=DIMS,
    range_dims=("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"),
    coefficients=COEFFICIENTS,
    evaluate=partial(evaluate, causal=True),
    floor_s=partial(floor_s, causal=True),
    features=features,
    choices=CHOICES,
    source="FlashAttention-2 (arXiv 2307.08691), FlashAttention-3 (arXiv 2407.08608)",
)

ENCODER: Final = Form(
    name="flash-tiles",
    op="encoder_attention",
    dims=DIMS,
    range_dims=PREFILL.range_dims,
    coefficients=COEFFICIENTS,
    evaluate=partial(evaluate, causal=False),
    floor_s=partial(floor_s, causal=False),
    features=features,
    choices=CHOICES,
    source=PREFILL.source,
)
