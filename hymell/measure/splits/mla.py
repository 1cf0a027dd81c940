"""What is held out of the latent-attention tables, and which tables there are."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.measure.splits.attention import Split, byte_dims, held_groups
from hymell.measure.table import Table

#: Longest lengths fitted on when the longest are held out.
_TRAINED_LENGTH: Final = {
    "mla_prefill": 4096,
    "mla_prefill_module": 4096,
    "mla_decode": 8193,
    "mla_decode_module": 8193,
}

#: Bytes of a weight, the scales of its block included.
_BLOCK_SCALED: Final = {"float8_block128": 1.0, "nvfp4": 0.5625}


class MlaTarget(NamedTuple):
    """One table to fit. ``gemm_dtype`` is "" for a kernel, that of the projections for a module.

    A module's rows of DeepSeek-V3, R1 and V3.1 are one architecture's and are fitted together.
    """

    op: str
    gpu: str
    library: str
    version: str
    dtype: str
    kv_dtype: str
    gemm_dtype: str = ""


_BF16: Final = "bfloat16"
_FP8: Final = "float8_e4m3"
_WIDE: Final = ((_BF16, _BF16),)
_CACHED: Final = (*_WIDE, (_BF16, _FP8))
_ALL: Final = (*_CACHED, (_FP8, _FP8))

_KERNELS: Final = (
    ("a100-sxm-80gb", "trtllm", "1.0.0", _CACHED),
    ("a100-sxm-80gb", "vllm", "0.14.0", _WIDE),
    ("b200-sxm", "sglang", "0.5.14", _CACHED),
    ("b200-sxm", "trtllm", "1.3.0rc15", _CACHED),
    ("b200-sxm", "trtllm", "1.3.0rc20", _CACHED),
    ("h100-sxm", "sglang", "0.5.14", _CACHED),
    ("h100-sxm", "trtllm", "1.3.0rc20", _CACHED),
    ("h200-sxm", "sglang", "0.5.14", _CACHED),
    ("h200-sxm", "trtllm", "1.3.0rc20", _CACHED),
    ("l40s", "sglang", "0.5.14", _WIDE),
)

_BLOCK: Final = (_BF16, "float8_block128")
_FP4: Final = (*_BLOCK, "nvfp4")
#: gpu, library, version, formats of projections, of prefill, of decode.
_MODULES: Final = (
    ("b200-sxm", "trtllm", "1.3.0rc15", _FP4, _WIDE, _WIDE),
    ("b200-sxm", "trtllm", "1.3.0rc20", _FP4, _CACHED, _CACHED),
    ("b200-sxm", "vllm", "0.22.0", _FP4, _ALL, _CACHED),
    ("b200-sxm", "vllm", "0.24.0", _FP4, _ALL, _CACHED),
    ("h100-sxm", "trtllm", "1.3.0rc20", _BLOCK, _CACHED, _CACHED),
    ("h100-sxm", "vllm", "0.24.0", _BLOCK, _CACHED, _CACHED),
    ("h200-sxm", "trtllm", "1.3.0rc20", _BLOCK, _CACHED, _CACHED),
    ("h200-sxm", "vllm", "0.22.0", _BLOCK, _CACHED, _CACHED),
    ("h200-sxm", "vllm", "0.24.0", _BLOCK, _CACHED, _CACHED),
    ("l40s", "vllm", "0.24.0", _BLOCK, _WIDE, _WIDE),
)

TARGETS: Final[tuple[MlaTarget, ...]] = (
    *(
        MlaTarget(op, gpu, library, version, *formats)
        for op in ("mla_prefill", "mla_decode")
        for gpu, library, version, cached in _KERNELS
        for formats in cached
    ),
    *(
        MlaTarget("mla_prefill_module", gpu, library, version, *formats, weights)
        for gpu, library, version, projections, prefill, _ in _MODULES
        for formats in prefill
        for weights in projections
    ),
    *(
        MlaTarget("mla_decode_module", gpu, library, version, *formats, weights)
        for gpu, library, version, projections, _, decode in _MODULES
        for formats in decode
        for weights in projections
    ),
)


def dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """The sizes that the level-1 forms of latent attention take."""
    sizes = {name: table[name] for name in ("batch", "q_len", "kv_len", "heads")}
    sizes |= byte_dims(table)
    if "gemm_dtype" in table.columns:
        sizes["weight_bytes"] = np.array([weight_bytes(str(f)) for f in table["gemm_dtype"]])
    return sizes


def weight_bytes(gemm_dtype: str) -> float:
    """Bytes per weight of a format, with the scales of fp4 blocks of 16."""
    return _BLOCK_SCALED.get(gemm_dtype) or float(bytes_per_element(gemm_dtype))


def splits(table: Table) -> list[Split]:
    """Head counts held out (one split per seed), then the longest lengths.

    Raises HymellError for a table of another op.
    """
    if table.op not in _TRAINED_LENGTH:
        raise HymellError(f"latent-attention splits do not cut a table of {table.op}")
    long = table["kv_len"] > _TRAINED_LENGTH[table.op]
    return [*held_groups(table, ("heads",), "heads"), ("length", ~long, long)]
