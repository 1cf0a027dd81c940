"""One picture per op: predicted over measured, by size, on rows that were held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accuracy.tables import device_of
from hymell.errors import HymellError
from hymell.estimators.level1.form import REGIMES, Array, Dims
from hymell.estimators.level1.kernel_energy import SIZES as KERNELS
from hymell.estimators.level1.kernel_energy import energy_op
from hymell.measure.judging import Effort, Split, fingerprint, fit, pick
from hymell.measure.operators import Rows

#: Points drawn at most, so that a picture stays small.
_MOST_POINTS = 2500

#: One colour per regime, told apart also without colour vision (Okabe and Ito 2008).
_COLOURS = dict(zip(REGIMES, ("#000000", "#0072b2", "#56b4e9", "#e69f00", "#d55e00"), strict=True))

#: Ratios shown at least, so that small errors look small, and those that are labelled.
_SHOWN = (0.8, 1.25)
_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0)


def _tokens(dims: Dims) -> Array:
    return dims["batch"] * dims["length"]


def _pairs(dims: Dims) -> Array:
    return dims["batch"] * dims["heads"] * dims["q_len"] * dims["kv_len"]


def _bytes(dims: Dims) -> Array:
    return dims["bytes"]


#: The size on the x axis of each op: its name, and how it follows from the sizes of a row.
_SIZES: dict[str, tuple[str, Callable[[Dims], Array]]] = {
    "gemm": ("FLOPs", lambda d: 2.0 * d["batch"] * d["m"] * d["n"] * d["k"]),
    **dict.fromkeys(
        ("attention_prefill", "encoder_attention", "mla_prefill"),
        ("queries x keys x heads x sequences", _pairs),
    ),
    "attention_decode": (
        "bytes of keys and values without window",
        lambda d: 2.0 * d["batch"] * d["kv_len"] * d["kv_heads"] * d["head_dim"] * d["kv_bytes"],
    ),
    "mla_decode": ("cached tokens x heads", lambda d: d["batch"] * d["kv_len"] * d["heads"]),
    **dict.fromkeys(
        ("rms_norm", "layer_norm", "softmax", "pointwise", "embedding", "rope"),
        ("bytes read and written", _bytes),
    ),
    "moe": ("tokens", lambda d: d["tokens"]),
    **dict.fromkeys(("gdn", "kda", "mamba2", "conv1d"), ("tokens", _tokens)),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "custom_all_reduce"),
        ("bytes of the message", lambda d: d["message_bytes"]),
    ),
    # An energy is drawn over the time that its power is multiplied with.
    **dict.fromkeys((energy_op(op) for op in KERNELS), ("us", lambda d: d["time_us"])),
}


def size_of(op: str) -> tuple[str, Callable[[Dims], Array]]:
    """Name of an op's size, and how to get it. Raises HymellError for an op without one."""
    if op not in _SIZES:
        raise HymellError(f"no size to draw {op} over; add one to benchmarks/accuracy/plots.py")
    return _SIZES[op]


def check_installed() -> None:
    """Raises HymellError, with the remedy, where there is nothing to draw with."""
    if find_spec("matplotlib") is None:
        raise HymellError(
            "plots need matplotlib, which is not installed; run `pip install 'hymell[dev]'`, "
            "or leave the plots out with --no-plots"
        )


@dataclass(frozen=True, slots=True)
class Points:
    """Held-out rows: size (as `size_of` has it), predicted over measured, index of the regime."""

    size: Array
    ratio: Array
    regime: NDArray[np.int64]


def points(gpu: str, rows: Rows, split: Split, effort: Effort, cache: Path) -> Points:
    """What an estimator fitted without the rows held out says of them; kept in ``cache``."""
    file = cache / f"plot-{fingerprint(rows, effort, split)}.npz"
    if not file.is_file():
        made = _points(gpu, rows, split, effort)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, size=made.size, ratio=made.ratio, regime=made.regime)
    with np.load(file) as saved:
        return Points(saved["size"], saved["ratio"], saved["regime"])


def _points(gpu: str, rows: Rows, split: Split, effort: Effort) -> Points:
    _, train, test = split
    measured, held = rows.measured, pick(rows.dims, test)
    made = fit(
        rows.forms[0],
        device_of(gpu),
        pick(rows.dims, train),
        measured[train],
        effort,
        rows.operator.recipe,
        rows.groups()[train],
    )
    predicted = made.predict(held)
    size = size_of(rows.operator.op)[1](held)
    return Points(size, predicted.time_s / measured[test], predicted.regime)


def thinned(all_points: Points) -> Points:
    """At most `_MOST_POINTS` of them, drawn with a fixed seed; the two worst always among them."""
    count = len(all_points.size)
    if count <= _MOST_POINTS:
        return all_points
    drawn = np.random.default_rng(0).choice(count, _MOST_POINTS - 2, replace=False)
    worst = (all_points.ratio.argmin(), all_points.ratio.argmax())
    rows = np.unique(np.concatenate([drawn, worst]))
    return Points(all_points.size[rows], all_points.ratio[rows], all_points.regime[rows])


def draw(path: Path, title: str, size_label: str, all_points: Points) -> None:
    """Write the picture of one op as PNG. Needs matplotlib: see `check_installed`."""
    from matplotlib.figure import Figure

    shown = thinned(all_points)
    figure = Figure(figsize=(7.2, 3.4), dpi=100, layout="constrained")
    axes = figure.subplots()
    for code, name in enumerate(REGIMES):
        mine = shown.regime == code
        if mine.any():
            axes.scatter(
                shown.size[mine], shown.ratio[mine], s=5, linewidths=0, c=_COLOURS[name], label=name
            )
    axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(_SHOWN[0], 0.95 * float(shown.ratio.min()))
    high = max(_SHOWN[1], 1.05 * float(shown.ratio.max()))
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_xlabel(size_label)
    axes.set_ylabel("predicted / measured")
    axes.set_title(title, fontsize="medium")
    figure.legend(loc="outside right upper", markerscale=2.0, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the version of matplotlib in it, the same figures give the same file.
    figure.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})
