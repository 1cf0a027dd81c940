"""What was aimed at, beside what was measured.

The goals are those that the project set itself before the estimators were written; those for
attention on other GPUs are what an earlier study on the same tables reached. Where a goal names no
library or hold-out, every one that was measured has its line, so that none is picked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from accuracy.ffn import OP as FFN
from accuracy.records import Record, kind
from hymell.estimators.level1.kernel_energy import energy_op
from hymell.measure.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Goal:
    """A MAPE in % that the corrected estimator is to stay under; ``analytical`` without correction.

    Of records of ``ops`` (averaged) on ``gpu``, of these ``kinds`` of hold-out; ``dtypes`` and
    ``libraries`` empty for any.
    """

    what: str
    gpu: str
    ops: tuple[str, ...]
    kinds: tuple[str, ...]
    most: float
    analytical: float | None = None
    dtypes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def asks(self, each: Record) -> bool:
        """Whether a record says something about the goal."""
        return (
            each["op"] in self.ops
            and each["gpu"] == self.gpu
            and kind(each["split"]) in self.kinds
            and (not self.dtypes or each["dtype"] in self.dtypes)
            and (not self.libraries or each["library"] in self.libraries)
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A goal and what one table says of it; ``why`` says why there is no such table."""

    goal: Goal
    library: str = ""
    dtype: str = ""
    held_out: str = ""
    rows: int = 0
    corrected: float | None = None
    analytical: float | None = None
    why: str = ""

    @property
    def met(self) -> str:
        """yes, no, or which half of a goal with two halves."""
        if self.corrected is None:
            return "not measured"
        reached = self.corrected <= self.goal.most
        if self.goal.analytical is None:
            return "yes" if reached else "no"
        plain = self.analytical is not None and self.analytical <= self.goal.analytical
        if reached == plain:
            return "yes" if reached else "no"
        return "corrected only" if reached else "analytical only"


_BF16 = ("bfloat16",)
_BF16_KV = ("bfloat16/bfloat16",)
_VLLM = ("vllm",)

_GEMM = (
    ("h100-sxm", 3.5, 5.0),
    ("h200-sxm", 3.5, 5.0),
    ("a100-sxm-80gb", 4.5, 7.0),
    ("b200-sxm", 4.5, 7.5),
    ("l40s", 8.0, None),
)
_NORMS = (("h100-sxm", 3.0), ("a100-sxm-80gb", 2.5), ("a40", 2.0))
_SOFTMAX = (
    ("l4", 1.0),
    ("v100-pcie-32gb", 4.5),
    ("a100-pcie-40gb", 6.0),
    ("a100-pcie-80gb", 6.0),
)
#: vllm, prefill and decode: H100's goals, then what the study's networks reached elsewhere.
_ATTENTION = (
    ("h100-sxm", 2.5, 2.0),
    ("h200-sxm", 3.8, 2.2),
    ("a100-sxm-80gb", 2.5, 3.2),
    ("l40s", 3.8, 4.4),
    ("b200-sxm", 3.1, 3.2),
)
_NVLINK = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm")

GOALS = (
    *(
        Goal("GEMM, bf16", gpu, ("gemm",), ("shapes",), most, plain, _BF16)
        for gpu, most, plain in _GEMM
    ),
    *(
        Goal("RMSNorm", gpu, ("rms_norm",), ("unseen width", "unseen rows"), most)
        for gpu, most in _NORMS
    ),
    *(
        Goal("Softmax", gpu, ("softmax",), ("unseen shapes", "unseen width"), most)
        for gpu, most in _SOFTMAX
    ),
    *(
        Goal(
            f"attention {phase}, bf16",
            gpu,
            (f"attention_{phase}",),
            ("heads",),
            most,
            None,
            _BF16_KV,
            _VLLM,
        )
        for gpu, *both in _ATTENTION
        for phase, most in zip(("prefill", "decode"), both, strict=True)
    ),
    *(
        Goal(
            f"attention {phase}, bf16, longer than fitted on",
            "h100-sxm",
            (f"attention_{phase}",),
            ("length",),
            3.5,
            None,
            _BF16_KV,
            _VLLM,
        )
        for phase in ("prefill", "decode")
    ),
    Goal("MoE, bf16", "h100-sxm", ("moe",), ("config",), 4.0, None, _BF16, _VLLM),
    Goal("MoE, bf16", "h100-sxm", ("moe",), ("family",), 6.0, None, _BF16, _VLLM),
    Goal("GDN", "h100-sxm", ("gdn",), ("heads",), 1.5, None, (), _VLLM),
    Goal("dense FFN, summed", "h100-sxm", (FFN,), ("unseen model",), 6.0),
    *(
        Goal(
            "NCCL on NVLink",
            gpu,
            ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
            ("unseen sizes",),
            4.5,
            None,
            (),
            ("nccl",),
        )
        for gpu in _NVLINK
    ),
    Goal(
        "prefill, energy",
        "b200-sxm",
        (energy_op("attention_prefill"),),
        ("unseen shape",),
        4.0,
        None,
        (),
        ("trtllm",),
    ),
    *(
        Goal("MoE, energy", gpu, (energy_op("moe"),), ("unseen shape",), 7.0)
        for gpu in ("h200-sxm", "b200-sxm")
    ),
)


def check(
    goals: Iterable[Goal], averages: Collection[Record], gpus: Collection[str], ops: Collection[str]
) -> Iterator[Line]:
    """Every goal with what ``averages`` (`records.means`) say of it.

    ``gpus`` and ``ops`` (empty for all) are what the run was asked for.
    """
    for goal in goals:
        groups: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for each in averages:
            if goal.asks(each):
                key = (each["library"], each["dtype"], each["split"])
                groups[key][each["estimator"]].append(each)
        for (library, dtype, held_out), found in groups.items():
            corrected, plain = found["corrected"], found["analytical"]
            yield Line(
                goal,
                library,
                dtype,
                held_out,
                sum(each["rows"] for each in corrected),
                fmean(each["mape"] for each in corrected),
                fmean(each["mape"] for each in plain),
            )
        if not groups:
            yield Line(goal, why=_why(goal, gpus, ops))


def _why(goal: Goal, gpus: Collection[str], ops: Collection[str]) -> str:
    fitted = {FFN, *(operator.op for operator in OPERATORS)}
    if not fitted.intersection(goal.ops):
        return "no estimator is fitted for it"
    if goal.gpu not in gpus or (ops and not set(goal.ops).intersection(ops)):
        return "this run was not asked for it"
    return "no table on this machine has such rows"
