"""From a model on meta to a complete `OpGraph`: regions of both phases, facts, stored formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from hymell import quantization
from hymell.dims import whole
from hymell.dtypes import math_format
from hymell.errors import TraceError
from hymell.graph import FORMAT_VERSION, ModelFacts, Op, Operand, OpGraph, Region
from hymell.store import package_version
from hymell.tracer.build import build_model
from hymell.tracer.concrete import parameter_table, stored_bytes, trace_once
from hymell.tracer.fit import fit_regions
from hymell.tracer.parts import split
from hymell.tracer.shorten import grown, twins_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from hymell.graph import Phase
    from hymell.quantization import QuantScheme

Progress = Callable[[str], None]

#: Config fields that hold a length at which a model's behaviour changes.
_BOUNDARY_WORDS = ("window", "attention_chunk_size", "chunk_size", "local_attention")
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "context_length",
    "max_target_positions",
)


def trace_config(
    config: PretrainedConfig,
    name: str,
    *,
    scheme: QuantScheme | None = None,
    notes: tuple[str, ...] = (),
    trust_remote_code: bool = False,
    memo: bool = True,
    logits_to_keep: int = 1,
    opaque_modules: Mapping[type, str] | None = None,
    progress: Progress = lambda _: None,
) -> OpGraph:
    """Trace every phase of a config's model and collect what a report needs to know of it.

    ``scheme`` gives weights their stored formats. Raises TraceError when the model cannot be
    traced.
    """
    progress(f"building {name} on meta tensors")
    model = build_model(config, trust_remote_code=trust_remote_code)
    how: dict[str, Any] = {
        "memo": memo,
        "logits_to_keep": logits_to_keep,
        "opaque_modules": opaque_modules,
    }
    regions = None
    if memo and not trust_remote_code:
        regions = _from_twins(config, model, name, progress, how)
    if regions is None:
        regions = _traced(model, model.config, name, progress, how, _boundaries(model.config))
    return _assembled(model, name, regions, scheme, notes)


def trace_model(
    model: nn.Module,
    name: str,
    *,
    scheme: QuantScheme | None = None,
    notes: tuple[str, ...] = (),
    memo: bool = True,
    logits_to_keep: int = 1,
    opaque_modules: Mapping[type, str] | None = None,
    boundaries: Iterable[int] = (),
    progress: Progress = lambda _: None,
) -> OpGraph:
    """`trace_config` for a Hugging Face model that stands on meta already.

    ``boundaries``: lengths at which its behaviour may change, beside those its config names.
    """
    how = {"memo": memo, "logits_to_keep": logits_to_keep, "opaque_modules": opaque_modules}
    hints = (*_boundaries(model.config), *boundaries)
    regions = _traced(model, model.config, name, progress, how, hints)
    return _assembled(model, name, regions, scheme, notes)


def _traced(
    model: nn.Module,
    config: Any,
    name: str,
    progress: Progress,
    how: Mapping[str, Any],
    boundaries: Iterable[int],
) -> list[Region]:
    """The regions of all phases; ``boundaries``: where behaviour may change with the length."""
    parts = split(model)
    phases: tuple[Phase, ...] = ("prefill", "decode")
    hints = tuple(sorted(set(boundaries)))
    context = _max_context(config)
    regions: list[Region] = []
    signatures: dict[int, Any] = {}
    for phase in phases:
        if not any(phase in part.phases for part in parts):
            continue
        progress(f"tracing the {phase} of {name}")

        def once(B: int, S: int, L: int, phase: Phase = phase) -> Region:
            return trace_once(model, phase, B, S, L, signatures=signatures, **how)

        regions += fit_regions(
            once,
            phase,
            varies=_varying(phase, [part.name for part in parts]),
            boundaries_S=hints,
            boundaries_L=hints,
            # At the full context buffers are used whole and a view drops out, which costs nothing.
            limit=context - 1 if context else None,
        )
    return regions


def _from_twins(
    config: PretrainedConfig,
    model: nn.Module,
    name: str,
    progress: Progress,
    how: Mapping[str, Any],
) -> list[Region] | None:
    """The regions by way of twins with fewer layers; None where the model has no such twins."""
    twins = twins_of(config, model)
    if twins is None:
        return None
    try:
        short = _traced(twins.few, model.config, name, progress, how, _boundaries(model.config))
        signatures: dict[int, Any] = {}
        found = []
        for region in short:

            def more(B: int, S: int, L: int, phase: Phase = region.phase) -> Region:
                return trace_once(twins.more, phase, B, S, L, signatures=signatures, **how)

            found.append(grown(region, more, twins.paths))
    except TraceError:
        return None
    known = [region for region in found if region is not None]
    return known if len(known) == len(found) else None


def _assembled(
    model: nn.Module,
    name: str,
    regions: Iterable[Region],
    scheme: QuantScheme | None,
    notes: tuple[str, ...],
) -> OpGraph:
    """The graph of traced regions: stored formats, facts, versions."""
    stored = tuple(_with_stored_formats(region, scheme) for region in regions)
    parts = tuple(part.name for part in split(model))
    facts = _facts(model, name, stored, scheme, parts, _max_context(model.config), notes)
    versions = {
        "graph_format": str(FORMAT_VERSION),
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
    }
    return OpGraph(facts, stored, versions)


def _varying(phase: Phase, parts: list[str]) -> frozenset[str]:
    """The variables that a phase follows; an image tower alone has no tokens."""
    if phase == "decode":
        return frozenset("BSL" if "decoder" in parts else "BL")
    return frozenset("B" if parts == ["vision"] else "BS")


def _configs(config: Any) -> Iterator[Any]:
    """A config and the configs inside it."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _configs(value)


def _boundaries(config: Any) -> Iterator[int]:
    for holder in _configs(config):
        for key, value in vars(holder).items():
            if any(word in key for word in _BOUNDARY_WORDS):
                values = value if isinstance(value, (list, tuple)) else (value,)
                yield from (v for v in values if isinstance(v, int) and v > 1)


def _max_context(config: Any) -> int | None:
    """The context length a config promises, or None."""
    text = config.get_text_config(decoder=True)
    for holder in (text, config):
        for key in _CONTEXT_FIELDS:
            value = getattr(holder, key, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _with_stored_formats(region: Region, scheme: QuantScheme | None) -> Region:
    """Weights in the format the checkpoint keeps them in; the ops' results stay as computed."""
    if scheme is None:
        return region
    return replace(region, ops=tuple(_stored(op, scheme) for op in region.ops))


def _stored(op: Op, scheme: QuantScheme) -> Op:
    inputs = tuple(_stored_operand(operand, scheme) for operand in op.inputs)
    return op if inputs == op.inputs else replace(op, inputs=inputs)


def _stored_operand(operand: Operand, scheme: QuantScheme) -> Operand:
    if operand.kind != "weight":
        return operand
    shape = tuple(whole(size) for size in operand.spec.shape)
    dtype = scheme.weight_dtype(operand.name, shape)
    if dtype is None:
        return operand
    return replace(operand, spec=replace(operand.spec, dtype=dtype))


def _facts(
    model: nn.Module,
    name: str,
    regions: tuple[Region, ...],
    scheme: QuantScheme | None,
    parts: tuple[str, ...],
    context: int | None,
    notes: tuple[str, ...],
) -> ModelFacts:
    config: Any = model.config
    math: dict[str, str] = {}
    held: list[tuple[int, str]] = []
    for parameter, shape, dtype in parameter_table(model):
        rule = scheme.rule(parameter, shape) if scheme else None
        held.append((prod(shape), dtype if rule is None else rule.weights))
        if rule is not None and rule.activations is not None:
            math[rule.weights] = math_format(rule.activations)
    by_dtype = stored_bytes(held)
    total = sum(count for count, _ in held)
    text = config.get_text_config(decoder=True)
    return ModelFacts(
        name=name,
        model_type=config.model_type,
        architecture=type(model).__name__,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        parameters=total,
        active_parameters=total - _idle_parameters(regions),
        weight_bytes=sum(by_dtype.values()),
        weight_bytes_by_dtype=by_dtype,
        max_context=context,
        vocab_size=getattr(text, "vocab_size", None),
        quantization=scheme.name if scheme else None,
        quantized_math=math,
        kv_dtype=scheme.kv_dtype if scheme else None,
        parts=parts,
        notes=notes,
    )


def _idle_parameters(regions: Iterable[Region]) -> int:
    """Parameters of routed experts that one token does not use: 1 - k/E of them."""
    region = next(iter(regions))
    idle = 0
    for op in region.ops:
        if op.name == "hymell.experts":
            experts, top_k = op.attrs["experts"], op.attrs["top_k"]
            held = sum(
                whole(operand.spec.numel) for operand in op.inputs if operand.kind == "weight"
            )
            idle += op.repeat * held * (experts - top_k) // experts
    return idle


def scheme_of(config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None) -> QuantScheme | None:
    """The quantisation scheme that a published config describes, None where it has none."""
    return quantization.parse(config, hf_quant)
