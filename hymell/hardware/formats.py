"""The number formats a data sheet states a peak rate for, and the names people give them."""

from __future__ import annotations

from hymell.errors import HymellError

#: Keys of ``Gpu.peak_flops``, widest first. fp32 is the plain (CUDA core) rate, never tf32; fp4
#: stands for NVFP4 and MXFP4, which run at one rate on every GPU that has either.
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")

_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "tensorfloat32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_block": "fp8",
    "float8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float8_block128": "fp8",
    "mxfp8": "fp8",
    "uint8": "int8",
    "float4": "fp4",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "float4_e2m1fn_x2": "fp4",
    "uint4": "int4",
    "int4_g128": "int4",
    "nf4": "int4",
}


def math_format(dtype: str) -> str:
    """The key of ``Gpu.peak_flops`` that ``dtype`` means: bfloat16 -> bf16, nvfp4 -> fp4, ...

    Torch's spellings (``torch.float8_e4m3fn``) and the field's short forms are accepted, in any
    case. Raises HymellError for anything else.
    """
    key = dtype.strip().lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in FORMATS:
        raise HymellError(f"unknown dtype {dtype[:40]!r}; use one of: {', '.join(FORMATS)}")
    return key
