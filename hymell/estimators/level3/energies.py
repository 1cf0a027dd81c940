"""Fitted power of a GPU as a file: what a board that runs a whole model draws.

Shipped ones lie in ``hymell/hardware/energies/GPU.json``; `benchmarks/energy.py` writes them where
they are nearer to models that they were not fitted on than the power of kernels is. The time is
given, whatever priced it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hymell.hardware
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.level3.energy_terms import (
    CAP,
    ENERGY_TERMS,
    SHARPNESS,
    Columns,
    power_share,
)
from hymell.estimators.level3.terms import Term
from hymell.hardware import Gpu

SCHEMA_VERSION = 1

#: Where shipped energies lie.
FOLDER = Path(hymell.hardware.__file__).parent / "energies"

_TERMS: Final[Mapping[str, Term]] = {**ENERGY_TERMS, CAP.name: CAP, SHARPNESS.name: SHARPNESS}

#: Terms per FLOP at the 16-bit rate and per byte: what a line for readers converts them to.
_PER_FLOP: Final = ("matrix", "padded")
_PER_BYTE: Final = ("bytes", "weights", "cache", "activations")


@dataclass(frozen=True)
class Energies:
    """Coefficients of `ENERGY_TERMS` by name, shares of TDP; with ``cap`` and ``sharpness`` or not.

    ``source`` names the runs, ``rows`` and ``models`` count them. ``mape`` and ``kernels_mape`` are
    the mean absolute errors in % on models left out of the fit, at the measured time, of this and
    of kernels' power. ``gpu`` is where the runs were made; ``transferred``: priced is another one,
    which ``transfers`` says to be better than the power of its kernels.
    """

    gpu: str
    source: str
    coefficients: Mapping[str, float]
    rows: int
    models: tuple[str, ...]
    mape: float
    kernels_mape: float
    transfers: bool = False
    transferred: bool = False

    def energy_j(self, columns: Columns, gpu: Gpu, idle_w: float) -> NDArray[np.float64]:
        """Joules of all GPUs, from ``columns`` of `energy_columns`; no less than idle power."""
        drawn_w = np.maximum(gpu.tdp_w * power_share(columns, self.coefficients), idle_w)
        return np.asarray(drawn_w * columns["base"])

    def describe(self, gpu: Gpu) -> str:
        """Whose runs they are, how far off, and what they say, in a line for a report."""
        how = "transferred from" if self.transferred else "fitted on"
        words = "; ".join(self._words(gpu))
        return (
            f"power of whole runs, {how} {self.rows} runs of {self.source} ({self.gpu}; "
            f"{self.mape:.1f}% off on models left out at the measured time, power of kernels "
            f"{self.kernels_mape:.1f}%): {words}; TDP {gpu.tdp_w:.0f} W"
        )

    def _words(self, gpu: Gpu) -> list[str]:
        tdp_w, per_s = gpu.tdp_w, gpu.peak(gpu.compute_dtype("bf16")[0])
        words = []
        for name, value in self.coefficients.items():
            if name in _PER_FLOP:
                words.append(f"{value * tdp_w / per_s * 1e12:.2g} pJ per FLOP of {name} products")
            elif name in _PER_BYTE:
                rate = gpu.memory_bandwidth_bytes_per_s
                words.append(f"{value * tdp_w / rate * 1e12:.0f} pJ per byte of {name}")
            elif name != SHARPNESS.name:
                words.append(f"{name} {value * tdp_w:.0f} W")
        return words


def fitted_energies() -> tuple[str, ...]:
    """GPUs that have shipped energies, sorted; reads no file."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def shipped_energies(gpu: str) -> Energies | None:
    """The shipped energies of a GPU, None where there are none; errors as `load`."""
    file = FOLDER / f"{gpu}.json"
    return load(file) if file.is_file() else None


def load(file: Path) -> Energies:
    """Energies from their file. Raises HymellError for a file that is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}")
        return _energies(content)
    except DAMAGED as error:
        raise HymellError(
            f"{file} holds no energies of this version ({type(error).__name__}: {error}); "
            "write it anew with benchmarks/energy.py --ship"
        ) from None


def _energies(content: Mapping[str, Any]) -> Energies:
    found = {}
    for name, entry in content["coefficients"].items():
        value = float(entry["value"])
        if entry["unit"] != _TERMS[name].unit or not 0 <= value < float("inf"):
            raise ValueError(f"coefficient {name} is {entry}")
        found[name] = value
    if "base" not in found or (CAP.name in found) != (SHARPNESS.name in found):
        raise ValueError(f"coefficients are {', '.join(found)}")
    if not all(found.get(term.name, term.prior) > 0 for term in (CAP, SHARPNESS)):
        raise ValueError(f"{CAP.name} or {SHARPNESS.name} is 0")
    return Energies(
        gpu=str(content["gpu"]),
        source=str(content["source"]),
        coefficients=found,
        rows=int(content["rows"]),
        models=tuple(str(model) for model in content["models"]),
        mape=float(content["mape"]),
        kernels_mape=float(content["kernels_mape"]),
        transfers=bool(content["transfers"]),
    )


def save(energies: Energies, file: Path) -> None:
    """Write energies: every coefficient with its unit and what it says."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "gpu": energies.gpu,
        "source": energies.source,
        "rows": energies.rows,
        "models": list(energies.models),
        "mape": round(energies.mape, 2),
        "kernels_mape": round(energies.kernels_mape, 2),
        "transfers": energies.transfers,
        "coefficients": {
            name: {
                "value": float(f"{energies.coefficients[name]:.4g}"),
                "unit": term.unit,
                "meaning": term.meaning,
            }
            for name, term in _TERMS.items()
            if name in energies.coefficients
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
