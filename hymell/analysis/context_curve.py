"""How cost grows with the context: one workload at prompts from short to all that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hymell.estimators.predict import price
from hymell.graph import OpGraph
from hymell.workload import Workload

#: Prompts in powers of 2, as far as the model's context and this reach.
_SHORTEST: Final = 128
_LONGEST: Final = 131_072


@dataclass(frozen=True, slots=True)
class ContextCurve:
    """Cost of a workload by prompt length; ``tpot_s`` 0 where nothing is decoded."""

    prompts: tuple[int, ...]
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    energy_per_output_token_j: tuple[float, ...]


def prompts_of(graph: OpGraph, output: int) -> tuple[int, ...]:
    """Powers of 2 that leave room for the output in the model's context; at least the shortest."""
    limit = min(graph.facts.max_context or _LONGEST, _LONGEST) - output
    count = 1 + max(int(np.log2(max(limit, _SHORTEST) / _SHORTEST)), 0)
    return tuple(_SHORTEST << place for place in range(count))


def context_curve(
    graph: OpGraph, workload: Workload, prompts: Sequence[int], **how: Any
) -> ContextCurve:
    """The workload at each of ``prompts``; ``how`` as `hymell.estimators.predict.price` takes it.

    Raises HymellError for a prompt that no traced region holds.
    """
    found = price(graph, workload.batch, prompts, workload.output, **how)
    columns = ("ttft_s", "tpot_s", "energy_per_output_token_j")
    values = [tuple(map(float, np.atleast_1d(found[name]))) for name in columns]
    return ContextCurve(tuple(int(p) for p in prompts), *values)
