"""The intermediate representation: what a model does, with every size a formula in B, S, L.

An `OpGraph` holds, per phase, one or more `Region`s: stretches of the workload space in which the
model runs the same ops and every dim is one polynomial (batch 1 drops a few copies, a sliding
window clips the cache). Ops of identical layers are recorded once, with a repeat count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hymell.dims import Dim, Size, dim, simplify
from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError

if TYPE_CHECKING:
    import torch.fx

Phase: TypeAlias = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
Source: TypeAlias = Literal["op", "weight", "input", "state", "constant"]
Attr: TypeAlias = Any

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and stored dtype of a tensor; sizes are ints or polynomials."""

    shape: tuple[Size, ...]
    dtype: str

    @property
    def numel(self) -> Size:
        """Number of elements."""
        total: Size = 1
        for size in self.shape:
            total = simplify(total * size)
        return total

    @property
    def element_bytes(self) -> float:
        """Stored bytes per element."""
        return bytes_per_element(self.dtype)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor an op reads, and where it comes from.

    ``kind`` "op": output ``index`` of op ``op`` of the same region; "weight": the parameter or
    buffer ``name``; "input": a model input; "state": a KV or recurrent cache tensor from an
    earlier step; "constant": made outside any op (a Python number, a fresh tensor).
    """

    spec: TensorSpec
    kind: Source
    op: int = -1
    index: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation as PyTorch dispatches it, or a composite kept whole.

    ``name`` is ``aten.mm.default`` or ``hymell.attention``, ``hymell.experts``,
    ``hymell.scan.<kind>``; ``path`` and ``module`` are the innermost module's path and class;
    ``repeat`` how many identical layers this op stands for; ``attrs`` its non-tensor arguments.
    """

    id: int
    name: str
    path: str
    module: str
    inputs: tuple[Operand, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    repeat: int = 1
    part: str = "model"


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a repeated layer's input comes from over all its repeats.

    The recorded layer reads output ``index`` of op ``op``; over its ``repeat`` occurrences that
    input was produced by each of ``producers``: ((op, index), how often). ``op`` is -1 for a
    producer outside the region (a model input).
    """

    op: int
    index: int
    producers: tuple[tuple[tuple[int, int], int], ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """A run of ops ``start <= id < stop`` that one layer module made.

    ``path`` is the recorded layer, ``paths`` every layer it stands for (``len(paths)`` equals the
    ops' repeat count).
    """

    path: str
    module: str
    start: int
    stop: int
    paths: tuple[str, ...]
    feeds: tuple[Feed, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A tensor kept between steps, as it stands when the step begins.

    ``kind``: "kv" (grows with L or is clipped by ``window``), "latent" (MLA's compressed KV),
    "recurrent" or "conv" (constant in L). ``repeat`` counts identical layers.
    """

    kind: str
    name: str
    path: str
    spec: TensorSpec
    repeat: int = 1
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds; ``hi`` None means unbounded."""

    lo: int = 1
    hi: int | None = None

    def __contains__(self, value: int) -> bool:
        return self.lo <= value and (self.hi is None or value <= self.hi)


@dataclass(frozen=True, slots=True)
class Region:
    """What one phase runs for B, S and L inside the given ranges."""

    phase: Phase
    ops: tuple[Op, ...]
    layers: tuple[Layer, ...] = ()
    state: tuple[StateSpec, ...] = ()
    B: Range = Range()
    S: Range = Range()
    L: Range = Range(0)

    def contains(self, B: int, S: int, L: int) -> bool:
        """True when the workload point lies in this region."""
        return B in self.B and S in self.S and L in self.L


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a report needs to know of a model besides its ops.

    ``parameters`` counts tied weights once; ``active_parameters`` counts ``top_k`` of the routed
    experts; ``weight_bytes`` uses the stored formats (quantised checkpoints included) and
    ``weight_bytes_by_dtype`` splits them. ``max_context`` is None when the config sets no limit.
    ``quantization`` names the checkpoint's scheme in words, or None; ``quantized_math``
    maps a stored format to the data-sheet row ("fp8", "fp4", "int8") that its GEMMs run in, absent
    for weight-only formats; ``kv_dtype`` is the cache format that the checkpoint asks for.
    """

    name: str
    model_type: str
    architecture: str
    dtype: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    weight_bytes_by_dtype: Mapping[str, float]
    max_context: int | None = None
    vocab_size: int | None = None
    quantization: str | None = None
    quantized_math: Mapping[str, str] = field(default_factory=dict)
    kv_dtype: str | None = None
    parts: tuple[str, ...] = ("model",)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpGraph:
    """A traced model: facts and regions. Save with `to_json`, load with `from_json`."""

    facts: ModelFacts
    regions: tuple[Region, ...]
    versions: Mapping[str, str] = field(default_factory=dict)

    def phases(self) -> tuple[Phase, ...]:
        """The phases that were traced; an encoder has no decode."""
        return tuple(p for p in PHASES if any(r.phase == p for r in self.regions))

    def of_phase(self, phase: Phase) -> tuple[Region, ...]:
        """The regions of one phase, in the order they were recorded."""
        return tuple(region for region in self.regions if region.phase == phase)

    def region(self, phase: Phase, B: int = 1, S: int = 1, L: int = 0) -> Region:
        """The region that holds a workload point.

        Raises HymellError when the phase was not traced or no region holds the point.
        """
        regions = self.of_phase(phase)
        for region in regions:
            if region.contains(B, S, L):
                return region
        if not regions:
            raise HymellError(f"{self.facts.name} has no {phase} phase")
        raise HymellError(f"{self.facts.name}: no traced {phase} region holds B={B}, S={S}, L={L}")

    def with_facts(self, **changes: Any) -> OpGraph:
        """The same graph with some facts replaced."""
        return replace(self, facts=replace(self.facts, **changes))

    def to_json(self) -> str:
        """Compact JSON; `from_json` gives an equal graph back."""
        from hymell.graph_json import dump

        return json.dumps(dump(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> OpGraph:
        """Rebuild a graph; raises HymellError when the text is not one of this format version."""
        from hymell.graph_json import load

        return load(text)

    def to_fx(self, phase: Phase = "prefill", B: int = 1, S: int = 1, L: int = 0) -> torch.fx.Graph:
        """The region that holds the point as a ``torch.fx.Graph``.

        Each node's ``meta`` holds ``shape`` and ``dtype`` (evaluated), ``dims`` (formulas),
        ``module_path``, ``module_class``, ``repeat``, ``part`` and ``attrs``. Imports torch.
        """
        from hymell.tracer.fx import to_fx

        return to_fx(self.region(phase, B, S, L), B, S, L)


def consumers(ops: Iterable[Op]) -> dict[int, list[Op]]:
    """Which ops read each op's outputs."""
    readers: dict[int, list[Op]] = {}
    for op in ops:
        for producer in {operand.op for operand in op.inputs if operand.kind == "op"}:
            readers.setdefault(producer, []).append(op)
    return readers


__all__ = [
    "PHASES",
    "Dim",
    "Feed",
    "Layer",
    "ModelFacts",
    "Op",
    "OpGraph",
    "Operand",
    "Phase",
    "Range",
    "Region",
    "Size",
    "StateSpec",
    "TensorSpec",
    "consumers",
    "dim",
]
