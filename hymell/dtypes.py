"""Stored number formats and their real size, block scales included."""

from __future__ import annotations

from hymell.errors import HymellError

#: Bits per element as stored. Block formats carry their scales: nvfp4 has one fp8 scale per 16
#: elements, mxfp4 and mxfp8 one 8-bit exponent per 32 (OCP MX v1.0), the grouped int formats one
#: fp16 scale and one zero point per 128, block fp8 one fp32 scale per 128x128 tile (DeepSeek-V3).
BITS: dict[str, float] = {
    "float64": 64,
    "int64": 64,
    "complex64": 64,
    "float32": 32,
    "int32": 32,
    "bfloat16": 16,
    "float16": 16,
    "int16": 16,
    "float8_e4m3": 8,
    "float8_e5m2": 8,
    "float8_block128": 8 + 32 / (128 * 128),
    "mxfp8": 8.25,
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "int4_g128": 4 + 20 / 128,
    "nf4": 4 + 32 / 64,
    # bitsandbytes' double quantisation: 8-bit scales per 64, one fp32 per 256 of them (QLoRA)
    "nf4_double": 4 + 8 / 64 + 32 / (64 * 256),
    # one fp32 scale per 128 elements of a row
    "float8_g128": 8 + 32 / 128,
    # symmetric: one 16-bit scale per group and no zero point
    "int4_g32_sym": 4 + 16 / 32,
    "int4_g64_sym": 4 + 16 / 64,
    "int4_g128_sym": 4 + 16 / 128,
    "int4_g32": 4 + 20 / 32,
    "int4_g64": 4 + 20 / 64,
    "int8_g32_sym": 8 + 16 / 32,
    "int8_g64_sym": 8 + 16 / 64,
    "int8_g128_sym": 8 + 16 / 128,
    "int8_g32": 8 + 24 / 32,
    "int8_g64": 8 + 24 / 64,
    "int8_g128": 8 + 24 / 128,
    # one scale per output row: under 0.1% of a row, left out
    "int4_channel": 4,
}

#: What a user is likely to mean, for error messages.
USUAL = "bf16, fp16, fp32, fp8, int8, int4, nvfp4, mxfp4 or nf4"

ALIASES: dict[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "fp8": "float8_e4m3",
    "float8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "fp8_block": "float8_block128",
    "int4": "int4_g128",
    "fp4": "nvfp4",
}


def canonical(name: str) -> str:
    """The one spelling of a dtype name, torch's and the field's short forms accepted.

    Raises HymellError for a name that is not in `BITS` or `ALIASES`.
    """
    key = name.strip().lower().removeprefix("torch.")
    key = ALIASES.get(key, key)
    if key not in BITS:
        raise HymellError(f"unknown dtype {name!r}; use {USUAL}")
    return key


def bytes_per_element(name: str) -> float:
    """Stored bytes per element of a canonical dtype, its block scales included."""
    return BITS[name] / 8


def math_format(name: str) -> str:
    """The data-sheet row that multiplies numbers stored so: fp64, fp32, bf16, fp16, fp8, ..."""
    if name in ("float8_e4m3", "float8_e5m2", "float8_block128", "float8_g128", "mxfp8"):
        return "fp8"
    if name in ("nvfp4", "mxfp4"):
        return "fp4"
    short = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    return short.get(name, "int8" if name in ("int8", "uint8") else "bf16")
