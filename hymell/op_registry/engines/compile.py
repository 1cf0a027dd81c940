"""torch.compile: inductor fuses element-wise chains and norms, GEMMs stay as written."""

from __future__ import annotations

from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.fusion.experts import COMPILED, launch_experts
from hymell.op_registry.fusion.vertical import fuse_vertical

COMPILE = Engine(
    name="compile",
    title="PyTorch torch.compile (inductor, default mode)",
    rules=(fuse_vertical, launch_experts(COMPILED)),
    overheads=Overheads(
        host_s_per_launch=3e-6, gap_s=1e-6, step_s=5e-4, cuda_graphs_in_decode=False
    ),
    memory_fraction=1.0,
    notes=("element-wise chains, casts and norms between two GEMMs are one kernel",),
)
