"""`Setting`: how a model is run and priced, the same for every call that prices one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from hymell.api.own_runs import Runs, own_runs
from hymell.api.tracing import Model
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.workload import SINGLE, Parallel, Precision

if TYPE_CHECKING:
    from hymell.analysis.own_runs import OwnRun
    from hymell.estimators.base import Estimator
    from hymell.estimators.calibrated import Calibrated
    from hymell.estimators.offsets import Offsets
    from hymell.hardware import Gpu
    from hymell.op_registry.engines.base import Engine

#: "auto", "none" or the file of a calibration.
CalibrationChoice: TypeAlias = "str | os.PathLike[str]"


class Setup(TypedDict):
    """Keywords of `hymell.estimators.predict.deploy` and of all that deploys a graph."""

    gpu: Gpu
    engine: Engine
    precision: Precision
    skew: float
    estimator: Estimator | None
    parallel: Parallel


@dataclass(frozen=True)
class Setting:
    """How a model is run, checked; `setting_of` makes it.

    ``fitted`` is what the calibration and the engine's version name, None for the data sheet;
    ``runs`` are own runs, ``source`` what to call them.
    """

    gpu: Gpu
    engine: Engine
    precision: Precision
    parallel: Parallel
    skew: float
    calibration: CalibrationChoice
    fitted: Calibrated | None
    runs: Sequence[OwnRun]
    source: str

    def setup(self, graph: OpGraph) -> Setup:
        """What to deploy a graph with; in eager its format decides what was fitted for it."""
        from hymell.estimators.eager import in_eager

        estimator, engine = in_eager(
            self.fitted, graph, self.gpu, self.engine, self.calibration, self.precision
        )
        return {
            "gpu": self.gpu,
            "engine": engine,
            "precision": self.precision,
            "skew": self.skew,
            "estimator": estimator,
            "parallel": self.parallel,
        }

    def offsets(
        self, graph: OpGraph, model: Model | OpGraph
    ) -> tuple[Offsets | None, tuple[str, ...]]:
        """What own runs say of this configuration, or a warning that they are of another one.

        ``graph`` is that of ``model``, which runs may name as the user does. Raises HymellError,
        naming the row, for a run that cannot be.
        """
        if not self.runs:
            return None, ()
        from hymell.analysis.own_fit import not_applicable, offsets_for
        from hymell.estimators.predict import deploy

        names = [graph.facts.name]
        if isinstance(model, (str, os.PathLike)):
            names.append(os.fspath(model))
        deployed = deploy(graph, **self.setup(graph))
        found = offsets_for(deployed, self.runs, names, self.source)
        return found, () if found is not None else (not_applicable(self.runs, self.source),)


def setting_of(
    gpu: str | os.PathLike[str],
    engine: str,
    *,
    engine_version: str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    calibration: CalibrationChoice = "auto",
    calibrate_with: Runs | None = None,
    calibrated: str | None = None,
    parallel: Parallel = SINGLE,
) -> Setting:
    """How a model is to be run, all of it checked before the trace, which can take long.

    Arguments as `hymell.predict` takes them. Raises HymellError for a name that is none, and for a
    version where no fitted system would be used.
    """
    from hymell.estimators.calibrated import choose
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    precision = Precision.of(dtype, kv_dtype)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    if engine_version is not None and (parallel.pp > 1 or parallel.replicas > 1):
        raise HymellError(
            f"engine version {engine_version!r} names a fitted system, and none holds for stages "
            "(pp) or for experts spread beside whole attention (ep with tp 1): leave the version "
            "out"
        )
    fitted = choose(chosen_gpu, chosen_engine.name, calibration, engine_version)
    runs, source = own_runs(calibrate_with, calibrated)
    return Setting(
        chosen_gpu,
        chosen_engine,
        precision,
        parallel,
        skew,
        calibration,
        fitted,
        runs,
        source,
    )
