"""From ops to primitives to an engine's kernels.

``@lowers`` registers an op; `lower.lower` runs an engine's fusion rules; `primitives` are what
estimators price. Nothing here imports torch.
"""

from __future__ import annotations

from hymell.op_registry.memory_ops import memory_op, row_op
from hymell.op_registry.opaque import keep_whole
from hymell.op_registry.registry import lowers

__all__ = ["keep_whole", "lowers", "memory_op", "row_op"]
