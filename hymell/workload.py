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
