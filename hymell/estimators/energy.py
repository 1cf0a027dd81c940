"""Energy from data-sheet figures: uncalibrated, the form that stands until measurements replace it.

    P = P_idle + (TDP - P_idle) * max(u_compute, MEMORY_SHARE * u_memory)

during a kernel, with u the share of the data-sheet peak that the kernel uses, and P_idle between
kernels. Since u = (seconds at peak) / (seconds taken), the energy of a kernel is

    E = P_idle * time + (TDP - P_idle) * busy,   busy = max(compute seconds, share * memory seconds)

so it never falls when FLOPs, bytes or time grow, and P stays between P_idle and TDP.
"""

from __future__ import annotations

from dataclasses import dataclass

from hymell.estimators.level1.roofline import limits
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Primitive, Value

#: Part of the dynamic power that the memory draws at full bandwidth. From kernel power on H200
#: (public AIConfigurator tables): decode attention 244 W + 0.046 J/GB, so 465 W at 4.8 TB/s, where
#: 75 W is idle and 700 W the TDP: (465 - 75) / (700 - 75).
MEMORY_SHARE = 0.62

#: Idle power where the data sheet has none, as a share of TDP: what nvidia-smi shows for idle
#: H100, H200 and L40S boards (70 to 75 of 700 W, 35 of 350 W).
IDLE_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Idle and largest power of a GPU, in W; ``idle_stated`` False: a share of TDP stands in."""

    idle_w: float
    tdp_w: float
    idle_stated: bool

    @staticmethod
    def of(gpu: Gpu) -> PowerModel:
        """From a data sheet."""
        if gpu.idle_power_w is None:
            return PowerModel(IDLE_SHARE * gpu.tdp_w, gpu.tdp_w, False)
        return PowerModel(min(gpu.idle_power_w, gpu.tdp_w), gpu.tdp_w, True)

    def energy_j(self, time_s: Value, busy_s: Value) -> Value:
        """Energy over ``time_s`` seconds of which ``busy_s`` count at full dynamic power."""
        return self.idle_w * time_s + (self.tdp_w - self.idle_w) * busy_s

    def describe(self) -> str:
        """The form in words, for a report's assumptions: of kernels without a fitted power."""
        source = "data sheet" if self.idle_stated else f"{IDLE_SHARE:.0%} of TDP, none published"
        return (
            "idle + (TDP - idle) * max(compute utilisation, "
            f"{MEMORY_SHARE} * memory utilisation), idle power in the gaps; "
            f"idle {self.idle_w:.0f} W ({source}), TDP {self.tdp_w:.0f} W; the GPU board alone"
        )


def busy_terms(primitive: Primitive, gpu: Gpu) -> tuple[Value, Value, Value]:
    """Seconds whose maximum is the kernel's time at full dynamic power, per workload."""
    bound = limits(primitive, gpu)
    return bound.matrix_s, bound.vector_s, MEMORY_SHARE * bound.memory_s
