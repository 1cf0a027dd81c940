"""The answer: what a model's inference costs on one GPU under one engine.

Plain frozen dataclasses; every field name carries its unit. ``to_dict`` is what ``--json`` prints
(schema: docs/report.schema.json), so a renamed field is a breaking change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

_ONE_GPU = {"tp": 1, "ep": 1, "pp": 1, "microbatches": 1, "gpus": 1}


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Cost of a phase: one prefill, or all decode steps together.

    ``flops`` is the full S^2 count, ``flops_causal`` what a kernel that skips masked work does;
    ``bytes`` is device memory traffic read plus written, ``weight_bytes`` the weights in it;
    ``overhead_s`` is the part of ``time_s`` outside kernels (gaps, host, per-step work);
    ``power_w`` is the mean, 0 for a phase that takes no time.
    """

    steps: int
    flops: float
    flops_causal: float
    bytes: float
    weight_bytes: float
    time_s: float
    energy_j: float
    launches: float
    overhead_s: float = 0.0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Bytes on the GPU, of several on the fullest one, at the longest point of the run.

    ``kv_cache_bytes`` covers KV, latent KV and recurrent state; ``pool_bytes`` is what the engine
    claims of the GPU (0 when it claims what it needs); ``max_batch`` is the largest batch of this
    prompt and output that fits, 0 when not even one does. ``total_bytes`` is weights, cache,
    activations and ``reserve_bytes`` (CUDA context and framework).
    """

    weights_bytes: float
    kv_cache_bytes: float
    state_bytes: float
    activation_bytes: float
    total_bytes: float
    capacity_bytes: float
    usable_bytes: float
    pool_bytes: float
    kv_bytes_per_token: float
    fits: bool
    max_batch: int
    advice: tuple[str, ...] = ()
    reserve_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Share of one block kind (embed, attention, mixer, ffn, moe, head) of one part in a phase.

    ``estimator`` is "level 2" where a correction fitted on whole measured blocks prices it, else
    "sum of level 1": its kernels added up.
    """

    phase: str
    block: str
    part: str
    flops: float
    bytes: float
    time_s: float
    energy_j: float
    share_of_time: float
    share_of_flops: float
    estimator: str = "sum of level 1"


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of a phase, all its repeats (and, in decode, all steps) together.

    ``sizes`` are the primitive's fields as formulas in B, S, L; ``regime`` says what bounds it
    ("launch", "memory", "balanced-memory", "balanced-compute", "compute"); ``estimator`` names what
    priced it, ``calibration`` the measurements behind that ("" for none). ``calibrated`` is True
    where those were taken on this GPU, ``in_range`` where they surround the sizes of this kernel.
    ``energy_estimator`` ("power", "data sheet"), ``energy_calibration`` and ``energy_calibrated``
    say the same of its energy, which takes the time as given.
    """

    phase: str
    name: str
    primitive: str
    block: str
    part: str
    layer: str
    path: str
    repeat: int
    launches: int
    sizes: Mapping[str, str]
    flops: float
    flops_causal: float
    bytes: float
    weight_bytes: float
    time_s: float
    energy_j: float
    share_of_time: float
    regime: str
    estimator: str
    understood: bool
    calibration: str = ""
    calibrated: bool = False
    in_range: bool = False
    energy_estimator: str = "data sheet"
    energy_calibration: str = ""
    energy_calibrated: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the model was understood; ``unknown`` lists (op, count, share of bytes)."""

    understood_share_of_ops: float
    understood_share_of_flops: float
    understood_share_of_bytes: float
    calibrated_share_of_time: float
    unknown: tuple[tuple[str, int, float], ...]
    calibrated_share_of_energy: float = 0.0

    @property
    def complete(self) -> bool:
        """True when every op is understood."""
        return not self.unknown


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How near an estimator was to models that it had not seen.

    ``mape`` is the mean absolute error in % over ``rows`` runs of ``models`` models of this
    ``kind`` ("dense models", "models with experts") in ``sets``, each left out of the fit; None,
    and ``note`` says why, where there are none. ``gpus`` is "one" or "several", ``load`` "static"
    (batches that start together) or "served". ``in_range`` is False for a workload beyond those
    measured; ``note`` says in what.
    """

    estimator: str = ""
    kind: str = ""
    gpus: str = ""
    load: str = ""
    mape: float | None = None
    rows: int = 0
    models: int = 0
    sets: tuple[str, ...] = ()
    in_range: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class CostReport:
    """What one workload of one model costs; see `hymell.predict`.

    On several GPUs (``parallel``: tp, ep, pp, microbatches, gpus) times are those of the run;
    energy, power, ``tdp_w``, ``cost`` and ``gco2`` of all GPUs, here and in phases, blocks and
    kernels; FLOPs, bytes, launches and sizes of one GPU of each stage; ``memory`` of the fullest
    GPU.
    ``intervals`` are (low, high) of quantities by the names of their fields, which are to hold
    ``interval_level`` of all runs; ``accuracy`` says of the same names, where they are estimated
    and not derived, how near their estimator was, or why there is no interval.
    """

    model: str
    gpu: str
    engine: str
    dtype: str
    workload: Mapping[str, int]
    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float
    energy_j: float
    energy_per_output_token_j: float
    power_w: float
    energy_calibrated: bool
    prefill: PhaseCost
    decode: PhaseCost
    memory: MemoryCost
    parameters: Mapping[str, int]
    coverage: Coverage
    blocks: tuple[BlockCost, ...]
    kernels: tuple[KernelCost, ...]
    assumptions: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    cost: Mapping[str, float] | None = None
    gco2: Mapping[str, float] | None = None
    parallel: Mapping[str, int] = field(default_factory=lambda: dict(_ONE_GPU))
    energy_per_request_j: float = 0.0
    tdp_w: float = 0.0
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    interval_level: float = 0.9
    accuracy: Mapping[str, Accuracy] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, ready for JSON."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def to_frame(self) -> pd.DataFrame:
        """The kernels as a pandas DataFrame, one row per kernel and phase."""
        import pandas as pd

        return pd.DataFrame([_plain(asdict(kernel)) for kernel in self.kernels])

    def _repr_html_(self) -> str:
        from hymell.report.notebook import to_html

        return to_html(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
