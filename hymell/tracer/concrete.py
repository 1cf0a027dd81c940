"""Trace a model at one workload point: int shapes everywhere."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from hymell.dtypes import bytes_per_element
from hymell.graph import Phase, Range, Region
from hymell.tracer.capture import dtype_name
from hymell.tracer.parts import Point, split, trace
from hymell.tracer.session import Session, run_session


def trace_once(
    model: nn.Module,
    phase: Phase,
    B: int,
    S: int,
    L: int,
    *,
    memo: bool = True,
    logits_to_keep: int = 1,
    part: str = "model",
    opaque_modules: Mapping[type, str] | None = None,
    signatures: dict[int, Any] | None = None,
) -> Region:
    """What a Hugging Face model on meta runs for B sequences of S new and L cached tokens.

    Prefill: S prompt tokens, ``state`` as it stands after them. Decode: one token (S is 1) on a
    cache of L tokens, ``state`` as it stands before the step. ``memo`` traces identical layers
    once. ``logits_to_keep`` 0 computes logits for every token. Models of several parts run all of
    them, labelled by ``Op.part`` (see `hymell.tracer.parts.split`); ``part`` names one to run
    alone. ``opaque_modules`` maps module classes to names; each is recorded as one
    ``hymell.opaque.<name>``. ``signatures``: an empty dict to share between traces of one model
    that does not change meanwhile, which spares them looking at every layer again.
    Raises TraceError with one line when the model cannot be traced.
    """
    parts = split(model)
    names = [candidate.name for candidate in parts]
    chosen = tuple(p for p in parts if p.name == part) or parts
    label = None if part in ("model", *names) else part
    point = Point(phase, B, S, L, logits_to_keep)
    return trace(
        model,
        chosen,
        point,
        memo=memo,
        opaque_modules=opaque_modules or {},
        label=label,
        signatures=signatures,
    )


def trace_module(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memo: bool = True,
    part: str = "model",
    opaque_modules: Mapping[type, str] | None = None,
) -> Region:
    """What any module runs on example inputs, as a prefill region with int shapes.

    Inputs and weights are stood in for by meta tensors; the module is not changed and no storage
    is copied. Raises TraceError with one line when the forward cannot be traced.
    """
    twin = meta_copy(module)
    to_meta = tree_map_only(Tensor, _meta, (tuple(args), dict(kwargs or {})))

    def body(session: Session) -> Region:
        call_args, call_kwargs = to_meta
        for i, leaf in enumerate(x for x in tree_leaves(to_meta) if isinstance(x, Tensor)):
            session.named(leaf, f"input_{i}")
        session.model(*call_args, **call_kwargs)
        ops, layers = session.recorded([part] * len(session.capture.drafts))
        first = next((x for x in tree_leaves(to_meta) if isinstance(x, Tensor) and x.dim()), None)
        shape = () if first is None else tuple(first.shape)
        B = shape[0] if shape else 1
        S = shape[1] if len(shape) > 1 else 1
        return Region("prefill", ops, layers, (), Range(B, B), Range(S, S), Range(0, 0))

    return run_session(
        twin,
        body,
        memo=memo,
        opaque_modules=opaque_modules or {},
        label=type(module).__name__,
    )


def meta_copy(module: nn.Module) -> nn.Module:
    """A copy of a module with every tensor on meta; storages are not copied, ties are kept."""
    held: dict[int, Any] = {}
    for member in module.modules():
        for value in (
            *member._parameters.values(),
            *member._buffers.values(),
            *vars(member).values(),
        ):
            if isinstance(value, nn.Parameter):
                held[id(value)] = nn.Parameter(_meta(value), requires_grad=value.requires_grad)
            elif isinstance(value, Tensor):
                held[id(value)] = _meta(value)
    return copy.deepcopy(module, held)


def _meta(tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta":
        return tensor.detach()
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def parameter_table(model: nn.Module) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(name, shape, dtype) of every parameter; tied weights once, under their first name."""
    return tuple(
        (name, tuple(parameter.shape), dtype_name(parameter.dtype))
        for name, parameter in model.named_parameters()
    )


def stored_bytes(held: Iterable[tuple[int, str]]) -> dict[str, float]:
    """Bytes by stored dtype of (elements, dtype) pairs."""
    total: dict[str, float] = {}
    for elements, dtype in held:
        total[dtype] = total.get(dtype, 0.0) + elements * bytes_per_element(dtype)
    return total


def count_parameters(model: nn.Module) -> int:
    """Number of parameters, tied weights once."""
    return sum(parameter.numel() for parameter in model.parameters())
