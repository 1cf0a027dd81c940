"""Own runs held against the estimate of their configuration: which are of it, what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from hymell.analysis.own_checks import check_run
from hymell.analysis.own_runs import OwnRun, model_key
from hymell.estimators.base import Array, Deployment
from hymell.estimators.energy import PowerModel
from hymell.estimators.offset_fit import ENERGY_WIDTH, PRIORS, OffsetFit, energy_factor
from hymell.estimators.offsets import Offsets
from hymell.estimators.pipeline import energy_j
from hymell.estimators.rollup import (
    PhaseTotals,
    decode_totals,
    offset_totals,
    prefill_totals,
)
from hymell.hardware import find_gpu
from hymell.workload import Precision

#: Configurations that a warning lists.
_SHOWN: Final = 3

_ENERGY: Final = "energy"


def applicable(
    runs: Sequence[OwnRun], model: Deployment, names: Sequence[str]
) -> tuple[OwnRun, ...]:
    """Those of the configuration that is priced; ``names`` are what its model is called."""
    keys = {model_key(name) for name in names}
    format_ = _format(model, model.precision)
    return tuple(
        run
        for run in runs
        if model_key(run.model) in keys
        and run.engine == model.engine.name
        and run.parallel == model.parallel
        and find_gpu(run.gpu) == model.gpu
        and _format(model, Precision.of(run.dtype)) == format_
    )


def offsets_for(
    model: Deployment, runs: Sequence[OwnRun], names: Sequence[str], source: str
) -> Offsets | None:
    """What runs say of the configuration that is priced, None where none is of it.

    Raises HymellError, naming the row, for a run that cannot be.
    """
    found = applicable(runs, model, names)
    return fit_offsets(price_runs(model, found), source) if found else None


def not_applicable(runs: Sequence[OwnRun], source: str) -> str:
    """A warning that says what the runs are of instead."""
    there = list(dict.fromkeys(str(run.configuration) for run in runs))
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return (
        f"your runs ({source}) are of another configuration ({'; '.join(there[:_SHOWN])}{more}): "
        "nothing of them is used"
    )


def _format(model: Deployment, formats: Precision) -> str:
    facts = model.graph.facts
    return formats.weights or formats.activations or facts.quantization or facts.dtype


@dataclass(frozen=True)
class Priced:
    """Runs of one configuration with the estimated totals of their phases, one entry per run."""

    model: Deployment
    runs: tuple[OwnRun, ...]
    prefill: PhaseTotals
    decode: PhaseTotals
    batch: Array
    decoded: Array

    def take(self, rows: Sequence[int]) -> Priced:
        """Some of the runs."""
        index = np.array(rows, dtype=int)

        def of(totals: PhaseTotals) -> PhaseTotals:
            return PhaseTotals(*(getattr(totals, each.name)[index] for each in fields(totals)))

        runs = tuple(self.runs[row] for row in rows)
        phases = of(self.prefill), of(self.decode)
        return Priced(self.model, runs, *phases, self.batch[index], self.decoded[index])

    def predicted(self, offsets: Offsets) -> dict[str, Array]:
        """TTFT, TPOT, latency in s and energy in J of each run under some offsets."""
        model = replace(self.model, offsets=offsets)
        prefill = offset_totals(model, offsets, "prefill", self.prefill, self.batch)
        decode = offset_totals(model, offsets, "decode", self.decode, self.batch)
        power = PowerModel.of(model.gpu)
        return {
            "ttft": prefill.time_s,
            "tpot": decode.time_s / np.maximum(self.decoded, 1),
            "latency": prefill.time_s + decode.time_s,
            _ENERGY: energy_j(model, "prefill", prefill, power)
            + energy_j(model, "decode", decode, power),
        }


def price_runs(model: Deployment, runs: Sequence[OwnRun]) -> Priced:
    """The estimate of each run by ``model``, which has no offsets.

    Raises HymellError, naming the row, for a run that cannot be: faster than the data sheet allows,
    with more power than the boards', or far from the estimate by a unit.
    """
    B, prompt, output = (
        np.array([getattr(run, name) for run in runs], dtype=np.float64)
        for name in ("batch", "prompt", "output")
    )
    prefill = prefill_totals(model, B, prompt)
    decode = decode_totals(model, B, prompt, output)
    priced = Priced(model, tuple(runs), prefill, decode, B, output - 1)
    plain = priced.predicted(Offsets())
    for row, run in enumerate(runs):
        check_run(model, run, {name: float(values[row]) for name, values in plain.items()})
    return priced


def fit_offsets(priced: Priced, source: str) -> Offsets:
    """The offsets of runs of one configuration, with their errors before and after.

    After: each run by offsets fitted to the others; None for a single run, which leaves nothing to
    judge by. ``source`` names the runs.
    """
    rows = list(range(len(priced.runs)))
    before = _mean_errors([_errors(priced, Offsets())])
    after = None
    if len(rows) > 1:
        left_out = []
        for row in rows:
            rest = priced.take([other for other in rows if other != row])
            left_out.append(_errors(priced.take([row]), fitted(rest)))
        after = _mean_errors(left_out)
    return replace(fitted(priced), source=source, rows=len(rows), before=before, after=after)


def fitted(priced: Priced, energy_width: float = ENERGY_WIDTH) -> Offsets:
    """The offsets of runs of one configuration; ``energy_width`` as of `energy_factor`."""
    columns, time_s = _equations(priced)
    found = OffsetFit().fit(columns, time_s).offsets_
    joules = priced.predicted(found)
    pairs = [
        (joules[_ENERGY][row], measured)
        for row, run in enumerate(priced.runs)
        if (measured := run.measured_j(joules["latency"][row])) is not None
    ]
    estimated, measured_j = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return replace(found, energy=energy_factor(estimated, measured_j, energy_width))


def _equations(priced: Priced) -> tuple[dict[str, Array], Array]:
    """Each measured time as a sum of what the offsets are multiplied with."""
    rows: list[tuple[float, ...]] = []
    parts = priced.model.parallel.batch_parts
    for at_row, run in enumerate(priced.runs):
        prefill_s, decode_s = priced.prefill.time_s[at_row], priced.decode.time_s[at_row]
        steps, sequences = priced.decoded[at_row], run.batch / parts
        tpot_s = _tpot_s(run)
        if run.ttft_s is not None:
            rows.append((prefill_s, 0.0, 1.0, sequences, run.ttft_s))
        if tpot_s is not None:
            rows.append((0.0, decode_s / steps, 1.0, sequences, tpot_s))
        if run.latency_s is not None and (run.ttft_s is None or tpot_s is None):
            count = 1.0 + steps
            rows.append((prefill_s, decode_s, count, count * sequences, run.latency_s))
    *columns, time_s = np.array(rows, dtype=np.float64).T
    return dict(zip(PRIORS, columns, strict=True)), time_s


def _tpot_s(run: OwnRun) -> float | None:
    """The measured time per token, or what is left of the latency after the first."""
    if run.tpot_s is not None or run.ttft_s is None or run.latency_s is None or run.output == 1:
        return run.tpot_s
    left_s = run.latency_s - run.ttft_s
    return left_s / (run.output - 1) if left_s > 0 else None


_Errors = dict[str, list[float]]


def _errors(priced: Priced, offsets: Offsets) -> _Errors:
    """Absolute errors in % of what was measured, by what it was."""
    found = priced.predicted(offsets)
    errors: _Errors = {}
    for row, run in enumerate(priced.runs):
        measured = {
            "ttft": run.ttft_s,
            "tpot": run.tpot_s,
            "latency": run.latency_s,
            _ENERGY: run.measured_j(found["latency"][row]),
        }
        for name, value in measured.items():
            if value is not None:
                errors.setdefault(name, []).append(100 * abs(found[name][row] / value - 1))
    return errors


def _mean_errors(many: Iterable[_Errors]) -> dict[str, float]:
    merged: _Errors = {}
    for errors in many:
        for name, values in errors.items():
            merged.setdefault(name, []).extend(values)
    return {name: float(np.mean(merged[name])) for name in _ORDER if name in merged}


_ORDER: Final = ("ttft", "tpot", "latency", _ENERGY)
