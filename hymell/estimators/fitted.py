"""A fitted estimator ready for the GPU that is priced: its own, or scaled from a relative's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hymell.estimators import calibration as calibrations
from hymell.estimators.calibration import Calibration, Key
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1, Prediction
from hymell.estimators.level1.form import Dims
from hymell.hardware import Gpu, load_gpu

#: 16-bit formats run at one rate.
_TWIN = {"bf16": "fp16", "fp16": "bf16"}

#: Rows from which on equal rows are priced once.
_WORTH_SORTING = 64

#: Rows that tell whether sorting is worth it.
_SAMPLED_ROWS = 2048

#: Rows priced together: their intermediate results stay in a core's cache.
_BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Found:
    """A fitted estimator for a kernel, ready for the GPU that is priced.

    ``library`` is whose kernels were measured, "" where none were.
    """

    estimator: Level1
    calibration: str
    at_home: bool
    library: str = ""


def find_fitted(gpu: Gpu, sources: Iterable[Calibration], keys: Iterable[Key]) -> Found | None:
    """The first estimator of any of ``keys`` in the first of ``sources`` that has one, for ``gpu``.

    That of another GPU is scaled.
    """
    wanted = tuple(keys)
    for calibration in sources:
        for key in wanted:
            made = calibration.estimator(key)
            if made is None:
                continue
            entry = calibration.entries[key]
            where = f"{calibration.gpu}, {entry.origin}"
            if own(gpu, calibration):
                return Found(made, where, True, entry.library)
            return _transferred(made, Device.of(gpu), where, entry.library)
    return None


def _transferred(made: Level1, device: Device, where: str, library: str) -> Found:
    """An estimator scaled to a device; its correction comes along where that was seen to help."""
    same = made.device.family == device.family
    error = calibrations.transfer_errors().get((made.form.op, same))
    helps = error is not None and error.corrected < error.analytical
    about = "" if error is None else f", error about {min(error.corrected, error.analytical):.0f}%"
    ready = scaled(made, device, corrected=helps)
    return Found(ready, f"transferred from {where}{about}", False, library)


def native(gpu: Gpu, math: str) -> bool:
    """Whether a GPU has units for a format: what was measured on some says nothing of emulation."""
    return gpu.compute_dtype(math)[0] in (math, _TWIN.get(math))


def is_stock(gpu: Gpu, name: str) -> bool:
    """True when a GPU is the one that hymell knows by this name, data sheet unchanged."""
    return gpu.name == name and gpu == load_gpu(name)


def own(gpu: Gpu, calibration: Calibration) -> bool:
    """True when a calibration was taken on this very GPU, data sheet unchanged."""
    return is_stock(gpu, calibration.gpu)


def scaled(fitted: Level1, device: Device, *, corrected: bool = True) -> Level1:
    """A fitted estimator for another device: each coefficient keeps its ratio to its prior.

    ``corrected`` False leaves the correction behind.
    """
    ratio = {c.name: c.prior(device) / c.prior(fitted.device) for c in fitted.form.coefficients}
    made = Level1(fitted.form, device, corrected=corrected, trusted_octaves=fitted.trusted_octaves)
    made.coefficients_ = {n: value * ratio[n] for n, value in fitted.coefficients_.items()}
    made.choice_, made.ranges_ = fitted.choice_, fitted.ranges_
    made.spread_, made.rows_ = fitted.spread_, fitted.rows_
    made.correction_ = fitted.correction_ if corrected else None
    return made


def predict_rows(estimator: Level1, dims: Dims) -> Prediction:
    """`Level1.predict` with equal rows priced once: many workloads share a kernel's sizes."""
    rows = len(next(iter(dims.values())))
    if rows < _WORTH_SORTING:
        return estimator.predict(dims)
    shared = _distinct(dims)
    if shared is None:
        return _in_blocks(estimator, dims)
    first, inverse = shared
    priced = _in_blocks(estimator, {name: values[first] for name, values in dims.items()})
    return Prediction(
        priced.time_s[inverse],
        priced.spread[inverse],
        priced.regime[inverse],
        priced.in_range[inverse],
    )


def _in_blocks(estimator: Level1, dims: Dims) -> Prediction:
    rows = len(next(iter(dims.values())))
    found = [
        estimator.predict({n: values[at : at + _BLOCK_ROWS] for n, values in dims.items()})
        for at in range(0, rows, _BLOCK_ROWS)
    ]
    return Prediction(
        np.concatenate([block.time_s for block in found]),
        np.concatenate([block.spread for block in found]),
        np.concatenate([block.regime for block in found]),
        np.concatenate([block.in_range for block in found]),
    )


def _distinct(dims: Dims) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """A row of each distinct combination of sizes, and which of them every row is.

    None where more than half of the rows are distinct, which a sample may tell.
    """
    rows = len(next(iter(dims.values())))
    varied = [values for values in dims.values() if (values != values[0]).any()]
    if varied and _mostly_distinct(varied, rows):
        return None
    code: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
    for values in varied:
        alone, index = np.unique(values, return_inverse=True)
        joint, code = np.unique(code * len(alone) + index, return_inverse=True)
        if 2 * len(joint) > rows:
            return None
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse


def _mostly_distinct(varied: list[NDArray[np.float64]], rows: int) -> bool:
    """Whether a sample has as few equal rows as one of rows / 2 combinations: n^2 / rows pairs."""
    if rows <= _SAMPLED_ROWS:
        return False
    chosen = np.linspace(0, rows - 1, _SAMPLED_ROWS).astype(np.int64)
    sample = np.stack([values[chosen] for values in varied])
    equal = _SAMPLED_ROWS - np.unique(sample, axis=1).shape[1]
    return bool(equal < _SAMPLED_ROWS**2 / rows)
