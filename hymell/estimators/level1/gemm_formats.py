"""Number formats of a matrix product, as a table of measurements names them.

`of` maps a tidy table's ``dtype`` to what the forms need: bytes per stored element of A, B and C,
the data-sheet rate of the arithmetic, and whether the kernel that was timed also quantised A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError


@dataclass(frozen=True, slots=True)
class GemmFormat:
    """``a_bytes``, ``b_bytes``, ``out_bytes``: bytes per element in memory, scales included.

    ``tile_bytes``: bytes per element of A and B on their way from shared memory to the tensor
    cores. ``quantises``: A arrives in 16 bits and is converted by a kernel that is part of the
    time. ``math``: the data-sheet rate.
    """

    name: str
    math: str
    a_bytes: float
    b_bytes: float
    out_bytes: float
    tile_bytes: float
    quantises: bool = False


def _plain(name: str, math: str) -> GemmFormat:
    size = bytes_per_element(name)
    return GemmFormat(name, math, size, size, size, size)


def _quantised(name: str, math: str, tile_bytes: float) -> GemmFormat:
    size = bytes_per_element(name)
    return GemmFormat(name, math, size, size, 2.0, tile_bytes, quantises=True)


def _weight_only(name: str, stored: str) -> GemmFormat:
    return GemmFormat(name, "bf16", 2.0, bytes_per_element(stored), 2.0, 2.0)


#: ``sq`` is TensorRT-LLM's SmoothQuant product: int8 on both sides, quantised beforehand.
FORMATS: Final[dict[str, GemmFormat]] = {
    f.name: f
    for f in (
        _plain("bfloat16", "bf16"),
        _plain("float16", "fp16"),
        _plain("float32", "fp32"),
        _quantised("float8_e4m3", "fp8", 1.0),
        _quantised("float8_block128", "fp8", 1.0),
        _quantised("nvfp4", "fp4", 0.5),
        _quantised("int8", "int8", 1.0),
        GemmFormat("sq", "int8", 1.0, 1.0, 2.0, 1.0),
        _weight_only("int8_wo", "int8"),
        _weight_only("int4_wo", "int4_channel"),
        _weight_only("fp8_wo", "float8_e4m3"),
    )
}


def of(dtype: str) -> GemmFormat:
    """The format of a table's dtype; HymellError for one that no form is written for."""
    if dtype not in FORMATS:
        raise HymellError(f"no GEMM form for dtype {dtype!r}; there are: {', '.join(FORMATS)}")
    return FORMATS[dtype]
