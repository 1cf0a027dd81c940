"""The tidy table: one row per measured shape, one numpy column per name, SI units.

Every table has the columns of `COMMON`, then the sizes of its op (`DIMS`, float64, so that
formulas over whole columns neither overflow nor cast) and its labels (`LABELS`, strings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError

if TYPE_CHECKING:
    import pandas as pd

#: What every row says. ``time_s`` is the mean of ``repeats`` rows with equal sizes and labels,
#: ``spread`` their (max - min) / mean (0 for one row): the noise of the data. ``power_w`` is NaN
#: where it was not measured or its label is unusable. ``sustained`` marks long runs on a hot,
#: power-limited GPU, another regime than short bursts. ``file`` is where the first repeat stands.
COMMON = (
    "source",
    "gpu",
    "library",
    "version",
    "op",
    "dtype",
    "kernel",
    "time_s",
    "power_w",
    "repeats",
    "spread",
    "sustained",
    "file",
)

_ATTENTION = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
_MLA = ("batch", "q_len", "kv_len", "heads")
_SCAN = ("batch", "q_len", "heads", "groups", "key_dim", "value_dim", "chunk")
_ROWS = ("rows", "cols")
_COLLECTIVE = ("message_bytes", "n_gpus")

#: The sizes of each op. All are what one GPU does: heads and widths are after tensor parallelism,
#: except in ``moe``, where ``experts`` and ``intermediate`` are the model's and ``tp``, ``ep`` say
#: how they are cut. ``q_len`` counts new tokens per sequence, ``kv_len`` every token they attend
#: to, the new ones included; ``window`` 0 is none. ``gated`` is 1 or 0. ``skew`` is the exponent
#: of the power law of the routing, 0 for balanced; ``active_experts`` how many got a token. Of
#: these two the one that is not stated is NaN. ``chunk`` is that of the scan, 0 if not stated.
#: ``reads`` counts the tensors that a pointwise kernel reads. ``message_bytes`` is the size in the
#: meaning of nccl-tests.
DIMS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "batched_gemm": ("batch", "m", "n", "k"),
    "rms_norm": _ROWS,
    "layer_norm": _ROWS,
    "softmax": _ROWS,
    "pointwise": (*_ROWS, "reads"),
    "rope": ("tokens", "heads", "kv_heads", "head_dim"),
    "embedding": ("tokens", "hidden", "vocab"),
    "sampler": ("tokens", "vocab"),
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "attention_mixed": (*_ATTENTION, "decode_batch", "decode_kv_len"),
    "encoder_attention": _ATTENTION,
    "mla_prefill": _MLA,
    "mla_decode": _MLA,
    "mla_prefill_module": _MLA,
    "mla_decode_module": _MLA,
    "moe": (
        "tokens",
        "top_k",
        "experts",
        "hidden",
        "intermediate",
        "tp",
        "ep",
        "gated",
        "skew",
        "active_experts",
    ),
    "gdn": _SCAN,
    "kda": _SCAN,
    "mamba2": _SCAN,
    "conv1d": ("batch", "q_len", "channels", "width"),
    "all_reduce": _COLLECTIVE,
    "all_gather": _COLLECTIVE,
    "reduce_scatter": _COLLECTIVE,
    "all_to_all": _COLLECTIVE,
    "custom_all_reduce": _COLLECTIVE,
    "send_recv": _COLLECTIVE,
}

_PHASE = ("phase",)
_KV = ("kv_dtype",)

#: The labels of each op, beside ``kernel`` (the kernel's, or the layer's, upstream name).
LABELS: Mapping[str, tuple[str, ...]] = {
    "pointwise": ("kind",),
    "attention_prefill": _KV,
    "attention_decode": _KV,
    "attention_mixed": _KV,
    "encoder_attention": _KV,
    "mla_prefill": _KV,
    "mla_decode": _KV,
    "mla_prefill_module": (*_KV, "gemm_dtype", "model"),
    "mla_decode_module": (*_KV, "gemm_dtype", "model"),
    "moe": ("distribution",),
    "gdn": _PHASE,
    "kda": _PHASE,
    "mamba2": _PHASE,
    "conv1d": (*_PHASE, "family"),
    "all_reduce": ("fabric",),
    "send_recv": ("fabric",),
}

#: Sizes that may be 0 (none) or NaN (not stated); any other is 1 or more.
OPTIONAL = frozenset({"window", "gated", "skew", "active_experts", "chunk"})


def dims(op: str) -> tuple[str, ...]:
    """The size columns of ``op``. Raises HymellError for an op that no reader gives."""
    if op not in DIMS:
        raise HymellError(f"no reader gives op {op!r}; use one of: {', '.join(DIMS)}")
    return DIMS[op]


def labels(op: str) -> tuple[str, ...]:
    """The label columns of ``op``, often none."""
    return LABELS.get(op, ())


def column_names(op: str) -> tuple[str, ...]:
    """Every column of a table of ``op``, in order."""
    return (*COMMON, *dims(op), *labels(op))


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the rows of one source, GPU, library, version, op and dtype.

    ``rows_in`` is the sum of ``dropped`` (by reason; `filters.REASONS` words them) and ``rows``.
    ``power_rows`` of the rows kept have a usable power; ``power_unusable`` counts, by reason, the
    rows whose power was blanked.
    """

    source: str
    gpu: str
    library: str
    version: str
    op: str
    dtype: str
    rows_in: int
    dropped: Mapping[str, int]
    rows: int
    power_rows: int
    power_unusable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Table:
    """Measured rows of one op: ``table["m"]`` is a column, ``len(table)`` the rows.

    Size columns and ``time_s``, ``power_w``, ``spread`` are float64, ``repeats`` int64,
    ``sustained`` bool, all others arrays of str. ``tallies`` counts what was left out on the way;
    `take` and `where` carry it on unchanged.
    """

    op: str
    columns: Mapping[str, NDArray[Any]]
    tallies: tuple[Tally, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            raise HymellError(
                f"a table of {self.op} has no column {name!r}; it has: {', '.join(self.columns)}"
            )
        return self.columns[name]

    def take(self, rows: NDArray[Any]) -> Table:
        """The rows that a boolean mask or an index array picks."""
        picked = {name: column[rows] for name, column in self.columns.items()}
        return Table(self.op, picked, self.tallies)

    def where(self, **values: object) -> Table:
        """The rows whose columns equal ``values``: ``table.where(dtype="bfloat16", head_dim=64)``.

        Raises HymellError for a column that the table does not have.
        """
        keep = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            keep &= self[name] == value
        return self.take(keep)

    def to_frame(self) -> pd.DataFrame:
        """The same as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns))
