"""The numbers of a GPU that level-1 forms are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hymell.hardware.gpu import Gpu

#: Compute capability (major) to the family whose kernels a form may treat apart.
_FAMILIES = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell-consumer"}


@dataclass(frozen=True, slots=True)
class Device:
    """Data-sheet figures in SI units: FLOP/s by format, bytes/s, bytes, SMs, W.

    ``family``: "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-consumer", or
    "other" for what is not NVIDIA's.
    """

    name: str
    family: str
    peak_flops: Mapping[str, float]
    bandwidth: float
    l2_bytes: float
    sm_count: int
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    tdp_w: float = 0.0

    @staticmethod
    def of(gpu: Gpu) -> Device:
        """From a data sheet."""
        capability = gpu.compute_capability
        family = "other"
        if capability is not None:
            family = _FAMILIES.get(capability[0], "other")
            if capability[:2] == (8, 9):
                family = "ada"
            if capability[:2] == (7, 5):
                family = "turing"
        return Device(
            name=gpu.name,
            family=family,
            peak_flops=gpu.peak_flops,
            bandwidth=gpu.memory_bandwidth_bytes_per_s,
            l2_bytes=float(gpu.l2_bytes),
            sm_count=gpu.sm_count,
            nvlink_bytes_per_s=gpu.interconnect.nvlink_bytes_per_s or 0.0,
            pcie_bytes_per_s=gpu.interconnect.pcie_bytes_per_s or 0.0,
            tdp_w=gpu.tdp_w,
        )

    def peak(self, math: str) -> float:
        """FLOP/s of a format, bf16 and fp16 standing in for each other; KeyError if absent."""
        for name in (math, {"bf16": "fp16", "fp16": "bf16"}.get(math, math)):
            if name in self.peak_flops:
                return self.peak_flops[name]
        raise KeyError(f"{self.name} has no {math} rate")
