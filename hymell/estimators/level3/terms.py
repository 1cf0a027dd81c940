"""The terms that a run's time is the sum of: each a column of the features times a coefficient.

    T = c_prefill * prefill kernels + c_dense * decode kernels of no other kind
      + c_experts * decode experts + c_attention * decode attention
      + c_gqa * (decode attention as if with all KV heads - decode attention)
      + c_comm * exchanges + step_s * steps + sequence_s * sequences x steps
      + logit_s * logits sampled + message_s * exchanges + routed_s * layers of experts x steps
      + in each phase what launch_s * launches is longer than its kernels

Seconds of kernels are level 1's (`features`). The first group are multipliers near 1; ``gqa`` is
how far an engine's decode kernels are from reading shared KV heads once (0) rather than once per
query head (1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Term:
    """A coefficient: its unit, what is believed of it before any run is seen, and what it says.

    ``prior`` and ``width`` are the mean and the standard deviation of that belief, in ``unit``.
    """

    name: str
    unit: str
    prior: float
    width: float
    meaning: str


#: In the order of the formula. Widths: kernels measured alone and in a model differ by 10-20%; host
#: work per step and sequence is milliseconds and tens of microseconds at most.
TERMS: Final[Mapping[str, Term]] = {
    term.name: term
    for term in (
        Term("prefill", "1", 1.0, 0.2, "x seconds of prefill kernels"),
        Term("dense", "1", 1.0, 0.2, "x seconds of decode kernels of no other kind"),
        Term("experts", "1", 1.0, 0.3, "x seconds of routed experts in decode"),
        Term("attention", "1", 1.0, 0.2, "x seconds of decode attention"),
        Term("comm", "1", 1.0, 0.3, "x seconds of exchanges between GPUs"),
        Term("gqa", "1", 0.2, 0.2, "x seconds that decode attention would add with all KV heads"),
        Term("step_s", "s", 0.0, 2e-3, "per step"),
        Term("sequence_s", "s", 0.0, 3e-5, "per sequence and step"),
        Term("logit_s", "s", 0.0, 3e-10, "per logit sampled from"),
        Term("message_s", "s", 0.0, 1e-5, "per exchange between GPUs"),
        Term("routed_s", "s", 0.0, 1e-4, "per layer of routed experts and decode step"),
        Term("prefill_launch_s", "s", 0.0, 3e-5, "of host per launch in prefill, at least"),
        Term("decode_launch_s", "s", 0.0, 3e-5, "of host per launch in decode, at least"),
    )
}

#: Terms that are 1 where they are not fitted.
MULTIPLIERS: Final = ("prefill", "dense", "experts", "attention", "comm")

#: Of each phase the term that its kernels are hidden behind, and the terms that these are.
FLOORS: Final[Mapping[str, tuple[str, ...]]] = {
    "prefill_launch_s": ("prefill",),
    "decode_launch_s": ("dense", "experts", "attention", "gqa"),
}


def columns(features: Columns, vocabulary: float) -> dict[str, NDArray[np.float64]]:
    """The column of each of `TERMS`: features of `features.features`, one entry per run.

    ``prefill_comm`` beside them is prefill's part of ``comm``.

    ``vocabulary`` counts the logits that one token is sampled from, 0 for a model without any.
    """
    sampled = features["prefill_sequence_steps"] + features["decode_sequence_steps"]
    prefill = [features[f"prefill_{group}"] for group in ("gemm", "experts", "rest", "attention")]
    return {
        "prefill": np.sum(prefill, axis=0),
        "dense": features["decode_gemm"] + features["decode_rest"],
        "experts": features["decode_experts"],
        "attention": features["decode_attention"],
        "comm": features["prefill_comm"] + features["decode_comm"],
        "gqa": features["decode_mha_extra"],
        "step_s": features["prefill_steps"] + features["decode_steps"],
        "sequence_s": sampled,
        "logit_s": sampled * vocabulary,
        "message_s": features["prefill_messages"] + features["decode_messages"],
        "routed_s": features["decode_expert_layers"],
        "prefill_launch_s": features["prefill_launches"],
        "decode_launch_s": features["decode_launches"],
        "prefill_comm": features["prefill_comm"],
    }


def total(terms: Columns, coefficients: Mapping[str, float]) -> NDArray[np.float64]:
    """Seconds of each run: the sum over the coefficients given; absent ones count as 0."""
    found = sum(v * terms[name] for name, v in coefficients.items() if name not in FLOORS)
    for floor in FLOORS:
        host_s = coefficients.get(floor, 0.0) * terms[floor]
        found = found + np.maximum(host_s - hidden_s(terms, coefficients, floor), 0.0)
    return np.asarray(found)


def hidden_s(terms: Columns, coefficients: Mapping[str, float], floor: str) -> NDArray[np.float64]:
    """Seconds of the kernels that a host of a phase (`FLOORS`) starts ahead of."""
    found = sum(coefficients.get(name, 0.0) * terms[name] for name in FLOORS[floor])
    return np.asarray(found + coefficients.get("comm", 0.0) * comm_s(terms, floor))


def comm_s(terms: Columns, floor: str) -> NDArray[np.float64]:
    """Seconds of exchanges, by level 1, in the phase of one of `FLOORS`."""
    prefill = terms["prefill_comm"]
    return prefill if floor == "prefill_launch_s" else terms["comm"] - prefill


def stacked(many: Sequence[Columns]) -> dict[str, NDArray[np.float64]]:
    """Columns of several groups of runs one after another."""
    return {name: np.concatenate([each[name] for each in many]) for name in many[0]}
