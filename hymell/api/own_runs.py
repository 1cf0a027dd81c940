"""Own measured runs as a call is given them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias

from hymell.errors import HymellError

if TYPE_CHECKING:
    from hymell.analysis.own_runs import OwnRun

#: A CSV file of own runs, or runs.
Runs: TypeAlias = "str | os.PathLike[str] | Sequence[OwnRun]"


def own_runs(given: Runs | None, calibrated: str | None) -> tuple[Sequence[OwnRun], str]:
    """Own runs and what to call them; none where none are asked for."""
    if given is not None and calibrated is not None:
        raise HymellError("give runs to calibrate with or the name of some that are kept, not both")
    if calibrated is not None:
        from hymell.analysis.own_store import load

        return load(calibrated).runs, calibrated
    if given is None:
        return (), ""
    if isinstance(given, (str, os.PathLike)):
        from hymell.analysis.own_runs import read_runs

        return read_runs(given), os.path.basename(os.fspath(given))
    from hymell.analysis.own_runs import known_run

    if not given:
        raise HymellError("there are no runs to calibrate with; give at least one")
    return tuple(known_run(asdict(run)) for run in given), "as given"
