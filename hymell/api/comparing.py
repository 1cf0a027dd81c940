"""`compare`: models, GPUs, engines and formats side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from hymell.api.predicting import predict
from hymell.api.tracing import Model, Progress, graph_of
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.workload import Workload

if TYPE_CHECKING:
    from hymell.analysis.compare import Comparison


def compare(
    models: Sequence[Model | OpGraph] | Model | OpGraph,
    workload: Workload | None = None,
    *,
    gpus: Sequence[str | os.PathLike[str]] = ("h100-sxm",),
    engines: Sequence[str] = ("vllm",),
    dtypes: Sequence[str | None] = (None,),
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
    **how: Any,
) -> Comparison:
    """Models, GPUs, engines or formats side by side on one workload; the first is the baseline.

    Every model is priced on every one of ``gpus`` under every one of ``engines`` in every one of
    ``dtypes`` (None: as the checkpoint is). ``how`` are the other arguments of `predict`. The
    answer says which figures differ by more than their intervals allow, and which blocks and kinds
    of kernels make the difference. Raises HymellError for bad input, for fewer than two cases and
    for a case that is named twice.
    """
    from hymell.analysis.compare import compare_reports

    several = isinstance(models, Sequence) and not isinstance(models, str)
    asked: Sequence[Any] = models if several else [models]  # type: ignore[assignment]
    names = [_name_of(model) for model in asked]
    axes = (names, [os.fspath(gpu) for gpu in gpus], list(engines), [d or "auto" for d in dtypes])
    shown = [len(axis) > 1 for axis in axes]
    if len(names) != len(set(names)) or not all(axes):
        raise HymellError(
            f"name each model once, and at least one GPU, engine and format; got {', '.join(names)}"
        )
    cases: dict[str, CostReport] = {}
    for model, name in zip(asked, names, strict=True):
        graph = graph_of(
            model,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=use_cache,
            progress=progress,
        )
        for gpu, engine, dtype in product(*axes[1:]):
            parts = (name, gpu, engine, dtype)
            label = ", ".join(p for p, show in zip(parts, shown, strict=True) if show) or name
            if label in cases:
                raise HymellError(f"{label} is named twice; name every case once")
            chosen = None if dtype == "auto" else dtype
            cases[label] = predict(graph, workload, gpu=gpu, engine=engine, dtype=chosen, **how)
    return compare_reports(cases)


def _name_of(model: Any) -> str:
    """What a case is called: as the user wrote it, or the model's own name."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    if isinstance(model, OpGraph):
        return model.facts.name
    named = getattr(model, "name_or_path", "") or getattr(model, "model_type", "")
    return str(named or type(model).__name__)
