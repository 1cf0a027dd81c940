"""TensorRT-LLM: attention plugin with RoPE and append inside one kernel, C++ runtime."""

from __future__ import annotations

from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.engines.serving import ONE_LAUNCH

TRTLLM = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    rules=ONE_LAUNCH,
    overheads=Overheads(
        host_s_per_launch=2e-6, gap_s=1e-6, step_s=2e-4, cuda_graphs_in_decode=True
    ),
    # TensorRT-LLM's default free_gpu_memory_fraction.
    memory_fraction=0.9,
    notes=("decode replays CUDA graphs; prefill is chunked at 8192 tokens (max_num_tokens)",),
)
