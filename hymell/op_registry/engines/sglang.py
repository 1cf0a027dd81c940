"""SGLang: the same fusions as vLLM with a leaner scheduler."""

from __future__ import annotations

from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.engines.serving import TWO_LAUNCHES

SGLANG = Engine(
    name="sglang",
    title="SGLang",
    rules=TWO_LAUNCHES,
    overheads=Overheads(
        host_s_per_launch=4e-6, gap_s=1e-6, step_s=4e-4, cuda_graphs_in_decode=True
    ),
    # SGLang's usual mem_fraction_static on one GPU.
    memory_fraction=0.88,
    notes=("decode replays CUDA graphs; prefill is chunked at 8192 tokens (chunked_prefill_size)",),
)
