"""How a kernel's sizes and number formats read in a table cell."""

from __future__ import annotations

from collections.abc import Mapping

#: Shown in columns of their own, or derived from the sizes that are shown.
_ELSEWHERE = {
    "name",
    "role",
    "bytes_read",
    "bytes_written",
    "weight_bytes",
    "vector_flops",
    "input_bytes",
    "b_is_weight",
    "from_weight",
    "math",
}
_ABSENT = {"", "None", "False", "0", "0.0"}
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


def sizes_text(sizes: Mapping[str, str]) -> str:
    """``m=B*S n=6144 k=4096``: dims and flags; formats and byte counts have their own columns."""
    shown = (
        key if value == "True" else f"{key}={value.replace(' ', '')}"
        for key, value in sizes.items()
        if key not in _ELSEWHERE
        and not key.endswith("dtype")
        and value not in _ABSENT
        and (key, value) not in {("batch", "1"), ("groups", "1")}
    )
    return " ".join(shown)


def formats_text(sizes: Mapping[str, str]) -> str:
    """``bf16``, or ``bf16 x mxfp4`` where the second operand is stored in another format.

    "-" for kernels that only move bytes: their formats are in the byte counts.
    """
    first = sizes.get("a_dtype") or sizes.get("dtype", "")
    second = sizes.get("b_dtype") or sizes.get("kv_dtype") or first
    names = [_SHORT.get(name, name) for name in dict.fromkeys((first, second)) if name]
    return " x ".join(names) or "-"
