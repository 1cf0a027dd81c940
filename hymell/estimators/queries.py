"""What to ask a calibration about a kernel: its op, the formats to look under, and its sizes.

Sizes are those of a running model: weights and caches come from HBM, since the other layers have
pushed them out of L2 by the time a layer runs again; activations are where the kernel before left
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hymell.dtypes import bytes_per_element
from hymell.estimators.calibration import Key
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Dims
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gather,
    Gemm,
    Memory,
    Primitive,
    RowReduce,
    Scan,
)


@dataclass(frozen=True, slots=True)
class Query:
    """Keys to look under, best first, and what gives the sizes once a workload is in.

    ``sizes()`` gives numbers or arrays by name; `columns` makes them arrays of one length.
    ``included``: the kernel is part of what was measured under those keys and takes no more time.
    ``unfitted(device)``: a form with its coefficients at their priors, for want of measurements.
    """

    keys: tuple[Key, ...]
    sizes: Callable[[], Mapping[str, Any]]
    included: bool = False
    unfitted: Callable[[Device], Level1] | None = None


def query(primitive: Primitive) -> Query | None:
    """What to ask about a primitive; None for a kind that nothing was ever fitted for."""
    ask = _BY_KIND.get(type(primitive))
    return None if ask is None else ask(primitive)


def columns(sizes: Mapping[str, Any]) -> Dims:
    """Numbers and arrays as float arrays of one length, at least 1."""
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in sizes.values()))
    return {name: np.ravel(array) for name, array in zip(sizes, arrays, strict=True)}


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


#: Products whose tables count the quantisation of their activations in.
_QUANTISING: Final = {
    "quantize_fp8": ("float8_block128", "float8_e4m3"),
    "quantize_fp4": ("nvfp4",),
    "quantize_int8": ("int8",),
}


def _memory(m: Memory) -> Query:
    formats = _QUANTISING.get(m.role)
    if formats is not None:
        return Query(_keys("gemm", formats), lambda: {"elements": m.elements}, included=True)

    def sizes() -> dict[str, Any]:
        return {"elements": m.elements, "bytes": m.bytes_read + m.bytes_written}

    return Query(_keys("pointwise", _ROW_FORMATS), sizes)


def _gather(g: Gather) -> Query:
    def sizes() -> dict[str, Any]:
        return {"rows": g.rows, "cols": g.cols, "bytes": g.bytes_read + g.bytes_written}

    return Query(_keys("embedding", _ROW_FORMATS), sizes)


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
            "window": a.window or 0,
            "q_bytes": bytes_per_element(a.dtype),
            "kv_bytes": bytes_per_element(a.kv_dtype),
            "cold": 1,
        }

    return Query(_keys(op, _alike(a.dtype), caches), sizes)


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

    def sizes() -> dict[str, Any]:
        return {"rows": r.rows, "cols": r.cols, "bytes": r.bytes_read + r.bytes_written}

    keys = _keys(op, _ROW_FORMATS)
    return Query(keys if op == "rms_norm" else keys + _keys("rms_norm", _ROW_FORMATS), sizes)


def _experts(e: Experts) -> Query | None:
    dtype = _EXPERT_FORMATS.get((e.b_dtype, e.math), e.b_dtype)
    if dtype.startswith("int4"):
        dtype = "int4_wo"

    def sizes() -> Mapping[str, Any]:
        from hymell.estimators.level1.moe import expert_dims

        return expert_dims(e)

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


_BY_KIND: Final[Mapping[type, Callable[[Any], Query | None]]] = {
    Attention: _attention,
    Gemm: _gemm,
    Memory: _memory,
    Gather: _gather,
    Experts: _experts,
    RowReduce: _rows,
    Scan: _scan,
}
