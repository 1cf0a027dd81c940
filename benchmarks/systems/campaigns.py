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
from systems.judge import Campaign, Form, forms
from systems.rows import Left, joined, load

Pick = Callable[[pd.DataFrame], Any]


@dataclass(frozen=True)
class Spec:
    """A campaign: its sets with what was timed, the runs taken, the subsets that lines show.

    ``by``: what a hold-out leaves out. ``brief``: few forms, for many models.
    """

    name: str
    title: str
    sets: tuple[tuple[str, str], ...]
    take: Pick = lambda rows: rows["batch"] >= 1
    subsets: dict[str, Pick] = field(default_factory=dict)
    by: str = "model"
    brief: bool = False

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
        found = [form for form in forms(runs) if not self.brief or _brief(form)]
        return Campaign(runs, found, group), left

    def lines(self, labels: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """(name, mask) of the subsets of a cell that have runs, each set of runs once."""
        seen: set[bytes] = set()
        for what, where in self.subsets.items():
            mask = np.asarray(where(labels), dtype=bool)
            if mask.any() and mask.tobytes() not in seen:
                seen.add(mask.tobytes())
                yield what, mask


def _brief(form: Form) -> bool:
    return form.pooled != "all" and form.width < 1 and "step_s" in form.terms


def _one(rows: pd.DataFrame) -> Any:
    return rows["n_gpus"] == 1


ARGONNE: Final = Spec(
    "argonne",
    "Argonne LLM-Inference-Bench (2024), static batches, float16",
    (("argonne_e2e", "latency"), ("argonne_ttft", "ttft")),
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
    ),
    Spec(
        "mlenergy_v3 dense",
        "ML.ENERGY v3 (vLLM 0.11.1), served, dense models",
        (("mlenergy_v3", "tpot"),),
        take=lambda r: ~r["moe"],
        subsets={"ITL, dense, 1 GPU": _one, "ITL, dense, 1-8 GPUs": lambda r: ~r["moe"]},
        brief=True,
    ),
    Spec(
        "mlenergy_v3 MoE",
        "ML.ENERGY v3 (vLLM 0.11.1), served, models with experts",
        (("mlenergy_v3", "tpot"),),
        take=lambda r: r["moe"],
        subsets={"ITL, MoE": lambda r: r["moe"]},
        brief=True,
    ),
    Spec(
        "aic_silicon H100",
        "aiconfigurator's served runs on H100",
        (("aic_silicon", "tpot"),),
        take=lambda r: r["gpu"] == "h100-sxm",
        subsets={
            "TPOT, dense": lambda r: ~r["moe"],
            "TPOT, all": lambda r: r["batch"] >= 1,
        },
        brief=True,
    ),
)
