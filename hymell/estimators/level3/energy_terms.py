"""The power of GPUs that run a model, and the columns of a run that it follows from.

    P / TDP = (x^-k + cap^-k)^(-1/k),   x = sum over the terms of coefficient * column / GPU seconds
    E       = P * GPU seconds

A column is how long all GPUs together would need for a part of the run at their data-sheet rate, so
that a coefficient is the share of TDP that this part draws at that rate. Without a cap P / TDP = x,
at most 1. E never falls when a column or the time grows: x rises with every column, and both forms
are concave with P >= 0 at x = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level3.terms import Term
from hymell.hardware import Gpu

Columns = Mapping[str, NDArray[np.float64]]

#: In the order of files and tables. Priors: a board that runs anything draws 20-30% of TDP; large
#: products, and streaming from memory, take it to 70-100%; what distinguishes kinds of bytes and
#: padded rows is not known beforehand.
ENERGY_TERMS: Final[Mapping[str, Term]] = {
    term.name: term
    for term in (
        Term("base", "1", 0.2, 0.15, "share of TDP that a GPU draws whatever it does"),
        Term("matrix", "1", 0.7, 0.7, "share of TDP at the data-sheet rate of FLOPs"),
        Term("bytes", "1", 0.55, 0.5, "share of TDP at the memory bandwidth, any bytes"),
        Term("weights", "1", 0.55, 0.5, "share of TDP at the memory bandwidth, weights"),
        Term("cache", "1", 0.55, 0.5, "share of TDP at the memory bandwidth, keys and values"),
        Term("activations", "1", 0.55, 5.0, "share of TDP at the memory bandwidth, activations"),
        Term("padded", "1", 0.4, 0.7, "share of TDP at the data-sheet rate of padded expert FLOPs"),
        Term("busy", "1", 0.15, 0.2, "share of TDP while either rate is reached"),
        Term("prompts", "1", 0.3, 0.45, "share of TDP more while prompts are processed"),
    )
}

#: The cap's prior and width as a share of TDP, and those of its sharpness k.
CAP: Final = Term("cap", "1", 0.95, 0.1, "largest mean power as a share of TDP")
SHARPNESS: Final = Term("sharpness", "1", 6.0, 4.0, "k: how sharply the cap sets in")


@dataclass(frozen=True, slots=True)
class Work:
    """What all GPUs together do in a run or a phase, one entry per workload.

    ``matrix_s`` and ``padded_s`` are seconds at the data-sheet rate (`level3.energy_counts`).
    ``prompt_s``: GPU seconds in which prompts are processed.
    """

    matrix_s: NDArray[np.float64]
    padded_s: NDArray[np.float64]
    bytes: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]
    cache_bytes: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    prompt_s: NDArray[np.float64]


def energy_columns(
    work: Work, gpu_s: NDArray[np.float64], gpu: Gpu
) -> dict[str, NDArray[np.float64]]:
    """The column of each of `ENERGY_TERMS`, in seconds; ``gpu_s`` is time x GPUs."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    memory_s = work.bytes / bandwidth
    return {
        "base": gpu_s,
        "matrix": work.matrix_s,
        "bytes": memory_s,
        "weights": work.weight_bytes / bandwidth,
        "cache": work.cache_bytes / bandwidth,
        "activations": work.activation_bytes / bandwidth,
        "padded": work.padded_s,
        "busy": np.maximum(work.matrix_s, memory_s),
        "prompts": work.prompt_s,
    }


def power_share(columns: Columns, coefficients: Mapping[str, float]) -> NDArray[np.float64]:
    """Mean power as a share of TDP, at most 1; one entry per workload."""
    drawn = sum(
        value * columns[name] for name, value in coefficients.items() if name in ENERGY_TERMS
    )
    time_s = columns["base"]
    # A phase that takes no time does nothing.
    found = np.asarray(drawn / np.where(time_s > 0, time_s, 1.0), dtype=np.float64)
    if CAP.name in coefficients:
        found = capped(found, coefficients[CAP.name], coefficients[SHARPNESS.name])
    return np.minimum(found, 1.0)


def capped(x: NDArray[np.float64], cap: float, sharpness: float) -> NDArray[np.float64]:
    """The softer of the smaller of ``x`` and ``cap``: (x^-k + cap^-k)^(-1/k)."""
    # Of two powers the larger is taken out, so that none overflows.
    small, large = np.minimum(x, cap), np.maximum(x, cap)
    return np.asarray(small * (1 + (small / large) ** sharpness) ** (-1 / sharpness))
