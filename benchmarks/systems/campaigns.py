"""Which runs were measured together, and which of them a line of the page is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level3.system import age
from systems.judge import Campaign, Form, floored_forms, forms, served_forms
from systems.rows import Left, Runs, joined, load

Pick = Callable[[pd.DataFrame], Any]


@dataclass(frozen=True)
class Spec:
    """A campaign: its sets with what was timed, the runs taken, the subsets that lines show.

    ``by``: what a hold-out leaves out. ``served``: runs of servers, where decode alone was timed.
    ``version`` of the engine, "" where runs state their own. ``one_row``: the subset that is also
    judged with one run of each configuration measured.
    """

    name: str
    title: str
    sets: tuple[tuple[str, str], ...]
    take: Pick = lambda rows: rows["batch"] >= 1
    subsets: dict[str, Pick] = field(default_factory=dict)
    by: str = "model"
    forms: Callable[[Runs], list[Form]] = forms
    served: bool = False
    version: str = ""
    one_row: str = ""

    def version_of(self, labels: pd.DataFrame) -> str:
        """The newest that some runs of one engine state; the year of the data where none does."""
        stated = [version for version in set(labels["version"]) if version[:1].isdigit()]
        return self.version or max(stated, key=age, default=_SILICON_YEAR)

    @property
    def split(self) -> str:
        """How accuracy_end_to_end.json names the hold-out."""
        return f"unseen {self.by}"

    def load(self, cache: Path) -> tuple[Campaign, list[Left]]:
        """The runs and the forms to choose among; what could not be priced."""
        parts, left = [], []
        for name, what in self.sets:
            runs, skipped = load(name, what, cache)
            parts.append(runs)
            left += skipped
        runs = joined(parts)
        runs = runs.take(self.take(runs.labels).to_numpy())
        if not len(runs):
            raise HymellError(f"no run of {self.name} is left")
        group = runs.group if self.by == "model" else runs.labels["n_gpus"].astype(str).to_numpy()
        return Campaign(runs, self.forms(runs), group), left

    def lines(self, labels: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """(name, mask) of the subsets of a cell that have runs, each set of runs once."""
        seen: set[bytes] = set()
        for what, where in self.subsets.items():
            mask = np.asarray(where(labels), dtype=bool)
            if mask.any() and mask.tobytes() not in seen:
                seen.add(mask.tobytes())
                yield what, mask


def _one(rows: pd.DataFrame) -> Any:
    return rows["n_gpus"] == 1


def _moe(rows: pd.DataFrame) -> Any:
    return rows["moe"]


#: GPUs whose served runs have calibrations of their own.
_SILICON_GPUS: Final = (("h100-sxm", "H100"), ("h200-sxm", "H200"), ("b200-sxm", "B200"))

#: Of runs that state no version.
_SILICON_YEAR: Final = "2025"


def _silicon(gpu: str, short: str) -> Spec:
    return Spec(
        f"aic_silicon {short}",
        f"aiconfigurator's served runs on {short}",
        (("aic_silicon", "tpot"),),
        take=lambda r: r["gpu"] == gpu,
        subsets={
            "TPOT, dense": lambda r: ~r["moe"],
            "TPOT, MoE": _moe,
            "TPOT, all": lambda r: r["batch"] >= 1,
        },
        forms=served_forms,
        served=True,
        one_row="TPOT, MoE",
    )


ARGONNE: Final = Spec(
    "argonne",
    "Argonne LLM-Inference-Bench (2024), static batches, float16",
    (("argonne_e2e", "latency"), ("argonne_ttft", "ttft")),
    version="2024",
    subsets={
        "latency, 1 GPU": lambda r: (r["what"] == "latency") & _one(r),
        "latency, 1-4 GPUs": lambda r: r["what"] == "latency",
        "latency, 1 GPU, batch 1, Llama-3-8B": lambda r: (
            (r["what"] == "latency") & _one(r) & (r["batch"] == 1) & (r["zoo"] == "llama-3-8b")
        ),
        "TTFT, 1 GPU": lambda r: r["what"] == "ttft",
    },
)

SPECS: Final = (
    ARGONNE,
    Spec(
        "splitwise",
        "Splitwise (vLLM of 2023), Llama-2-70B on 2-8 GPUs, float16",
        (("splitwise", "ttft"), ("splitwise", "tpot")),
        subsets={
            "prefill": lambda r: r["what"] == "ttft",
            "decode": lambda r: r["what"] == "tpot",
        },
        by="number of GPUs",
        forms=floored_forms,
        version="2023",
    ),
    Spec(
        "mlenergy_v3 H100",
        "ML.ENERGY v3 (vLLM 0.11.1), served, H100",
        (("mlenergy_v3", "tpot"),),
        take=lambda r: r["gpu"] == "h100-sxm",
        subsets={
            "ITL, dense, 1 GPU": lambda r: ~r["moe"] & _one(r),
            "ITL, dense, 1-8 GPUs": lambda r: ~r["moe"],
            "ITL, MoE": _moe,
            "ITL, all": lambda r: r["batch"] >= 1,
        },
        forms=served_forms,
        served=True,
        version="0.11.1",
        one_row="ITL, MoE",
    ),
    Spec(
        "mlenergy_v3 B200",
        "ML.ENERGY v3 (vLLM 0.11.1), served, B200",
        (("mlenergy_v3", "tpot"),),
        take=lambda r: r["gpu"] == "b200-sxm",
        subsets={
            "ITL, dense": lambda r: ~r["moe"],
            "ITL, dense, without gpqa": lambda r: ~r["moe"] & (r["task"] != "gpqa"),
            "ITL, MoE": _moe,
            "ITL, MoE, without gpqa": lambda r: r["moe"] & (r["task"] != "gpqa"),
            "ITL, all": lambda r: r["batch"] >= 1,
        },
        forms=served_forms,
        served=True,
        version="0.11.1",
        one_row="ITL, MoE",
    ),
    *(_silicon(gpu, short) for gpu, short in _SILICON_GPUS),
    Spec(
        "aic_silicon Llama-3-8B",
        "aiconfigurator's served runs of Llama-3-8B",
        (("aic_silicon", "tpot"),),
        take=lambda r: (r["zoo"] == "llama-3-8b") & (r["gpu"] == "h100-sxm"),
        subsets={"TPOT": lambda r: r["batch"] >= 1},
        by="number of GPUs",
        forms=served_forms,
        served=True,
    ),
)
