"""What is asked of a model: batch and lengths, and the number formats it runs in."""

from __future__ import annotations

from dataclasses import dataclass

from hymell.dtypes import canonical
from hymell.errors import HymellError

#: Lengths and batches above this are taken for mistakes.
MAX_TOKENS = 100_000_000
MAX_BATCH = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """``batch`` sequences of ``prompt`` tokens that each generate ``output`` tokens.

    The prefill yields the first output token; ``output - 1`` decode steps follow, with
    prompt, prompt + 1, ... tokens in the cache. Raises HymellError for sizes that make no sense.
    """

    batch: int = 1
    prompt: int = 1024
    output: int = 128

    def __post_init__(self) -> None:
        for name, value, most in (
            ("batch", self.batch, MAX_BATCH),
            ("prompt", self.prompt, MAX_TOKENS),
            ("output", self.output, MAX_TOKENS),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise HymellError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise HymellError(f"{name} must be at least 1, not {value}")
            if value > most:
                raise HymellError(f"{name} {value} is absurd; the most accepted is {most}")


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats that override the checkpoint's own; None keeps what the checkpoint has.

    ``activations``: float format the model runs in (bfloat16, float16, float32). ``weights``:
    stored format of linear and expert weights. ``kv``: format of the KV cache.
    """

    activations: str | None = None
    weights: str | None = None
    kv: str | None = None

    @staticmethod
    def of(dtype: str | None = None, kv_dtype: str | None = None) -> Precision:
        """From a user's ``--dtype`` and ``--kv-dtype``.

        A 16- or 32-bit float is the format the whole model runs in; an 8- or 4-bit format is that
        of the linear and expert weights only. Raises HymellError for an unknown name.
        """
        kv = canonical(kv_dtype) if kv_dtype else None
        if not dtype or dtype == "auto":
            return Precision(kv=kv)
        name = canonical(dtype)
        if name in ("bfloat16", "float16", "float32"):
            return Precision(activations=name, weights=None, kv=kv)
        if name in ("float64", "int64", "int32", "int16", "uint8", "bool", "complex64"):
            raise HymellError(
                f"dtype {dtype!r} is not one that models run in; "
                "use bf16, fp16, fp32, fp8, int8, int4, nvfp4 or mxfp4"
            )
        return Precision(weights=name, kv=kv)


#: Every tensor in the format that the checkpoint keeps it in.
AS_STORED = Precision()

#: GPUs that one machine's links connect (HGX, DGX).
MACHINE_GPUS = 8

#: More GPUs, stages or micro-batches than this are taken for mistakes.
MAX_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Parallel:
    """How a model is spread over GPUs.

    ``tp`` GPUs share every layer: heads, widths, vocabulary. ``ep`` groups of GPUs share the routed
    experts: a divisor of ``tp``, so that each expert's width is split over the tp / ep GPUs of its
    group; or any number beside ``tp`` 1, where each GPU runs the rest of the model for its part of
    the batch. ``pp`` stages of consecutive layers follow each other; the batch passes through them
    in ``microbatches`` equal parts. Raises HymellError for numbers that make no sense.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    microbatches: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "pp", "microbatches"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise HymellError(f"{name} must be a whole number, not {value!r}")
            if not 1 <= value <= MAX_GPUS:
                raise HymellError(f"{name} must be from 1 to {MAX_GPUS}, not {value}")
        if self.tp > 1 and self.tp % self.ep:
            raise HymellError(
                f"ep {self.ep} must divide tp {self.tp}: experts are spread over the GPUs that "
                "share a layer; or leave tp at 1, and each GPU takes a part of the batch"
            )
        if self.microbatches > 1 and self.pp == 1:
            raise HymellError("microbatches need stages to pass through: give --pp 2 or more")

    @property
    def per_stage(self) -> int:
        """GPUs of one pipeline stage."""
        return max(self.tp, self.ep)

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.per_stage * self.pp

    @property
    def replicas(self) -> int:
        """Parts of a micro-batch that different GPUs run outside the experts."""
        return self.ep if self.tp == 1 else 1

    @property
    def batch_parts(self) -> int:
        """Equal parts into which the batch is cut."""
        return self.replicas * self.microbatches

    @property
    def experts_width(self) -> int:
        """GPUs over which the width of one expert is split."""
        return self.tp // self.ep if self.tp > 1 else 1

    def check_batch(self, batch: int) -> None:
        """Raise HymellError for a batch that the parts cannot share evenly."""
        if batch % self.batch_parts:
            raise HymellError(
                f"a batch of {batch} cannot be cut into {self.batch_parts} equal parts "
                f"({self.replicas} of ep, {self.microbatches} micro-batches); "
                f"choose a multiple of {self.batch_parts}"
            )

    def to_dict(self) -> dict[str, int]:
        """The four numbers, and the GPUs they add up to."""
        return {
            "tp": self.tp,
            "ep": self.ep,
            "pp": self.pp,
            "microbatches": self.microbatches,
            "gpus": self.gpus,
        }


#: Everything on one GPU.
SINGLE = Parallel()
