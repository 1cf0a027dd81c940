"""Measured blocks with the kernels that hymell lowers for them, priced one by one.

A model is traced from the zoo and lowered as the library that timed it launches layers; of the
kernels those are taken that upstream timed: no exchange between GPUs, no residual addition, no
append to the KV cache but what the attention kernel does itself, and no attention where it was not
timed. Sizes are as measured: weights and caches as warm as the benchmark left them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import hymell
from blocks_parts.level1 import Fitted, Stack, copies
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.calibrated import calibrated_for
from hymell.estimators.fitted import predict_rows
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Dims
from hymell.estimators.level2.sums import BlockSums, block_sums
from hymell.estimators.predict import deploy
from hymell.estimators.queries import columns, query
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.measure.judging import ROOFLINE_LAUNCH_S
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.engines.trtllm import TRTLLM
from hymell.op_registry.engines.vllm import VLLM
from hymell.op_registry.fusion.gemms import merge_siblings
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import Attention, Collective, Primitive, RowReduce, at
from hymell.workload import Parallel, Precision

Array = NDArray[np.float64]

#: Models outside the zoo whose layers have the shape of a zoo model's (its depth aside).
LAYERS_OF: Final = {"internlm/internlm-20b": "llama-2-13b"}

#: LLMServingSim's first profiler timed each projection apart; the rest runs as in vLLM.
_APART: Final = replace(VLLM, rules=tuple(r for r in VLLM.rules if r is not merge_siblings))
_ENGINES: Final[Mapping[str, Engine]] = {
    "vidur": VLLM,
    "llmservingsim": _APART,
    "vllm": VLLM,
    "trtllm": TRTLLM,
}

#: Whose attention kernel writes the cache: everyone's here, so that a rotation is only that.
_WITH_APPEND: Final = "vllm"


@dataclass(frozen=True)
class Blocks:
    """Measured blocks: their labels, seconds, and the kernels' sums, plain and with corrections."""

    labels: pd.DataFrame
    time_s: Array
    sheet_s: Array
    analytical: BlockSums
    corrected: BlockSums

    def __len__(self) -> int:
        return len(self.time_s)

    def take(self, rows: NDArray[np.int64]) -> Blocks:
        """The blocks at some positions."""
        return Blocks(
            self.labels.iloc[rows].reset_index(drop=True),
            self.time_s[rows],
            self.sheet_s[rows],
            self.analytical.take(rows),
            self.corrected.take(rows),
        )


@cache
def traced(zoo: str) -> OpGraph:
    return hymell.trace(zoo)


def zoo_of(model: str, zoo: str) -> str:
    """The zoo model that has a model's layers. Raises HymellError where there is none."""
    found = zoo or LAYERS_OF.get(model, "")
    if not found:
        raise HymellError("the zoo has no model with these layers")
    return found


def deployed(zoo: str, gpu: str, library: str, tp: int, precision: Precision) -> Deployment:
    """A model on a GPU under the engine that runs layers as the library does."""
    board, engine = find_gpu(gpu), _ENGINES[library]
    return deploy(
        traced(zoo),
        gpu=board,
        engine=engine,
        precision=precision,
        estimator=calibrated_for(board, engine.name),
        parallel=Parallel(tp),
    )


def kernels_of(model: Deployment, block: str, phase: str, members: Sequence[str]) -> list[Kernel]:
    """The kernels of one layer that upstream timed, in launch order."""
    region = next(i for i, r in enumerate(model.graph.regions) if r.phase == phase)
    kinds = ("attention",) if block == "attention" else ("ffn", "moe")
    found = [k for k in model.lowered(region).kernels if k.block in kinds]
    # The last layers stand for all: those of experts, where the first ones have none.
    layer = _layer(found[-1].path)
    timed: list[Kernel] = []
    for kernel in found:
        primitive = kernel.primitive
        if _layer(kernel.path) != layer or isinstance(primitive, Collective):
            continue
        first = isinstance(primitive, RowReduce) and not timed
        if first and members == ["module"]:
            continue
        if first and any(isinstance(k.primitive, RowReduce) for k in timed):
            continue
        if isinstance(primitive, Attention) and not _times_attention(members):
            continue
        timed.append(replace(kernel, primitive=_without_addition(primitive)))
    return _one_norm(timed)


def _layer(path: str) -> str:
    found = re.match(r"(.*?\.\d+)(\.|$)", path)
    return found.group(1) if found else path


def _times_attention(members: Sequence[str]) -> bool:
    return bool({"attention", "attn", "module"} & set(members))


def _one_norm(kernels: list[Kernel]) -> list[Kernel]:
    """The first layer's norm has nothing to add and stands beside that of the others."""
    norms = [k for k in kernels[:3] if isinstance(k.primitive, RowReduce)]
    paths = {k.path for k in norms}
    if len(norms) > 1 and len(paths) == 1:
        kernels = [k for k in kernels if k not in norms[1:]]
    return kernels


def _without_addition(primitive: Primitive) -> Primitive:
    """A norm that adds the residual first, as the norm alone."""
    if not (isinstance(primitive, RowReduce) and primitive.role.startswith("add_")):
        return primitive
    moved = primitive.rows * primitive.cols * 2
    return replace(
        primitive,
        role=primitive.role.removeprefix("add_"),
        bytes_read=moved + primitive.weight_bytes,
        bytes_written=moved,
    )


def sized(kernel: Kernel, rows: pd.DataFrame, phase: str) -> Primitive:
    """A kernel with the sizes of measured rows; a chunk sees its history, which no region has."""
    tokens = rows["tokens"].to_numpy(float)
    if rows["batch"].isna().any():
        return at(kernel.primitive, tokens, 1.0, 1.0)
    B, S, keys = (rows[name].to_numpy(float) for name in ("batch", "q_len", "kv_len"))
    primitive = at(kernel.primitive, B, S, np.maximum(keys - S, 0.0) if phase == "decode" else 0.0)
    return replace(primitive, kv_len=keys) if isinstance(primitive, Attention) else primitive


def as_measured(primitive: Primitive, weights: float) -> tuple[tuple[str, ...], Dims] | None:
    """The ops to look under and the sizes, with weights and caches as warm as in the tables."""
    asked = query(primitive)
    if asked is not None and asked.host is not None and asked.beside is not None:
        asked = asked.beside(_WITH_APPEND)
    if asked is None or asked.included:
        return None
    sizes = dict(asked.sizes())
    if "copies" in sizes:
        sizes["copies"] = weights
    if "cold" in sizes:
        sizes["cold"] = 0
    return tuple(dict.fromkeys(key[0] for key in asked.keys)), columns(sizes)


def priced(stack: Stack, made: Fitted, rows: pd.DataFrame) -> Blocks:
    """Blocks of one model, tensor parallelism, phase and members, by estimators of its stack."""
    first = rows.iloc[0]
    members = str(first["members"]).split("+")
    phase = str(first["phase"]) or "decode"
    zoo = zoo_of(str(first["model"]), str(first["zoo"]))
    precision = Precision.of(str(first["dtype"]))
    model = deployed(zoo, stack.gpu, stack.library, int(first["tp"]), precision)
    found: dict[str, list[tuple[Primitive, Array]]] = {"plain": [], "better": []}
    sheet = np.zeros(len(rows))
    weights = copies(stack)
    for kernel in kernels_of(model, str(first["block"]), phase, members):
        primitive = sized(kernel, rows, phase)
        asked = as_measured(primitive, weights)
        if asked is None:
            continue
        ops, sizes = asked
        sizes = {name: np.broadcast_to(v, len(rows)).copy() for name, v in sizes.items()}
        estimator = _find(made, ops, members)
        floor = estimator.form.floor_s(sizes, estimator.device)
        sheet += kernel.launches * (floor + ROOFLINE_LAUNCH_S)
        found["plain"].append((primitive, estimator.predict(sizes, corrected=False).time_s))
        found["better"].append((primitive, predict_rows(estimator, sizes).time_s))
    return Blocks(
        rows.reset_index(drop=True),
        rows["time_s"].to_numpy(float),
        sheet,
        block_sums(found["plain"], len(rows)),
        block_sums(found["better"], len(rows)),
    )


def _find(made: Fitted, ops: Sequence[str], members: Sequence[str]) -> Level1:
    """The estimator of an op fitted on the very layer, else on any.

    Raises HymellError for an op that the stack did not time.
    """
    for op in ops:
        mine = {kernel: each for (name, kernel), each in made.items() if name == op}
        for member in members:
            if member in mine:
                return mine[member]
        if mine:
            return mine.get("") or next(iter(mine.values()))
    raise HymellError(f"nobody timed {' or '.join(ops)} alone")


def groups(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows that are priced together."""
    keys = ["model", "block", "phase", "members", "tp", "dtype", "gemm_dtype", "kv_dtype"]
    for _, mine in rows.groupby(keys, sort=True):
        yield mine
