"""vLLM (V1): merged projections, fused add + norm, paged attention, fused experts, CUDA graphs."""

from __future__ import annotations

from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.engines.serving import TWO_LAUNCHES

VLLM = Engine(
    name="vllm",
    title="vLLM",
    rules=TWO_LAUNCHES,
    overheads=Overheads(
        host_s_per_launch=4e-6, gap_s=1e-6, step_s=5e-4, cuda_graphs_in_decode=True
    ),
    # vLLM's default gpu_memory_utilization.
    memory_fraction=0.9,
    notes=(
        "decode replays CUDA graphs; prefill is chunked at 8192 tokens (max_num_batched_tokens)",
    ),
)
