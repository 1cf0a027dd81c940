"""Fit everything that the measurements of one GPU and library cover, and write a calibration."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from hymell.errors import HymellError
from hymell.estimators.calibration import Calibration, Entry, Key, assemble, load, save
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.hardware import find_gpu
from hymell.measure.judging import Effort, Split, fit, judge_all
from hymell.measure.location import locate
from hymell.measure.operators import FEWEST_ROWS, OPERATORS, Operator, Rows, rows_of

#: Kinds of hold-out beside the first that every estimator is judged on.
_KINDS = frozenset(
    {
        "family",
        "length",
        "m-large",
        "longest rows",
        "unseen rows",
        "unseen shapes",
        "published split",
        "largest sizes",
    }
)

#: Folders of the measurements that say in a file COMMIT which upstream state they hold.
_SOURCES = ("aiconfigurator", "vidur", "neusight", "llmservingsim")


class NoMeasurementsError(HymellError):
    """Nothing was measured of what is to be fitted."""


def calibrate(
    gpu: str,
    library: str,
    root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    ops: Collection[str] = (),
    effort: Effort | None = None,
    judged: bool = True,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """A calibration of ``gpu`` for ``library``, written to ``out`` where that is given.

    ``root``: the folder of measurements (default: `locate`). ``ops``: fit these alone and keep the
    others of an ``out`` that is there. ``judged``: also fit on the training
    rows of each hold-out and record the errors on the rest, which takes as long again for each;
    ``cache``: a folder that keeps those errors between runs.
    The same measurements give the same file. Needs the extra ``calibrate``. Raises HymellError for
    an unknown GPU or op, and where there are no measurements of it.
    """
    say = progress or (lambda _: None)
    cost = effort or Effort()
    folder = Path(root) if root is not None else locate()
    board = find_gpu(gpu)
    fitted: dict[Key, tuple[Entry, Level1]] = {}
    for operator in _chosen(ops):
        for rows in rows_of(operator, board.name, library, folder):
            label = " ".join(w for w in (operator.op, rows.dtype, rows.variant) if w)
            say(f"{label}: {len(rows.table)} rows of {rows.library} {rows.version}")
            entry, made = _fit_rows(rows, Device.of(board), cost, judged, cache)
            fitted[entry.key] = (entry, made)
    if not fitted:
        raise NoMeasurementsError(
            f"no {'or '.join(f'{op} ' for op in ops)}measurements of {board.name} with {library} "
            f"in {folder}; "
            "`hymell data` lists what there is"
        )
    calibration = assemble(board.name, library, _states(folder), fitted)
    if out is not None:
        if ops and Path(out).is_file():
            calibration = load(out).updated(calibration)
        save(calibration, out)
    return calibration


def _chosen(ops: Collection[str]) -> list[Operator]:
    known = [operator.op for operator in OPERATORS]
    for op in ops:
        if op not in known:
            raise HymellError(f"nothing is fitted for {op!r}; use one of: {', '.join(known)}")
    return [operator for operator in OPERATORS if not ops or operator.op in ops]


def _fit_rows(
    rows: Rows, device: Device, effort: Effort, judged: bool, cache: Path | None
) -> tuple[Entry, Level1]:
    errors = judge_all(rows, device, effort, held_out(rows), cache) if judged else []
    made = fit(
        rows.forms[0],
        device,
        rows.dims,
        rows.measured,
        effort,
        rows.operator.recipe,
        rows.groups(),
    )
    entry = Entry(
        op=rows.operator.op,
        dtype=rows.dtype,
        variant=rows.variant,
        source=rows.source,
        library=rows.library,
        version=rows.version,
        kernel=rows.kernel,
        fitted=made.to_dict(),
        errors=tuple(errors),
    )
    return entry, made


def held_out(rows: Rows) -> list[Split]:
    """One hold-out of whole shapes (the first), and those of a kind in `_KINDS`: largest sizes.

    Of energy every one: its rows are few.
    """
    kinds: dict[str, Split] = {}
    for split in rows.splits():
        name, train, test = split
        kind = name if rows.operator.joules else name.rstrip("0123456789").rstrip("- ")
        if (
            train.sum() >= FEWEST_ROWS // 2
            and test.any()
            and (rows.operator.joules or not kinds or kind in _KINDS)
        ):
            kinds.setdefault(kind, split)
    return list(kinds.values())


def _states(folder: Path) -> dict[str, str]:
    """Which state of each source was read, as far as the folder says."""
    found = {}
    for name in _SOURCES:
        note = folder / name / "COMMIT"
        if note.is_file():
            found[name] = " ".join(note.read_text(encoding="utf-8").split())
    return found
