"""What is held out of the MoE tables, and how their rows were routed.

A family is one model's experts (hidden, intermediate, experts, top_k); a configuration is a family
cut in one way (tp, ep). Each is held out with all tokens and distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1.moe import moe_dims
from hymell.estimators.level1.routing import BLOCKS, balanced, loads, power_law
from hymell.measure.splits.attention import Split, held_groups
from hymell.measure.table import Table

_FAMILY: Final = ("hidden", "intermediate", "experts", "top_k")
#: Fewest families of which some can be held out and the rest still fitted.
_FEWEST_FAMILIES: Final = 4
#: Most tokens fitted on when the longest are held out.
_TRAINED_TOKENS: Final = 4096

#: Kernels that were timed with a gate on shapes of models without one: on these their bytes per
#: second agree with those of the gated shapes, and stay within the data sheet, only with a gate.
_GATED_ANYWAY: Final = ("vllm_fused_moe", "vllm_marlin_int4_moe")
#: The same for a kernel that got its gateless form after this version.
_GATED_VERSIONS: Final = frozenset({("sglang", "0.5.10")})
#: Tables whose power law packs the rows lost in rounding onto one rank: with one or two tokens its
#: fullest rank takes 3-5 times as long as under balanced routing, elsewhere as long.
_PACKED_VERSIONS: Final = frozenset({("trtllm", "1.2.0rc5")})


def families(table: Table) -> NDArray[np.int64]:
    """A number per row that names its family."""
    return _numbered(table, _FAMILY)


def splits(table: Table) -> list[Split]:
    """Configurations and whole families held out (one split per seed), then the most tokens.

    A table of fewer than four families has no split by family. Raises HymellError for a table of
    another op.
    """
    if table.op != "moe":
        raise HymellError(f"MoE splits do not cut a table of {table.op}; use its own module")
    found = [*held_groups(table, (*_FAMILY, "tp", "ep"), "config")]
    if len(np.unique(families(table))) >= _FEWEST_FAMILIES:
        found += held_groups(table, _FAMILY, "family")
    long = table["tokens"] > _TRAINED_TOKENS
    return [*found, ("length", ~long, long)] if long.any() and not long.all() else found


def dims(table: Table) -> Mapping[str, NDArray[np.float64]]:
    """The sizes that the level-1 form takes, routed as the benchmark did; weights may be L2-warm.

    Balanced where ``skew`` is 0, by the power law where it is positive; where it is NaN, the active
    experts that the table states, evenly loaded.
    """
    skew = table["skew"]
    sizes = [table[name] for name in ("tokens", "top_k", "experts", "ep")]
    made = list(zip(table["library"], table["version"], strict=True))
    packed = np.array([name in _PACKED_VERSIONS for name in made], dtype=bool)
    rank = np.zeros((3 + len(BLOCKS), len(table)))
    for rows, routing, extra in (
        (skew == 0, balanced, ()),
        ((skew > 0) & ~packed, power_law, (skew,)),
        ((skew > 0) & packed, partial(power_law, packed=True), (skew,)),
    ):
        if rows.any():
            found = loads(routing, *(size[rows] for size in (*sizes, *extra)))
            rank[:, rows] = np.stack([*found[:3], *found[3]])
    stated = np.isnan(skew)
    if stated.any():
        rank[:, stated] = _evenly(table.take(stated))
    older = np.array([name in _GATED_VERSIONS for name in made], dtype=bool)
    anyway = older | np.isin(table["kernel"].astype(str), _GATED_ANYWAY)
    return moe_dims(
        (rank[0], rank[1], rank[2], tuple(rank[3:])),
        tokens=table["tokens"],
        top_k=table["top_k"],
        experts=table["experts"],
        ranks=table["ep"],
        hidden=table["hidden"],
        width=table["intermediate"] / table["tp"],
        gated=np.where(anyway, 1.0, table["gated"]),
        cold=0.0,
    )


def _evenly(table: Table) -> NDArray[Any]:
    pairs = table["tokens"] * table["top_k"] / table["ep"]
    active = np.minimum(np.maximum(table["active_experts"], 1.0), np.maximum(pairs, 1.0))
    each = pairs / active
    return np.stack([pairs, active, each, *(active * np.ceil(each / b) * b for b in BLOCKS)])


def _numbered(table: Table, names: tuple[str, ...]) -> NDArray[np.int64]:
    values = np.stack([table[name] for name in names], axis=1)
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
