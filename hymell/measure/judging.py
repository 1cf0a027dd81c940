"""How far off an estimator is on rows that it was not fitted on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Array, Dims, Form
from hymell.estimators.level1.gemm_five_regime import FiveRegime

if TYPE_CHECKING:
    from hymell.measure.operators import Rows

#: A launch and its tail, added to the data-sheet time: what a roofline user would add.
ROOFLINE_LAUNCH_S: Final = 3e-6

#: Rows on which the discrete choices of a form are tried.
_SCOUTED_ROWS: Final = 600

#: A correction is tried on this many rows with one net of this many epochs.
_TRIAL: Final = (8000, 40)

#: Share of the error that a correction must leave at most in its trial to stay.
_WORTHWHILE: Final = 0.95

#: Share of the rows whose sizes are the largest, held out to see how far a correction reaches.
_LARGEST: Final = 0.15

#: Octaves beyond the range seen that a correction is trusted which made the largest rows better,
#: and one which did not.
_FAR: Final = 1.0
_NEAR: Final = 0.0

#: (name, rows to fit on, rows to judge on)
Split = tuple[str, NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a fit may cost: rows it sees at most, epochs and members of the correction."""

    rows: int = 24_000
    epochs: int = 60
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a form is fitted: see `Level1`. ``corrected`` False: too few rows for a correction."""

    bound: float = 1.0
    ridge: float = 0.002
    f_scale: float = 0.1
    hidden: tuple[int, ...] = (32, 32, 32)
    corrected: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one estimator on the held-out rows of one split, in % of the measured.

    ``mape``, ``median``, ``p90`` and ``max`` are of the absolute errors, ``bias`` of the signed.
    """

    split: str
    estimator: str
    rows: int
    mape: float
    median: float
    p90: float
    max: float
    bias: float

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def score(split: str, estimator: str, predicted_s: Array, measured_s: Array) -> Score:
    """The errors of predictions. Raises ValueError where there is none."""
    if len(measured_s) == 0:
        raise ValueError(f"no rows to judge in split {split!r}")
    signed = 100.0 * (predicted_s / measured_s - 1.0)
    error = np.abs(signed)
    figures = (
        error.mean(),
        np.median(error),
        np.percentile(error, 90),
        error.max(),
        signed.mean(),
    )
    return Score(split, estimator, len(error), *(round(float(v), 3) for v in figures))


def fit(
    form: Form,
    device: Device,
    dims: Dims,
    time_s: Array,
    effort: Effort,
    recipe: Recipe | None = None,
    groups: NDArray[np.int64] | None = None,
    *,
    corrected: bool = True,
) -> Level1:
    """A fitted estimator; of more rows than the effort allows, a seeded draw is fitted.

    Discrete choices are made on a smaller draw of the same rows. Where ``groups`` (rows,) are
    given, the correction has to earn its place on rows that a trial has not seen: on two fifths of
    the groups in turn, where it is left out unless it clearly lowers the mean absolute error
    without raising the 90th percentile, and on the largest kernels, beyond which it is little
    trusted unless it lowers the error there.
    """
    how = recipe or Recipe()
    corrected = corrected and how.corrected
    dims, time_s, groups = _draw(dims, time_s, groups, effort.rows)
    options: dict[str, Any] = {
        "bound": how.bound,
        "ridge": how.ridge,
        "f_scale": how.f_scale,
        "hidden": how.hidden,
    }
    if len(form.choices) > 1:
        few = _draw(dims, time_s, None, _SCOUTED_ROWS)
        scout = Level1(form, device, corrected=False, **options).fit(*few[:2])
        form = replace(form, choices=(scout.choice_,))
    made = Level1(form, device, corrected=False, **options).fit(dims, time_s)
    if not corrected:
        return made
    if groups is not None:
        rows, epochs = _TRIAL
        trial = copy(made)
        trial.epochs, trial.seeds = min(epochs, effort.epochs), (0,)
        some, some_s, their = _draw(dims, time_s, groups, rows)
        assert their is not None
        if not _earned(trial, some, some_s, their):
            return made
        made.trusted_octaves = _FAR if _reaches(trial, some, some_s) else _NEAR
    made.epochs, made.seeds = effort.epochs, effort.seeds
    return made.correct(dims, time_s)


def _earned(trial: Level1, dims: Dims, time_s: Array, groups: NDArray[np.int64]) -> bool:
    """Whether a correction fitted without them makes two fifths of the groups clearly better."""
    names = np.random.default_rng(0).permutation(np.unique(groups))
    size = max(1, round(0.2 * len(names)))
    folds = [np.isin(groups, fold) for fold in (names[:size], names[size : 2 * size])]
    found = [_errors(trial, dims, time_s, held) for held in folds]
    plain, better = (np.concatenate(errors) for errors in zip(*found, strict=True))
    steadier = np.quantile(better, 0.9) <= np.quantile(plain, 0.9)
    return bool(better.mean() < _WORTHWHILE * plain.mean() and steadier)


def _reaches(trial: Level1, dims: Dims, time_s: Array) -> bool:
    """Whether a correction fitted without the longest kernels makes them better."""
    held = time_s > np.quantile(time_s, 1.0 - _LARGEST)
    plain, better = _errors(trial, dims, time_s, held)
    return bool(better.mean() < plain.mean())


def _errors(
    trial: Level1, dims: Dims, time_s: Array, held: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Absolute relative errors on held rows, without and with a correction fitted on the others.

    The coefficients have seen all of them, which speaks against the correction, if at all.
    """
    trial.correct(pick(dims, ~held), time_s[~held])
    unseen = pick(dims, held)
    plain, better = (
        np.abs(trial.predict(unseen, corrected=with_it).time_s / time_s[held] - 1.0)
        for with_it in (False, True)
    )
    return plain, better


def _draw(
    dims: Dims, time_s: Array, groups: NDArray[np.int64] | None, most: int
) -> tuple[Dims, Array, NDArray[np.int64] | None]:
    count = len(time_s)
    if count <= most:
        return dims, time_s, groups
    rows = np.sort(np.random.default_rng(0).choice(count, most, replace=False))
    return pick(dims, rows), time_s[rows], None if groups is None else groups[rows]


def pick(dims: Dims, rows: NDArray[Any]) -> dict[str, Array]:
    """The sizes of some rows, by mask or index."""
    return {name: values[rows] for name, values in dims.items()}


def judge(rows: Rows, device: Device, split: Split, effort: Effort) -> Iterator[Score]:
    """Roofline, then each form fitted on the training rows: analytical and, the first, corrected.

    The forms after the first are baselines, judged without a correction; HYMELL's GEMM is another.
    """
    name, train, test = split
    dims, quantity, groups = rows.dims, rows.measured, rows.groups()
    held, measured = pick(dims, test), quantity[test]
    forms = rows.forms
    yield score(name, "roofline", rows.data_sheet(device)[test], measured)
    if rows.operator.op == "gemm":
        regimes = FiveRegime(rows.dtype, device)
        regimes.fit(pick(dims, train), quantity[train])
        yield score(name, "five-regime", regimes.predict(held).time_s, measured)
    for form in forms:
        main = form is forms[0]
        made = fit(
            form,
            device,
            pick(dims, train),
            quantity[train],
            effort,
            rows.operator.recipe,
            groups[train],
            corrected=main,
        )
        plain = made.predict(held, corrected=False).time_s
        yield score(name, "analytical" if main else form.name, plain, measured)
        if main:
            # Without a correction that earned its place this is the analytical form again.
            yield score(name, "corrected", made.predict(held).time_s, measured)


def judge_all(
    rows: Rows, device: Device, effort: Effort, splits: Iterable[Split], cache: Path | None = None
) -> list[dict[str, Any]]:
    """`judge` over hold-outs, as plain dicts; known results come from ``cache``.

    A result is kept per hold-out under a name that tells code, effort and data apart, so that a
    run that was stopped goes on where it was.
    """
    found: list[dict[str, Any]] = []
    for split in splits:
        kept = None if cache is None else _kept(rows, effort, split, cache)
        if kept is not None and kept.is_file():
            found += json.loads(kept.read_text(encoding="utf-8"))
            continue
        fresh = [s.to_dict() for s in judge(rows, device, split, effort)]
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(fresh), encoding="utf-8")
        found += fresh
    return found


def is_kept(rows: Rows, effort: Effort, split: Split, cache: Path) -> bool:
    """Whether `judge_all` would find the result of a hold-out in ``cache``."""
    return _kept(rows, effort, split, cache).is_file()


def _kept(rows: Rows, effort: Effort, split: Split, cache: Path) -> Path:
    return cache / f"{fingerprint(rows, effort, split)}.json"


def fingerprint(rows: Rows, effort: Effort, split: Split) -> str:
    """A name for a result: readable words, then a digest of code, effort, data and hold-out."""
    table = rows.table
    words = (str(table["gpu"][0]), rows.library, rows.version, rows.operator.op, rows.dtype)
    how = rows.operator
    digest = hashlib.sha256(repr((effort, how.forms, how.shapes, how.recipe)).encode())
    for module in (*catalog.MODULES[rows.operator.op], "form", "estimator", "least_squares"):
        digest.update((_LEVEL1 / f"{module}.py").read_bytes())
    digest.update((_LEVEL1.parent / "training.py").read_bytes())
    for values in (rows.measured, split[1], split[2]):
        digest.update(np.ascontiguousarray(values).tobytes())
    # PyTorch's kernels are named by whole C++ signatures.
    variant = re.sub(r"[^\w.-]+", "_", rows.variant)[:80]
    return "-".join((*words, variant, split[0], digest.hexdigest()[:12]))


_LEVEL1 = Path(catalog.__file__).parent
