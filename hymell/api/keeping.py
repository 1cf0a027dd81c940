"""`save_runs`: own measured runs kept under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymell.api.own_runs import Runs, own_runs
from hymell.api.setting import CalibrationChoice, setting_of
from hymell.api.tracing import Progress, trace

if TYPE_CHECKING:
    from hymell.analysis.own_store import SavedRuns


def save_runs(
    name: str,
    runs: Runs,
    *,
    engine_version: str | None = None,
    calibration: CalibrationChoice = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> SavedRuns:
    """Keep your own measured runs under a name, for ``predict(..., calibrated=name)``.

    ``runs`` as ``calibrate_with`` of `predict` takes them. Every configuration is priced, so that
    runs which cannot be are refused by name, and its offsets and errors are kept beside the runs.
    The other arguments are those of `predict`. Raises HymellError for bad input, and for a name
    that has runs already.
    """
    from hymell.analysis.own_fit import fit_offsets, price_runs
    from hymell.analysis.own_store import Judged, SavedRuns, check_free, configurations, save
    from hymell.estimators.predict import deploy

    check_free(name)
    rows, _ = own_runs(runs, None)
    judged = []
    for configuration, mine in configurations(rows).items():
        setting = setting_of(
            configuration.gpu,
            configuration.engine,
            engine_version=engine_version,
            dtype=configuration.dtype,
            calibration=calibration,
            parallel=mine[0].parallel,
        )
        graph = trace(
            configuration.model,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=use_cache,
            progress=progress,
        )
        deployed = deploy(graph, **setting.setup(graph))
        judged.append(Judged(configuration, fit_offsets(price_runs(deployed, mine), name)))
    saved = SavedRuns(name, tuple(rows), tuple(judged))
    save(saved)
    return saved
