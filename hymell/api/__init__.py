"""The calls that do everything: `trace` a model, `predict` what a workload of it costs, find its
`sweet_spot`, `compare` it with others, `serve` requests as they come, `sweep` over architectures,
GPUs and workloads, `compare_attention` of one's own with that of a model, and `save_runs` of one's
own to calibrate with.
"""

from hymell.api.attention import compare_attention
from hymell.api.comparing import compare
from hymell.api.keeping import save_runs
from hymell.api.lengths import over_context, sweet_spot
from hymell.api.predicting import predict
from hymell.api.serving import serve
from hymell.api.sweeping import sweep
from hymell.api.tracing import trace

__all__ = [
    "compare",
    "compare_attention",
    "over_context",
    "predict",
    "save_runs",
    "serve",
    "sweep",
    "sweet_spot",
    "trace",
]
