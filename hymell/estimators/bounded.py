"""The intervals of a deployment: which bounds hold for it, and what they make of its costs.

Time to first token takes the bounds of prefill, time per output token those of decode, energy its
own. Latency is as low, or as high, as both phases are together; throughput is its inverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hymell.cost_report import Accuracy
from hymell.estimators.base import Array, Deployment, Estimator, Mask
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.calibration import shipped
from hymell.estimators.eager import Eager
from hymell.estimators.intervals import (
    LEVEL1,
    LEVEL1_TRANSFERRED,
    OWN,
    SHEET,
    SYSTEMS,
    TRANSFERRED,
    Book,
    Bounds,
    Entry,
    shipped_book,
)
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.links import Linked
from hymell.op_registry.primitives import Experts, GroupedGemm

#: What each phase's bounds are of, and the phase's name in words.
PHASES: Final[Mapping[str, str]] = {"prefill": "ttft_s", "decode": "tpot_s", "energy": "energy_j"}

#: More of a phase's kernel time than this on sizes beyond kernel tables, and more than in the whole
#: runs measured: out of range.
BEYOND: Final = 0.25

_SIXTEEN_BIT: Final = frozenset({"bfloat16", "float16"})

_KINDS: Final = {"dense": "dense models", "moe": "models with experts"}


@dataclass(frozen=True, slots=True)
class Held:
    """The bounds of a phase of a deployment, None where there are none, and ``why`` says it.

    ``always``: for each entry of the bounds why it is out of range, whatever the workload.
    """

    bounds: Bounds | None
    always: tuple[tuple[str, ...], ...] = ()
    why: str = ""

    def factors(self, B: Array, tokens: Array, beyond: float) -> tuple[Array, Array]:
        """Low and high factors of workloads; ``tokens`` as `tokens_of`, ``beyond`` as `intervals`.

        Workloads out of the first entry's range take the first entry that holds them, or the
        second where none does.
        """
        assert self.bounds is not None
        low, high = (np.array(ends) for ends in zip(*self.bounds.factors, strict=True))
        place = np.full(len(B), min(1, len(low) - 1))
        for index in reversed(range(len(low))):
            place[self._holds(index, B, tokens, beyond)] = index
        return low[place], high[place]

    def _holds(self, place: int, B: Array, tokens: Array, beyond: float) -> Mask:
        assert self.bounds is not None
        # Whether kernels were measured at such sizes matters for the estimator that prices them.
        entry = self.bounds.entries[place]
        if self.always[place] or (place == 0 and beyond > max(BEYOND, entry.beyond)):
            return np.zeros(len(B), dtype=bool)
        batch = (entry.batch[0] <= B) & (entry.batch[1] >= B)
        return np.asarray(batch & (entry.tokens[0] <= tokens) & (entry.tokens[1] >= tokens))

    def reasons(self, B: float, tokens: float, beyond: float) -> Iterator[str]:
        """Why one workload is out of the range of the first entry; nothing where it is in range."""
        assert self.bounds is not None
        yield from self.always[0]
        entry = self.bounds.entries[0]
        if not entry.batch[0] <= B <= entry.batch[1]:
            yield f"batch {B:,.0f} (measured: {_span(entry.batch)})"
        if not entry.tokens[0] <= tokens <= entry.tokens[1]:
            yield f"{tokens:,.0f} tokens per sequence (measured: {_span(entry.tokens)})"
        if beyond > max(BEYOND, entry.beyond):
            yield f"{beyond:.0%} of the kernels' time on sizes beyond their tables"


def held(model: Deployment, phase: str, book: Book | None = None) -> Held:
    """The bounds of a phase ("prefill", "decode", "energy") of a deployment."""
    entries = shipped_book() if book is None else book
    engine, kind = model.engine.name, kind_of(model)
    if not entries.measured(engine, phase):
        return Held(None, why=f"no measured runs of {engine} to judge {_WHAT[phase]} by")
    basis, home = _fitted(model, phase)
    rung, gpu = rung_of(model, phase), model.gpu.name
    found = entries.bounds(rung, engine, gpu, phase, kind, basis=basis, home=home)
    if found is None:
        what = f"{_KINDS[kind]} under {engine}"
        return Held(None, why=f"no measured runs of {what} to judge {_WHAT[phase]} by")
    always = (
        tuple(_always(model, entry, basis if place == 0 else entry.basis))
        for place, entry in enumerate(found.entries)
    )
    return Held(found, tuple(always))


def _fitted(model: Deployment, phase: str) -> tuple[str, str]:
    """The basis and the GPU of what was fitted to whole models, "" where nothing was."""
    if phase == "energy":
        return ("", "") if model.energies is None else (model.energies.source, model.energies.gpu)
    estimator = _inner(model)
    if isinstance(estimator, Eager):
        return estimator.system.source, model.gpu.name
    return ("", "") if model.system is None else (model.system.version, model.system.gpu)


_WHAT: Final = {"prefill": "TTFT", "decode": "TPOT", "energy": "energy"}


def rung_of(model: Deployment, phase: str) -> str:
    """How a deployment is priced: one of `intervals.RUNGS`."""
    fitted = model.energies if phase == "energy" else model.system
    if fitted is not None:
        return TRANSFERRED if fitted.transferred else OWN
    estimator = _inner(model)
    if isinstance(estimator, Eager) and phase != "energy":
        return OWN if estimator.calibrated else TRANSFERRED
    if not isinstance(estimator, Calibrated):
        return SHEET
    return LEVEL1 if estimator.calibrated else LEVEL1_TRANSFERRED


def kind_of(model: Deployment) -> str:
    """The kind of a model: "moe" with routed experts, else "dense"."""
    for index in range(len(model.graph.regions)):
        primitives = (kernel.primitive for kernel in model.lowered(index).kernels)
        if any(isinstance(primitive, Experts | GroupedGemm) for primitive in primitives):
            return "moe"
    return "dense"


def weight_format(model: Deployment) -> str:
    """The format that most weight bytes are in, as `format_class` names it."""
    formats, facts = model.precision, model.graph.facts
    stored = facts.weight_bytes_by_dtype
    most = max(stored, key=lambda name: stored[name], default=facts.dtype)
    return format_class(formats.weights or formats.activations or most)


def format_class(name: str) -> str:
    """A format's name; both 16-bit ones run alike."""
    return "16-bit" if name in _SIXTEEN_BIT else name


def tokens_of(phase: str, prompt: Array, output: Array) -> Array:
    """Tokens of a sequence that a phase's range is about: the prompt, after prefill all of them."""
    return prompt if phase == "prefill" else prompt + output


def _always(model: Deployment, entry: Entry, basis: str) -> Iterator[str]:
    """Why nothing that a deployment runs is in the range of an entry."""
    stored, gpus = weight_format(model), model.parallel.gpus
    if entry.basis != basis and entry.rung in SYSTEMS:
        yield f"fitted on {basis} (measured: {entry.basis})"
    if stored not in entry.formats:
        yield f"weights in {stored} (measured: {', '.join(entry.formats)})"
    if not entry.gpus[0] <= gpus <= entry.gpus[1]:
        yield f"{gpus} GPUs (measured: {_span(entry.gpus)})"
    if model.parallel.pp > 1:
        yield "stages of layers, which were not measured"
    estimator = _inner(model)
    if isinstance(estimator, Calibrated):
        if any(shipped(c.gpu, c.library) is not c for c in estimator.sources):
            yield "a calibration that was not judged"
    elif not isinstance(estimator, Roofline | Eager):
        yield f"the estimator {estimator.name}, which was not judged"


def _inner(model: Deployment) -> Estimator:
    return model.estimator.inner if isinstance(model.estimator, Linked) else model.estimator


def _span(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:,.0f}" if low == high else f"{low:,.0f}-{high:,.0f}"


def intervals(
    model: Deployment,
    costs: Mapping[str, Array],
    B: Array,
    prompt: Array,
    output: Array,
    *,
    beyond: Mapping[str, float] | None = None,
    book: Book | None = None,
) -> dict[str, tuple[Array, Array]]:
    """Low and high of each cost that has an interval; ``costs`` as `predict.price` returns them.

    ``beyond``: by phase, the share of the kernels' time on sizes beyond their tables, where it is
    known. Arrays of one entry per workload.
    """
    shares = {} if beyond is None else beyond
    factors: dict[str, tuple[Array, Array]] = {}
    for phase in PHASES:
        found = held(model, phase, book)
        if found.bounds is None:
            continue
        tokens = tokens_of(phase, prompt, output)
        factors[phase] = found.factors(B, tokens, shares.get(phase, 0.0))
    made: dict[str, tuple[Array, Array]] = {}
    prefill, decode = factors.get("prefill"), factors.get("decode")
    if prefill is not None:
        made["ttft_s"] = _times(costs["ttft_s"], prefill)
    if decode is not None:
        made["tpot_s"] = _times(costs["tpot_s"], decode)
    if prefill is not None and (decode is not None or not costs["decode_time_s"].any()):
        first, rest = made["ttft_s"], _times(costs["decode_time_s"], decode or prefill)
        made["latency_s"] = first[0] + rest[0], first[1] + rest[1]
        made["tokens_per_s"] = B * output / made["latency_s"][1], B * output / made["latency_s"][0]
    if "energy" in factors:
        for name in ("energy_j", "energy_per_output_token_j"):
            made[name] = _times(costs[name], factors["energy"])
    return made


def _times(value: Array, factors: tuple[Array, Array]) -> tuple[Array, Array]:
    return value * factors[0], value * factors[1]


def accuracies(
    model: Deployment,
    B: float,
    prompt: float,
    output: float,
    *,
    beyond: Mapping[str, float],
    book: Book | None = None,
) -> dict[str, Accuracy]:
    """By quantity how near its estimator was to models left out, or why that is not known.

    ``beyond`` as `intervals` takes it.
    """
    made = {}
    for phase, quantity in PHASES.items():
        if phase == "decode" and (output == 1 or phase not in model.graph.phases()):
            continue
        found = held(model, phase, book)
        if found.bounds is None:
            made[quantity] = Accuracy(note=found.why)
            continue
        tokens = float(tokens_of(phase, np.array(prompt), np.array(output)))
        why = tuple(found.reasons(B, tokens, beyond.get(phase, 0.0)))
        made[quantity] = _accuracy(model, phase, found.bounds.entries[0], why)
    return made


def _accuracy(model: Deployment, phase: str, entry: Entry, why: tuple[str, ...]) -> Accuracy:
    gpus = "one" if model.parallel.gpus == 1 else "several"
    # Where no run has as many GPUs, those of the others say how near it is.
    gpus = gpus if gpus in entry.judged else next(iter(entry.judged))
    judged = entry.judged[gpus]
    notes = [f"out of range: {'; '.join(why)}"] if why else []
    if entry.rung != rung_of(model, phase):
        notes.insert(0, "the very estimator was not measured on such models")
    if model.offsets is not None:
        notes.append("offset by your own runs, which these errors do not know of")
    return Accuracy(
        estimator=_named(entry, phase),
        kind=_KINDS[entry.kind],
        gpus=gpus,
        load=entry.load,
        mape=judged.mape,
        rows=judged.rows,
        models=judged.models,
        sets=entry.sets,
        in_range=not why,
        note="; ".join(notes),
    )


def _named(entry: Entry, phase: str) -> str:
    """The estimator of an entry in words."""
    where = entry.gpu or "all GPUs measured"
    if phase == "energy":
        return {
            OWN: f"power of whole runs under {entry.engine} on {where}",
            TRANSFERRED: f"power of whole runs under {entry.engine} on another GPU, on {where}",
            LEVEL1: f"power of calibrated kernels under {entry.engine}, on {where}",
            LEVEL1_TRANSFERRED: (
                f"power of kernels calibrated on other GPUs under {entry.engine}, on {where}"
            ),
            SHEET: f"data-sheet power under {entry.engine}, on {where}",
        }[entry.rung]
    # Eager has no versions: its basis is the source of its runs.
    version = "" if entry.engine == "eager" else entry.basis
    engine = " ".join((entry.engine, version)).strip()
    typical = f"typical overheads of {engine}, on {where}"
    return {
        OWN: f"system of {engine} on {where}",
        TRANSFERRED: f"system of {engine} of other GPUs, on {where}",
        LEVEL1: f"calibrated kernels, {typical}",
        LEVEL1_TRANSFERRED: f"kernels calibrated on other GPUs, {typical}",
        SHEET: f"data sheet, {typical}",
    }[entry.rung]
