"""One GPU as its data sheet states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hymell.errors import HymellError
from hymell.hardware.formats import FORMATS, math_format


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Links off the board, each as marketed: both directions added, all links of one GPU.

    ``nvlink_bytes_per_s`` is the scale-up link whatever its brand (Infinity Fabric on AMD). None
    means the board has no such link, or hangs on its host by another one (Grace's NVLink-C2C).
    """

    nvlink_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    pcie_generation: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """Where the figures of ``fields`` come from; ``url`` is None where only the title is known."""

    fields: tuple[str, ...]
    title: str
    publisher: str
    url: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet figures of one GPU; docs/hardware.md describes every field.

    ``peak_flops`` maps each format of `FORMATS` that the hardware has units for to its dense rate
    in FLOP/s (integer formats: op/s), a multiply-add counted as two. ``memory_bytes`` is the
    memory as marketed, ``visible_memory_bytes`` what the driver's tool shows as total.
    ``sm_count`` counts streaming multiprocessors, compute units (AMD) or cores (CPU).
    ``idle_power_w`` is the board at rest with no process on it.
    """

    name: str
    display_name: str
    vendor: str
    architecture: str
    compute_capability: tuple[int, int] | None
    # A plain dict so that a Gpu can be pickled and copied; typed read-only, left out of the hash.
    peak_flops: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    visible_memory_bytes: int | None
    memory_bandwidth_bytes_per_s: float
    memory_type: str
    l2_bytes: int
    sm_count: int
    base_clock_hz: float | None
    boost_clock_hz: float | None
    tdp_w: float
    idle_power_w: float | None
    interconnect: Interconnect
    aliases: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    def peak(self, dtype: str) -> float:
        """Dense peak rate of ``dtype``, FLOP/s (integer formats: op/s).

        Never another format's rate in its place: raises HymellError where the hardware has no
        units for ``dtype``, and for an unknown dtype. `compute_dtype` names what runs instead.
        """
        key = math_format(dtype)
        if key not in self.peak_flops:
            has = ", ".join(f for f in FORMATS if f in self.peak_flops)
            raise HymellError(f"{self.display_name} has no {key} units; its peak rates are: {has}")
        return self.peak_flops[key]

    def compute_dtype(self, dtype: str) -> tuple[str, str | None]:
        """The format the arithmetic really runs in for tensors of ``dtype``, and why.

        Returns ``(format, note)`` with a format that `peak` knows; the note is None when the
        hardware computes in ``dtype`` itself. Otherwise it says, in a line, what engines do:

        - fp8, fp4, int8 without units, and int4 always: weight-only. Weights are expanded on the
          fly to 16 bits (Marlin-style kernels of vLLM, SGLang, TensorRT-LLM), so the rate is
          bf16's, or fp16's, or fp32's, in that order. int4 runs so even where int4 units exist,
          because no mainstream LLM engine multiplies 4-bit integers.
        - bf16 without units (V100, T4): fp16, but only if the user asks for it. Engines refuse
          bf16 there, and the two formats differ in range.
        - fp16 and tf32 without units: fp32.

        Raises HymellError for an unknown dtype and for fp64 without units.
        """
        key = math_format(dtype)
        if key in self.peak_flops and key != "int4":
            return key, None
        if key in ("fp8", "fp4", "int8", "int4"):
            wide = next((f for f in ("bf16", "fp16") if f in self.peak_flops), "fp32")
            why = (
                "engines use no int4 units" if key == "int4" else f"{self.name} has no {key} units"
            )
            return wide, f"{why}: {key} is weight-only, expanded to {wide} for the arithmetic"
        if key == "bf16" and "fp16" in self.peak_flops:
            return "fp16", (
                f"{self.name} has no bf16 units and engines refuse bf16 there: "
                "this is the rate after an explicit cast of the model to float16"
            )
        if key in ("bf16", "fp16", "tf32"):
            return "fp32", f"{self.name} has no {key} units: the arithmetic runs in fp32"
        raise HymellError(f"{self.display_name} has no {key} units and nothing stands in for them")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict in the schema of the data files; `hymell.hardware.load` reads it back."""
        data = asdict(self)
        if self.compute_capability is not None:
            data["compute_capability"] = ".".join(map(str, self.compute_capability))
        return data
