"""PyTorch eager with Hugging Face's model code: one launch per op, nothing fused."""

from __future__ import annotations

from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.fusion.experts import AS_WRITTEN, launch_experts

EAGER = Engine(
    name="eager",
    title="PyTorch eager (Hugging Face transformers)",
    rules=(launch_experts(AS_WRITTEN),),
    # A few microseconds of Python and dispatcher per op on a server CPU.
    overheads=Overheads(
        host_s_per_launch=6e-6, gap_s=1e-6, step_s=1e-3, cuda_graphs_in_decode=False
    ),
    memory_fraction=1.0,
    notes=(
        "each op is one kernel; fused attention (SDPA); grouped experts",
        "the KV cache is priced as an append, not as the copy that DynamicCache makes",
    ),
)
