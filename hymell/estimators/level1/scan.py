"""Linear recurrences (GDN, KDA, Mamba2 and the like) and the short causal convolution before them.

Chunked scan (prefill): one block per sequence and head walks the chunks in order, or the chunks are
worked on side by side and only their states are passed on (a choice made on training rows).

    time = t0 + join(waves * (block_s + chunks * chunk_s), bytes / bandwidth, flops / rate)

Recurrent step (decode, verification of a few drafted tokens): the state of every head is read and
written, once or once per token.

    time = t0 + join(waves * tokens * token_s, state bytes / bandwidth)

Convolution: one block per stretch of tokens and of channels, beside its bytes.

Kinds that nobody has published measurements of are priced by the same forms with the coefficients
at their priors: `unfitted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
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
from hymell.estimators.level1.row_ops import waves
from hymell.op_registry.primitives import Scan

#: Sizes of a scan: ``token_bytes`` are those of all inputs and outputs, the state left out;
#: ``chunk`` tokens are worked on together.
SCAN_DIMS: Final = (
    "batch",
    "length",
    "heads",
    "key_dim",
    "value_dim",
    "chunk",
    "token_bytes",
)
#: Sizes of a causal convolution over ``width`` tokens.
CONV_DIMS: Final = ("batch", "length", "channels", "width")

#: The state is kept in fp32.
_STATE_BYTES = 4.0
#: Chunk of the kernels whose tables do not state it (flash-linear-attention's default).
DEFAULT_CHUNK = 64

#: Kinds with measurements, and whether their decode step is measured too.
MEASURED_KINDS: Final[Mapping[str, bool]] = {"gdn": True, "kda": True, "mamba2": False}

#: Kinds without measurements, and the matrix work of a chunk relative to that of a gated delta
#: rule. Plain linear attention has two thirds: q k^T, (q k^T) v, the state's update and its read
#: (GLA, arXiv 2312.06635); per-channel decays take a second level of chunks. 0: no matrix form
#: (Mamba, arXiv 2312.00752; Griffin, arXiv 2402.19427), every element of the state is stepped
#: through by the vector units.
UNFITTED_KINDS: Final[Mapping[str, float]] = {
    "selective_scan": 0.0,
    "rg_lru": 0.0,
    "rwkv": 1.0,
    "lightning": 2 / 3,
    "mlstm": 1.0,
    "retention": 2 / 3,
    "linear_attention": 2 / 3,
    "gated_linear_attention": 1.0,
}

#: Vector operations per element of the state and token: decay, product, sum, exponential, read.
_STEP_FLOPS = 8.0

#: What an unfitted form is unsure by, in log time: what the priors miss the measured prefill
#: kernels of H100 by, root mean square (docs/estimators/scan.md).
_UNFITTED_SPREAD = 0.6


def scan_dims(primitive: Scan) -> Dims:
    """`SCAN_DIMS` of a primitive whose sizes are numbers or arrays."""
    state = primitive.batch * primitive.heads * primitive.key_dim * primitive.value_dim
    moved = np.asarray(primitive.bytes_read + primitive.bytes_written, float)
    least = 2.0 * primitive.batch * primitive.length * primitive.heads * primitive.value_dim
    return as_dims(
        batch=primitive.batch,
        length=primitive.length,
        heads=primitive.heads,
        key_dim=primitive.key_dim,
        value_dim=primitive.value_dim,
        chunk=primitive.chunk if primitive.chunk > 1 else DEFAULT_CHUNK,
        token_bytes=np.maximum(moved - 2.0 * _STATE_BYTES * state, least),
    )


def conv_dims(batch: Any, length: Any, channels: Any, width: Any = 4) -> Dims:
    """`CONV_DIMS` from numbers or arrays."""
    return as_dims(batch=batch, length=length, channels=channels, width=width)


_MEMORY: Final = (
    Coefficient("t0", "s", lambda d: 3e-6),
    Coefficient("l2_bandwidth", "byte/s", lambda d: 1.5 * d.bandwidth, 0.5),
    Coefficient("hbm_bandwidth", "byte/s", lambda d: 0.85 * d.bandwidth, 0.3),
    Coefficient("l2_capacity", "share of L2", lambda d: 0.7, 0.5),
    Coefficient("l2_width", "1", lambda d: 0.25),
    Coefficient("quantised", "1", lambda d: 0.5),
    Coefficient("overlap", "1", lambda d: 1.0, 0.5),
)

#: The priors are the middle of what fits to the GDN and KDA tables of B200 and L40S gave: a chunk's
#: chain of small products takes microseconds that no data sheet shows.
_CHUNKED: Final = (
    Coefficient("t0", "s", lambda d: 15e-6),
    *_MEMORY[1:],
    Coefficient("block_s", "s per wave", lambda d: 2e-6, 2.0),
    Coefficient("chunk_s", "s per chunk", lambda d: 2.5e-6, 2.0),
    Coefficient("efficiency", "share of peak", lambda d: 0.06),
    Coefficient("state_passes", "per chunk", lambda d: 0.5, 1.5),
)

_RECURRENT: Final = (
    *_MEMORY,
    Coefficient("token_s", "s per token", lambda d: 5e-7, 2.0),
    Coefficient("states_per_token", "1", lambda d: 0.3, 1.5),
    Coefficient("token_share", "1", lambda d: 1.0, 1.5),
)

_CONV: Final = (
    *_MEMORY,
    Coefficient("block_s", "s per wave", lambda d: 5e-7, 2.0),
    Coefficient("token_s", "s per token", lambda d: 1e-10, 3.0),
    Coefficient("passes", "1", lambda d: 1.0),
    Coefficient("sequence_s", "s per sequence", lambda d: 1e-8, 2.0),
)

_OCCUPANCIES: Final[tuple[Choice, ...]] = tuple({"occupancy": float(n)} for n in (1, 2, 4))
#: ``serial``: a block walks all chunks of its head; ``fused``: one kernel, whose matrix work hides
#: behind the walk and the bytes, not several kernels one after the other.
_WALKS: Final[tuple[Choice, ...]] = tuple(
    {"occupancy": occupancy, "serial": serial, "fused": fused}
    for occupancy in (1.0, 2.0)
    for serial in (True, False)
    for fused in (True, False)
)


def _moved_s(c: Coefficients, moved: Array, device: Device) -> tuple[Array, Array]:
    """Seconds to move bytes from L2 and HBM, and the share that misses L2."""
    miss = l2_miss(moved, device.l2_bytes, c["l2_capacity"], c["l2_width"])
    return moved * ((1.0 - miss) / c["l2_bandwidth"] + miss / c["hbm_bandwidth"]), miss


def _chunks(dims: Dims) -> Array:
    return np.ceil(dims["length"] / dims["chunk"])


def _states(dims: Dims) -> Array:
    """Bytes of the states of all sequences and heads."""
    heads = dims["batch"] * dims["heads"]
    return _STATE_BYTES * heads * dims["key_dim"] * dims["value_dim"]


def _chunk_flops(dims: Dims) -> Array:
    """Three C x C products and three with the state per chunk, as gated delta rules have them."""
    span = np.minimum(dims["chunk"], dims["length"])
    per_token = 3.0 * span * dims["key_dim"] + 3.0 * dims["key_dim"] * dims["value_dim"]
    return 2.0 * dims["batch"] * dims["length"] * dims["heads"] * per_token


def _terms(
    c: Coefficients, work: Array, moved: Array, flops_s: Array, units: Array, device: Device
) -> Terms:
    memory, miss = _moved_s(c, moved, device)
    power = 1.0 + c["overlap"]
    compute = join(work, flops_s, power)
    launch = np.full_like(memory, c["t0"])
    extra = {"miss": miss, "moved": moved, "work": work, "flops": flops_s, "units": units}
    return Terms(launch + join(compute, memory, power), launch, memory, compute, extra)


def _flops_s(c: Coefficients, dims: Dims, device: Device, matrix_work: float) -> Array:
    if matrix_work > 0:
        rate = device.peak("bf16") * c["efficiency"]
        return matrix_work * _chunk_flops(dims) / rate
    elements = dims["batch"] * dims["length"] * dims["heads"] * dims["key_dim"] * dims["value_dim"]
    return _STEP_FLOPS * elements / (device.peak("fp32") * c["efficiency"])


def _evaluate_chunked(
    c: Coefficients, dims: Dims, device: Device, choice: Choice, *, matrix_work: float
) -> Terms:
    heads = dims["batch"] * dims["heads"]
    slots = device.sm_count * float(choice["occupancy"])
    wave = waves(heads, slots, c["quantised"])
    chunks = _chunks(dims)
    walked = chunks * c["chunk_s"]
    work = wave * (c["block_s"] + walked) if choice["serial"] else wave * c["block_s"] + walked
    moved = dims["token_bytes"] + _states(dims) * (1.0 + c["state_passes"] * chunks)
    flops_s = _flops_s(c, dims, device, matrix_work)
    if choice["fused"]:
        return _terms(c, work, moved, flops_s, heads / slots, device)
    walk = _terms(c, work, moved, np.zeros_like(work), heads / slots, device)
    extra = {**walk.extra, "flops": flops_s}
    return replace(
        walk, time_s=walk.time_s + flops_s, compute_s=walk.compute_s + flops_s, extra=extra
    )


def _evaluate_recurrent(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    tiles = dims["batch"] * dims["heads"] * np.maximum(dims["value_dim"] / 128.0, 1.0)
    slots = device.sm_count * float(choice["occupancy"])
    wave = waves(tiles, slots, c["quantised"])
    work = wave * dims["length"] * c["token_s"]
    states = _states(dims) * (2.0 + c["states_per_token"] * (dims["length"] - 1.0))
    moved = states + dims["token_bytes"] * c["token_share"]
    return _terms(c, work, moved, np.zeros_like(work), tiles / slots, device)


def _evaluate_conv(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    blocks = dims["batch"] * np.ceil(dims["length"] / 64.0) * np.ceil(dims["channels"] / 256.0)
    slots = device.sm_count * float(choice["occupancy"])
    wave = waves(blocks, slots, c["quantised"])
    work = wave * c["block_s"]
    tokens = dims["batch"] * dims["length"]
    launch = c["t0"] + c["token_s"] * tokens + c["sequence_s"] * dims["batch"]
    state = dims["batch"] * (dims["width"] - 1.0)
    moved = 2.0 * dims["channels"] * (2.0 * tokens + 2.0 * state * c["passes"])
    base = _terms(c, work, moved, np.zeros_like(work), blocks / slots, device)
    return replace(base, time_s=base.time_s - base.launch_s + launch, launch_s=launch)


def _chunked_floor_s(dims: Dims, device: Device) -> Array:
    """What L2 cannot hold of the inputs and outputs, at the data-sheet bandwidth."""
    return np.maximum(dims["token_bytes"] - device.l2_bytes, 0.0) / device.bandwidth


def _recurrent_floor_s(dims: Dims, device: Device) -> Array:
    """The states, which may be half as wide as fp32, read and written as far as L2 is too small."""
    return np.maximum(_states(dims) - device.l2_bytes, 0.0) / device.bandwidth


def _conv_floor_s(dims: Dims, device: Device) -> Array:
    moved = 4.0 * dims["batch"] * dims["length"] * dims["channels"]
    return np.maximum(moved - device.l2_bytes, 0.0) / device.bandwidth


def _shared(terms: Terms, device: Device) -> tuple[Array, ...]:
    """Shares of each part, wave filling and L2 footprint."""
    total, extra = terms.time_s, terms.extra
    units = np.maximum(extra["units"], 1e-9)
    return (
        *(
            np.log(part / total + 1e-3)
            for part in (terms.launch_s, terms.memory_s, extra["work"], extra["flops"])
        ),
        np.log(total / terms.launch_s),
        extra["miss"],
        np.log2(np.maximum(extra["moved"], 1.0) / device.l2_bytes),
        np.log2(units),
        *(np.ceil(units * k) / (units * k + 0.2) for k in (0.5, 1.0, 2.0)),
    )


def _scan_features(dims: Dims, terms: Terms, device: Device) -> Array:
    rows = 2.0 * dims["batch"] * dims["length"] * dims["heads"] * dims["value_dim"]
    columns = (
        *_shared(terms, device),
        np.log2(_chunks(dims)),
        np.log2(dims["length"]),
        np.log2(dims["batch"]),
        dims["length"] / (dims["chunk"] * _chunks(dims)),
        np.log2(dims["token_bytes"] / rows),
    )
    return np.column_stack(columns)


def _conv_features(dims: Dims, terms: Terms, device: Device) -> Array:
    columns = (
        *_shared(terms, device),
        np.log2(dims["length"]),
        np.log2(dims["batch"]),
        np.log2(dims["batch"] * dims["length"] / device.sm_count),
    )
    return np.column_stack(columns)


_SOURCE = "waves of heads beside an L2/HBM roofline; docs/estimators/scan.md"


def chunked_form(kind: str) -> Form:
    """The prefill form of a scan kind, measured or in `UNFITTED_KINDS`."""
    matrix_work = UNFITTED_KINDS.get(kind, 1.0)
    return Form(
        name="scan-chunked",
        op=kind,
        dims=SCAN_DIMS,
        range_dims=("batch", "length", "heads", "token_bytes"),
        coefficients=_CHUNKED,
        evaluate=partial(_evaluate_chunked, matrix_work=matrix_work),
        floor_s=_chunked_floor_s,
        features=_scan_features,
        choices=_WALKS,
        source=_SOURCE,
    )


def recurrent_form(kind: str) -> Form:
    """The decode form of a scan kind; also for a few drafted tokens to verify."""
    return Form(
        name="scan-recurrent",
        op=kind,
        dims=SCAN_DIMS,
        range_dims=("batch", "length", "heads"),
        coefficients=_RECURRENT,
        evaluate=_evaluate_recurrent,
        floor_s=_recurrent_floor_s,
        features=_scan_features,
        choices=_OCCUPANCIES,
        source=_SOURCE,
    )


#: The short causal convolution, over a prompt or one step.
CONV1D: Final = Form(
    name="causal-conv1d",
    op="conv1d",
    dims=CONV_DIMS,
    range_dims=("batch", "length", "channels"),
    coefficients=_CONV,
    evaluate=_evaluate_conv,
    floor_s=_conv_floor_s,
    features=_conv_features,
    choices=_OCCUPANCIES,
    source=_SOURCE,
)


def scan_form(kind: str, phase: str) -> Form:
    """The form of a table: chunked in the phase ``context``, recurrent in the others."""
    return chunked_form(kind) if phase == "context" else recurrent_form(kind)


def unfitted(kind: str, phase: str, device: Device) -> Level1:
    """An estimator with every coefficient at its prior, for a kind that was never measured.

    ``phase`` is "context" or "generation". Raises HymellError for a kind that is neither in
    `UNFITTED_KINDS` nor in `MEASURED_KINDS`.
    """
    if kind not in UNFITTED_KINDS and kind not in MEASURED_KINDS:
        known = ", ".join((*MEASURED_KINDS, *UNFITTED_KINDS))
        raise HymellError(f"no form for scan kind {kind!r}; there are: {known}")
    return Level1.at_priors(scan_form(kind, phase), device, _UNFITTED_SPREAD)
