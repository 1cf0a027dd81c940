"""hymell: what a model's inference costs on a GPU, before anyone rents the GPU.

`trace` turns a model into an op graph, `predict` prices a workload of it::

    import hymell

    report = hymell.predict("meta-llama/Meta-Llama-3-8B", hymell.Workload(batch=8), gpu="h200")
    print(report.ttft_s, report.tpot_s, report.energy_per_output_token_j)

Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hymell._version import __version__

if TYPE_CHECKING:
    from hymell.analysis.attention_variant import AttentionComparison
    from hymell.analysis.compare import Comparison
    from hymell.analysis.serving import Serving
    from hymell.analysis.sweep.result import SweepResult
    from hymell.analysis.sweet_spot import SweetSpot
    from hymell.api import (
        compare,
        compare_attention,
        predict,
        save_runs,
        serve,
        sweep,
        sweet_spot,
        trace,
    )
    from hymell.cost_report import CostReport
    from hymell.errors import HymellError
    from hymell.op_registry import keep_whole, lowers
    from hymell.workload import Workload

_HOMES = {
    "AttentionComparison": "hymell.analysis.attention_variant",
    "Comparison": "hymell.analysis.compare",
    "CostReport": "hymell.cost_report",
    "HymellError": "hymell.errors",
    "Serving": "hymell.analysis.serving",
    "SweepResult": "hymell.analysis.sweep.result",
    "SweetSpot": "hymell.analysis.sweet_spot",
    "Workload": "hymell.workload",
    "compare": "hymell.api",
    "compare_attention": "hymell.api",
    "keep_whole": "hymell.op_registry",
    "lowers": "hymell.op_registry",
    "predict": "hymell.api",
    "save_runs": "hymell.api",
    "serve": "hymell.api",
    "sweep": "hymell.api",
    "sweet_spot": "hymell.api",
    "trace": "hymell.api",
}

__all__ = [
    "AttentionComparison",
    "Comparison",
    "CostReport",
    "HymellError",
    "Serving",
    "SweepResult",
    "SweetSpot",
    "Workload",
    "__version__",
    "compare",
    "compare_attention",
    "keep_whole",
    "lowers",
    "predict",
    "save_runs",
    "serve",
    "sweep",
    "sweet_spot",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hymell' has no attribute {name!r}")
