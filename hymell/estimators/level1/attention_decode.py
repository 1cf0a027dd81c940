"""Paged attention of one new token (or a few) per sequence over a long cache.

T = launch + [split] merge + append + tasks + join(cache / bandwidth, key tiles one after another).

Each KV head of each sequence is a task, cut along the keys until the SMs are full. ``cold`` 1
prices the cache as read from HBM (serving: every layer has its own); 0 as a benchmark that replays
the same cache, of which L2 keeps what fits. A key tile from HBM takes longer than one from L2: few
tasks are bound by latency, many by bandwidth. A cache past L2 is read at ``bandwidth``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hymell.estimators.level1.attention_prefill import append_rounds, math_peak
from hymell.estimators.level1.attention_tiles import dynamic_splits
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

#: Query rows and keys of a tile of a decoding kernel.
_TILE_ROWS: Final = 64.0
_TILE_KEYS: Final = 128.0

#: Head dims above it run on kernels that cut every cache, however short, into many parts, as long
#: as the kernel that plans the parts takes the batch (FlashAttention: 31 sequences for 32 warps).
_WIDEST: Final = 256.0
_SCHEDULED: Final = 992.0

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
    "cold",
)


def l2_prior(device: Device) -> float:
    """GB/s that an SM draws from L2: what an H100 sustains, or a little more than from HBM."""
    return max(34.0, 1.2e-9 * device.bandwidth / device.sm_count)


COEFFICIENTS: Final = (
    Coefficient("launch", "us", lambda _: 8.0),
    Coefficient("width", "us per 128 of head dim", lambda _: 1.0, 1.5),
    Coefficient("sequences", "us per 100 sequences", lambda _: 0.3, 1.5),
    Coefficient("task", "us", lambda _: 1.0, 1.5),
    Coefficient("task_width", "us per 128 of head dim", lambda _: 1.0, 1.5),
    Coefficient("task_group", "us per 64 query rows and 128 of head dim", lambda _: 0.3, 1.5),
    Coefficient("mask", "us per windowed task", lambda _: 0.5, 1.5),
    Coefficient("l2_bandwidth", "GB/s per SM", l2_prior, 0.5),
    Coefficient("bandwidth", "ratio to data sheet", lambda _: 0.9, 0.2),
    Coefficient("l2_capacity", "ratio to data sheet", lambda _: 0.8, 0.3),
    Coefficient("l2_width", "exponent", lambda _: 0.12, 1.0),
    Coefficient("overlap", "exponent minus 1", lambda _: 2.0),
    Coefficient("key_step", "us", lambda _: 0.5),
    Coefficient("key_tile", "us per 128 of head dim", lambda _: 0.6),
    Coefficient("far_tile", "us more per 128 of head dim from HBM", lambda _: 1.0),
    Coefficient("merge", "us", lambda _: 1.0, 1.5),
    Coefficient("append_block", "us per thread block", lambda _: 1.0, 1.5),
    Coefficient("wide_task", "us per task and SM, head dim over 256", lambda _: 20.0, 1.5),
)


def reach(dims: Dims) -> Array:
    """Keys that each new token sees."""
    return np.where(dims["window"] > 0, np.minimum(dims["kv_len"], dims["window"]), dims["kv_len"])


def cache_bytes(dims: Dims) -> Array:
    """Bytes of keys and values that are read."""
    seen = np.minimum(reach(dims) + dims["q_len"] - 1.0, dims["kv_len"])
    return 2.0 * dims["batch"] * seen * dims["kv_heads"] * dims["head_dim"] * dims["kv_bytes"]


def query_bytes(dims: Dims) -> Array:
    """Bytes of queries read and outputs written."""
    tokens = dims["batch"] * dims["q_len"] * dims["heads"] * dims["head_dim"]
    return tokens * (dims["q_bytes"] + 2.0)


def evaluate(coefficients: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    """The form of this module."""
    c = coefficients
    sms = float(device.sm_count) * float(choice["occupancy"])
    group = dims["heads"] / dims["kv_heads"]
    # FlashAttention-2 puts a group in the place of the queries, and splits, only without a window.
    swapping = choice["split"] == "swapped"
    if swapping:
        group = np.where(dims["window"] > 0, 1.0, group)
    rows = dims["q_len"] * group
    active = (dims["window"] > 0) & (dims["window"] < dims["kv_len"])
    blocks = np.ceil(reach(dims) / _TILE_KEYS) + active
    tasks = dims["batch"] * dims["heads"] / group * np.ceil(rows / _TILE_ROWS)
    if choice["split"] == "dynamic":
        splits = dynamic_splits(tasks, blocks, sms)
    else:
        room = np.minimum(blocks, np.maximum(1.0, np.floor(sms / tasks)))
        splits = np.where(tasks >= 0.8 * sms, 1.0, room)
    splits = np.minimum(splits, float(choice["most_splits"]))
    if swapping:
        splits = np.where(rows > 1, splits, 1.0)
    waves = tasks * splits / sms
    rounds = np.maximum(waves, 1.0)
    width = dims["head_dim"] / 128.0
    per_task = c["task"] + width * (
        c["task_width"] + c["task_group"] * np.minimum(rows, _TILE_ROWS) / _TILE_ROWS
    )
    per_task = per_task + c["mask"] * active
    segmented = (dims["head_dim"] > _WIDEST) & (dims["batch"] <= _SCHEDULED)
    wide = np.where(segmented, c["wide_task"] * tasks / sms, 0.0)
    overhead = (rounds * per_task + wide) * 1e-6
    cache = cache_bytes(dims)
    missed = l2_miss(cache, device.l2_bytes, c["l2_capacity"], c["l2_width"])
    missed = np.where(dims["cold"] > 0, 1.0, missed)
    # Blocks that share an SM hide each other's loads: what bounds a lone one is latency.
    shared = np.maximum(waves / float(choice["resident"]), 1.0)
    per_key_tile = c["key_step"] + (c["key_tile"] + c["far_tile"] * missed) * width
    keys = shared * np.ceil(blocks / splits) * per_key_tile * 1e-6
    near = c["l2_bandwidth"] * 1e9 * device.sm_count
    far = c["bandwidth"] * device.bandwidth
    memory = cache * ((1.0 - missed) / near + missed / far) + query_bytes(dims) / near
    power = 1.0 + c["overlap"]
    merge = np.where(splits > 1, c["merge"] * 1e-6, 0.0)
    launch = 1e-6 * (c["launch"] + c["sequences"] * dims["batch"] / 100.0 + c["width"] * width)
    append = c["append_block"] * 1e-6 * append_rounds(dims, device)
    total = launch + merge + append + overhead + join(keys, memory, power)
    return Terms(
        total,
        launch + merge,
        memory,
        overhead + keys,
        {
            "overhead_s": overhead,
            "keys_s": keys,
            "append_s": append,
            "load": tasks / sms,
            "waves": waves,
            "splits": splits,
            "missed": missed,
            "footprint": cache / device.l2_bytes,
        },
    )


def floor_s(dims: Dims, device: Device) -> Array:
    """Data-sheet time: the cache from HBM, less what L2 can hold unless cold; or the products."""
    moved = cache_bytes(dims) + query_bytes(dims)
    kept = np.where(dims["cold"] > 0, 0.0, device.l2_bytes)
    flops = 4.0 * dims["batch"] * dims["q_len"] * dims["heads"] * dims["head_dim"] * reach(dims)
    return np.maximum(
        np.maximum(moved - kept, 0.0) / device.bandwidth,
        flops / math_peak(dims["kv_bytes"], device),
    )


def features(dims: Dims, terms: Terms, device: Device) -> Array:
    """What the residual correction sees: sizes in octaves, shares of the time, waves, L2 share."""
    time, extra = terms.time_s, terms.extra
    seen = reach(dims)
    group = dims["heads"] / dims["kv_heads"]

    def share(part: Array) -> Array:
        return np.log(part / time + 1e-3)

    return np.stack(
        [
            np.log2(dims["batch"]),
            np.log2(dims["kv_len"]),
            np.log2(dims["heads"]),
            np.log2(dims["kv_heads"]),
            np.log2(group),
            (np.log2(group) % 1.0 == 0) * 1.0,
            np.log2(dims["head_dim"]),
            np.log2(seen / dims["kv_len"]),
            np.log2(seen),
            (dims["window"] > 0) * 1.0,
            np.log(time * 1e6),
            share(extra["overhead_s"]),
            share(terms.memory_s),
            share(extra["keys_s"]),
            share(terms.launch_s),
            share(extra["append_s"]),
            np.log(extra["load"]),
            np.minimum(np.log(np.ceil(extra["load"]) / extra["load"]), 3.0),
            np.log(extra["waves"]),
            np.log(extra["splits"]),
            extra["missed"],
            np.clip(np.log(extra["footprint"]), -8.0, 4.0),
        ],
        axis=1,
    )


DECODE: Final = Form(
    name="split-keys",
    op="attention_decode",
    dims=DIMS,
    range_dims=("batch", "kv_len", "heads", "kv_heads", "head_dim"),
    coefficients=COEFFICIENTS,
    evaluate=evaluate,
    floor_s=floor_s,
    features=features,
    choices=tuple(
        {"occupancy": occupancy, "resident": occupancy, "split": split, "most_splits": most}
        for occupancy in (1, 2)
        for split, most in (("dynamic", 32), ("dynamic", 128), ("fill", 128), ("swapped", 128))
    ),
    as_measured=as_benchmarked,
    source="Flash-Decoding; FlashAttention-3 (arXiv 2407.08608)",
)
