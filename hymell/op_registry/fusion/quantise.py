"""Activations quantised on the way into a low-precision GEMM."""

from __future__ import annotations

from dataclasses import replace

from hymell.dims import simplify
from hymell.dtypes import bytes_per_element, math_format
from hymell.op_registry.dataflow import Base
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Gemm, Memory, Preparation

#: Format of the activations that meet weights in each low-precision data-sheet row; fp4 products
#: take activations in NVFP4 blocks, int8 ones one byte with a scale per row.
_ACTIVATIONS = {"fp8": "float8_e4m3", "int8": "int8", "fp4": "nvfp4"}


def quantise_activations(plan: Plan) -> Plan:
    """Give each GEMM of a low-precision row quantised inputs, and a kernel that makes them.

    One kernel per distinct input; fused experts quantise inside. Weight-only formats need none.
    """
    groups: list[Group] = []
    made: set[tuple[Base, int, str]] = set()
    for group in plan.groups:
        gemm = group.primitive or (plan.primitives[group.ops[0]] if len(group.ops) == 1 else None)
        if not isinstance(gemm, Gemm) or gemm.math not in _ACTIVATIONS:
            groups.append(group)
            continue
        if math_format(gemm.a_dtype) == gemm.math:
            groups.append(group)
            continue
        narrow = _ACTIVATIONS[gemm.math]
        source = next(
            (r.base for r in plan.flow.reads[group.ops[0]] if r.base[0] != "weight"), None
        )
        key = (source or ("op", group.ops[0], 0, ""), group.layer, narrow)
        if key not in made and not group.name:
            made.add(key)
            groups.append(
                Group(
                    group.ops[:1],
                    group.layer,
                    group.repeat,
                    primitive=_conversion(gemm, narrow),
                    name=f"quantize_{gemm.math}",
                )
            )
        groups.append(replace(group, primitive=replace(gemm, a_dtype=narrow)))
    return replace(plan, groups=tuple(groups))


def _conversion(gemm: Gemm, narrow: str) -> Memory:
    elements = simplify(gemm.batch * gemm.m * gemm.k)
    return Memory(
        role=f"quantize_{gemm.math}",
        elements=elements,
        bytes_read=simplify(elements * bytes_per_element(gemm.a_dtype)),
        bytes_written=simplify(elements * bytes_per_element(narrow)),
        vector_flops=simplify(elements * 4),
        prepares=Preparation(gemm, rows=simplify(gemm.batch * gemm.m)),
    )
