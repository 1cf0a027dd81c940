"""Any ``nn.Module`` with example inputs as an `OpGraph` of one phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from hymell.errors import HymellError, TraceError
from hymell.graph import FORMAT_VERSION, ModelFacts, OpGraph, Region
from hymell.store import package_version
from hymell.tracer.capture import dtype_name
from hymell.tracer.concrete import (
    count_parameters,
    parameter_table,
    stored_bytes,
    trace_module,
)
from hymell.tracer.fit import fit_regions


def trace_plain_module(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str | None = None,
    memo: bool = True,
    opaque_modules: Mapping[type, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> OpGraph:
    """The graph of one forward of ``module``.

    The first axis of the example tensors is taken for the batch B and, where all tensors that
    share it agree, the second for the tokens S; the graph then answers any B and S. A module whose
    shapes do not follow its inputs so is kept at the example's sizes, with a note in the facts.
    Raises HymellError without example inputs.
    """
    label = name or type(module).__name__
    tensors = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor) and t.dim()]
    if not tensors:
        raise HymellError(
            f"{label} needs example inputs: pass the tensors its forward takes, "
            "for example hymell.trace(module, args=(torch.empty(1, 128, 4096),))"
        )
    batch = tensors[0].shape[0]
    shared = [t for t in tensors if t.shape[0] == batch]
    lengths = {t.shape[1] for t in shared if t.dim() > 1}
    length = lengths.pop() if len(lengths) == 1 and tensors[0].dim() > 2 else None
    if tensors[0].dim() == 2 and not tensors[0].is_floating_point() and len(lengths) == 0:
        length = tensors[0].shape[1]

    def once(B: int, S: int, L: int) -> Region:
        def resized(tensor: Tensor) -> Tensor:
            if not tensor.dim() or tensor.shape[0] != batch:
                return tensor
            sizes = [B, *tensor.shape[1:]]
            if length is not None and len(sizes) > 1 and sizes[1] == length:
                sizes[1] = S
            return tensor.new_empty(sizes, device="meta")

        moved = tree_map_only(Tensor, resized, (tuple(args), dict(kwargs)))
        return trace_module(module, moved[0], moved[1], memo=memo, opaque_modules=opaque_modules)

    progress(f"tracing {label}")
    notes: tuple[str, ...] = ()
    try:
        regions = fit_regions(
            once, "prefill", varies=frozenset("BS" if length is not None else "B")
        )
    except TraceError as error:
        at = (batch, length or 1, 0)
        regions = (once(*at),)
        notes = (
            f"sizes do not follow batch and tokens ({error}); priced at the example's "
            f"B={batch}, S={length or 1} only",
        )
    by_dtype = stored_bytes((prod(shape), dtype) for _, shape, dtype in parameter_table(module))
    total = count_parameters(module)
    first = next(iter(module.parameters()), tensors[0])
    facts = ModelFacts(
        name=label,
        model_type="module",
        architecture=type(module).__name__,
        dtype=dtype_name(first.dtype),
        parameters=total,
        active_parameters=total,
        weight_bytes=sum(by_dtype.values()),
        weight_bytes_by_dtype=by_dtype,
        notes=notes,
    )
    versions = {"graph_format": str(FORMAT_VERSION), "torch": package_version("torch")}
    return OpGraph(facts, tuple(regions), versions)
