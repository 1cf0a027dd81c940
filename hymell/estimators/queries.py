"""What to ask a calibration about a kernel: its op, the formats to look under, and its sizes.

Sizes are those of a running model: weights and caches come from HBM, since the other layers have
pushed them out of L2 by the time a layer runs again; activations are where the kernel before left
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hymell.dtypes import bytes_per_element
from hymell.estimators.calibration import Key
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Dims, as_dims
from hymell.op_registry.primitives import (
    Attention,
    Conv1d,
    Experts,
    Gather,
    Gemm,
    Memory,
    Preparation,
    Primitive,
    RowReduce,
    Scan,
    Value,
)


@dataclass(frozen=True, slots=True)
class Query:
    """Keys to look under, best first, and what gives the sizes once a workload is in.

    ``sizes()`` gives numbers or arrays by name; `columns` makes them arrays of one length.
    ``stand_in``: nobody measured the kernel, the keys are of the nearest kernel that was.
    ``unfitted(device)``: a form with its coefficients at their priors, for want of measurements.
    ``host``: the kernel whose measurements may count this one in, and ``beside(library)`` what is
    left to ask where those of a library do. ``included``: nothing is left.
    """

    keys: tuple[Key, ...]
    sizes: Callable[[], Mapping[str, Any]]
    stand_in: bool = False
    unfitted: Callable[[Device], Level1] | None = None
    host: Primitive | None = None
    beside: Callable[[str], Query] | None = None
    included: bool = False


def query(primitive: Primitive) -> Query | None:
    """What to ask about a primitive; None for a kind that nothing was ever fitted for."""
    ask = _BY_KIND.get(type(primitive))
    return None if ask is None else ask(primitive)


def columns(sizes: Mapping[str, Any]) -> Dims:
    """Numbers and arrays as float arrays of one length, at least 1."""
    return as_dims(**sizes)


#: 16-bit formats run alike: each stands in for the other.
_ALIKE: Final = {
    "bfloat16": ("bfloat16", "float16"),
    "float16": ("float16", "bfloat16"),
}


def _alike(dtype: str) -> tuple[str, ...]:
    return _ALIKE.get(dtype, (dtype,))


def _keys(op: str, dtypes: tuple[str, ...], variants: tuple[str, ...] = ("",)) -> tuple[Key, ...]:
    return tuple((op, dtype, variant) for dtype in dtypes for variant in variants)


#: What tables call products of a stored weight format and a row of arithmetic.
_GEMM_FORMATS: Final = {
    ("float8_e4m3", "bf16"): "fp8_wo",
    ("float8_e4m3", "fp16"): "fp8_wo",
    ("int8", "int8"): "int8",
    ("int8", "bf16"): "int8_wo",
    ("int8", "fp16"): "int8_wo",
    ("nvfp4", "fp4"): "nvfp4",
}

#: Weight formats that run at their own row of arithmetic, and products measured in them.
_ROW_OF: Final = {"float8_e4m3": "fp8", "float8_block128": "fp8", "nvfp4": "fp4"}


def _gemm(g: Gemm) -> Query | None:
    dtype = _GEMM_FORMATS.get((g.b_dtype, g.math), g.b_dtype)
    if dtype.startswith("int4") and g.math in ("bf16", "fp16"):
        dtype = "int4_wo"
    if g.math != _ROW_OF.get(dtype, g.math):
        return None

    def sizes() -> dict[str, Any]:
        # Every layer has weights of its own, none of which waits in L2.
        copies = np.inf if g.b_is_weight else 1
        return {"m": g.m, "n": g.n, "k": g.k, "batch": g.batch, "copies": copies}

    return Query(_keys("gemm", _alike(dtype)), sizes)


def _memory(m: Memory) -> Query:
    if m.prepares is not None:
        convert = isinstance(m.prepares.kernel, Gemm)
        return _quantise(m, m.prepares) if convert else _append(m, m.prepares)

    def sizes() -> Mapping[str, Any]:
        from hymell.estimators.level1.pointwise import element_dims

        return element_dims(m)

    return Query(_keys("pointwise", _ROW_FORMATS), sizes)


def _quantise(m: Memory, work: Preparation) -> Query:
    """Quantised activations: every table of a low-precision product counts them in.

    Where the product has none, a norm is the nearest kernel: the largest entry of a row, then the
    row once more.
    """
    alone = _token_rows(m, work, "rms_norm", copied=True)

    def beside(library: str) -> Query:
        return replace(alone, included=True)

    return replace(alone, host=work.kernel, beside=beside)


#: What the tables of attention count in, by library: each calls the library's attention layer,
#: which writes the new keys and values, and TensorRT-LLM's rotates them as well
#: (docs/estimators/attention.md).
_IN_ATTENTION: Final = {
    "vllm": frozenset({"kv_append"}),
    "sglang": frozenset({"kv_append"}),
    "trtllm": frozenset({"kv_append", "rope"}),
}


def _append(m: Memory, work: Preparation) -> Query:
    """An append to the KV cache, with the rotation and the norms that an engine fuses with it."""
    steps = [step for step in ("qk_norm", "rope", "kv_append") if step in m.role]
    alone = _token_rows(m, work, _nearest(steps), copied=True)

    def beside(library: str) -> Query:
        left = [step for step in steps if step not in _IN_ATTENTION.get(library, ())]
        if not left:
            return replace(alone, included=True)
        if "kv_append" in left:
            return alone
        return _token_rows(m, work, _nearest(left), copied=False, stand_in=left != ["rope"])

    # What an encoder left for cross-attention is appended once, in no measurement of it.
    own = isinstance(work.kernel, Attention) and work.kernel.causal
    return replace(alone, host=work.kernel, beside=beside) if own else alone


def _nearest(steps: Sequence[str]) -> str:
    """The measured op that is most like some steps; a lone append moves rows as a rotation does."""
    return "rms_norm" if "qk_norm" in steps and "rope" not in steps else "rope"


def _token_rows(
    m: Memory, work: Preparation, op: str, *, copied: bool, stand_in: bool = True
) -> Query:
    """A kernel with one block per token, asked for as ``op``; ``copied``: appended bytes too."""

    def sizes() -> dict[str, Any]:
        whole = m.bytes_read + m.bytes_written
        moved = whole if copied else whole - work.copied_bytes
        cols = m.elements / np.maximum(work.rows, 1) * (moved / np.maximum(whole, 1))
        return {"rows": work.rows, "cols": cols, "bytes": moved}

    return Query(_keys(op, _ROW_FORMATS), sizes, stand_in, _row_priors)


#: What these priors miss the measured rotations and norms of A40, A100, H100 and RTX 4090 by, root
#: mean square in log time: 0.1 to 0.8, mostly too slow.
_ROW_SPREAD: Final = 0.6


def _row_priors(device: Device) -> Level1:
    from hymell.estimators.level1.pointwise import KV_APPEND

    return Level1.at_priors(KV_APPEND, device, _ROW_SPREAD)


def _gather(g: Gather) -> Query:
    return Query(_keys("embedding", _ROW_FORMATS), lambda: _row_sizes(g))


def _row_sizes(primitive: RowReduce | Gather) -> Mapping[str, Any]:
    from hymell.estimators.level1.row_ops import row_dims

    return row_dims(primitive)


def _attention(a: Attention) -> Query | None:
    if a.latent or (a.qk_dim, a.v_dim) == _EXPANDED:
        return _latent_attention(a)
    if a.qk_dim != a.v_dim:
        return None
    # One new token sees the whole cache, masked or not.
    single = isinstance(a.q_len, int | float) and a.q_len == 1
    if not a.causal and not single:
        op = "encoder_attention"
    else:
        op = "attention_decode" if single else "attention_prefill"
    caches = _alike(a.kv_dtype)

    def sizes() -> dict[str, Any]:
        return {
            "batch": a.batch,
            "q_len": a.q_len,
            "kv_len": a.kv_len,
            "heads": a.heads,
            "kv_heads": a.kv_heads,
            "head_dim": a.qk_dim,
            "window": _window(a),
            "q_bytes": bytes_per_element(a.dtype),
            "kv_bytes": bytes_per_element(a.kv_dtype),
            "cold": 1,
        }

    return Query(_keys(op, _alike(a.dtype), caches), sizes)


def _window(a: Attention) -> Value:
    """Keys that a query sees at most, 0 for all: a window that is not full yet costs nothing.

    On H100 14,672 pairs of measured rows with and without such a window are alike (1.000, spread
    0.018); on most GPUs none was measured.
    """
    if a.window is None:
        return 0
    return np.where(np.asarray(a.kv_len) > a.window, a.window, 0)


#: Widths of key and value of latent attention as measured: absorbed, and expanded for prefill.
_ABSORBED: Final = (576, 512)
_EXPANDED: Final = (192, 128)


def _latent_attention(a: Attention) -> Query | None:
    if a.latent and (a.qk_dim, a.v_dim) != _ABSORBED:
        return None
    op = "mla_decode" if a.latent else "mla_prefill"

    def sizes() -> dict[str, Any]:
        return {
            "batch": a.batch,
            "q_len": a.q_len,
            "kv_len": a.kv_len,
            "heads": a.heads,
            "q_bytes": bytes_per_element(a.dtype),
            "kv_bytes": bytes_per_element(a.kv_dtype),
            "cold": 1,
        }

    return Query(_keys(op, _alike(a.dtype), _alike(a.kv_dtype)), sizes)


#: Formats in which row kernels and pointwise ones were measured, best first.
_ROW_FORMATS: Final = ("bfloat16", "float16", "float32")

#: What a row kernel's role is measured as; other reductions over a row take RMSNorm's form.
_ROW_OPS: Final = (("layer_norm", "layer_norm"), ("softmax", "softmax"))


def _rows(r: RowReduce) -> Query:
    op = next((op for part, op in _ROW_OPS if part in r.role), "rms_norm")
    keys = _keys(op, _ROW_FORMATS)
    if op != "rms_norm":
        keys += _keys("rms_norm", _ROW_FORMATS)
    return Query(keys, lambda: _row_sizes(r))


def _experts(e: Experts) -> Query | None:
    dtype = _EXPERT_FORMATS.get((e.b_dtype, e.math), e.b_dtype)
    if dtype.startswith("int4"):
        dtype = "int4_wo"

    def sizes() -> Mapping[str, Any]:
        from hymell.estimators.level1.moe import expert_dims

        return expert_dims(e, ranks=e.ranks)

    return Query(_keys("moe", _alike(dtype)), sizes)


#: What tables call experts of a stored format and a row of arithmetic.
_EXPERT_FORMATS: Final = {
    ("mxfp4", "bf16"): "w4a16_mxfp4",
    ("mxfp4", "fp8"): "w4a8_mxfp4_mxfp8",
    ("mxfp4", "fp4"): "w4a8_mxfp4_mxfp8",
}

#: What tables call the recurrences that tracing finds.
_SCANS: Final = {"gated_delta_rule": "gdn", "kda": "kda", "mamba2_ssd": "mamba2"}


def _scan(s: Scan) -> Query:
    kind = _SCANS.get(s.variant, s.variant)
    phase = "context" if s.chunk > 1 else "generation"

    def sizes() -> Mapping[str, Any]:
        from hymell.estimators.level1.scan import scan_dims

        return scan_dims(s)

    def unfitted(device: Device) -> Level1:
        from hymell.estimators.level1 import scan

        return scan.unfitted(kind, phase, device)

    return Query(_keys(kind, _alike(s.dtype), (phase,)), sizes, unfitted=unfitted)


def _conv1d(c: Conv1d) -> Query:
    def sizes() -> Mapping[str, Any]:
        from hymell.estimators.level1.scan import conv_dims

        return conv_dims(c.batch, c.length, c.channels, c.width)

    phase = "generation" if c.step else "context"
    return Query(_keys("conv1d", _alike(c.dtype), (phase,)), sizes)


_BY_KIND: Final[Mapping[type, Callable[[Any], Query | None]]] = {
    Attention: _attention,
    Conv1d: _conv1d,
    Gemm: _gemm,
    Memory: _memory,
    Gather: _gather,
    Experts: _experts,
    RowReduce: _rows,
    Scan: _scan,
}
