"""The least time that a data sheet allows for a run: what is faster did not do the work.

No prediction: only what no engine can avoid. A decode step reads every weight that one token meets
and the keys and values of the batch; a token multiplies by each of those weights once. Attention
arithmetic, embeddings, experts beyond one token's, launches and communication are all left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hymell.dtypes import BITS, bytes_per_element, math_format
from hymell.errors import HymellError
from hymell.hardware import Gpu, find_gpu
from hymell.zoo import find

#: Model types whose cache is keys and values of every layer; of others its reads are left out.
_PLAIN_CACHES = frozenset(
    "cohere gemma glm4_moe llama minimax_m2 mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe "
    "starcoder2".split()
)

#: Bytes per weight of the pairs of formats that `BITS` does not name.
_PAIRS: Mapping[str, float] = {"int4_wo": 0.5}


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights: all, those that a token meets between embedding and head, and those of the head.

    ``kv_elements`` are the keys and values of one token.
    """

    stored: int
    body: int
    head: int
    kv_elements: int


@dataclass(frozen=True, slots=True)
class Run:
    """What a bound needs to know of a run; a length or batch that is not stated is NaN.

    ``context`` is the mean number of tokens in the cache of a sequence in flight.
    """

    zoo: str
    gpu: str
    dtype: str
    n_gpus: float
    batch: float
    prompt: float
    context: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Least seconds of a prefill and of one decode step of mean length, and bytes held.

    ``held_bytes`` are those of all weights and of the mean cache, over all GPUs.
    """

    prefill_s: float
    step_s: float
    held_bytes: float


def run_of(row: Any) -> Run:
    """The run that a row of a frame of runs is."""
    return Run(row.zoo, row.gpu, row.dtype, row.n_gpus, row.batch, row.prompt, row.context)


def bound(run: Run) -> Bound | None:
    """The bound of a run, None where the model's size, the GPU or the format is not known.

    A length or batch that is not stated counts as none, or one sequence.
    """
    weights, board = _weights(run.zoo), _board(run.gpu)
    width = _PAIRS.get(run.dtype) or (bytes_per_element(run.dtype) if run.dtype in BITS else None)
    if weights is None or board is None or width is None or not run.n_gpus >= 1:
        return None
    rate = _rate(board, run.dtype) * run.n_gpus
    bandwidth = board.memory_bandwidth_bytes_per_s * run.n_gpus
    sequences = _stated(run.batch, 1.0)
    cache = weights.kv_elements * (2.0 if width >= 2 else 1.0) * sequences * _stated(run.context)
    read = weights.body * width
    prefill = max(2 * weights.body * sequences * _stated(run.prompt) / rate, read / bandwidth)
    arithmetic = 2 * (weights.body + weights.head) * sequences / rate
    step = max(arithmetic, (read + weights.head * width + cache) / bandwidth)
    return Bound(prefill, step, weights.stored * width + cache)


def memory_bytes(gpu: str) -> float | None:
    """The board's memory, None for a GPU without a data sheet."""
    board = _board(gpu)
    return None if board is None else board.memory_bytes


def tdp_w(gpu: str) -> float | None:
    """The board's power limit, None for a GPU without a data sheet."""
    board = _board(gpu)
    return None if board is None else board.tdp_w


def _stated(value: float, otherwise: float = 0.0) -> float:
    return value if value == value else otherwise


@cache
def _board(gpu: str) -> Gpu | None:
    try:
        return find_gpu(gpu)
    except HymellError:
        return None


@cache
def _rate(board_gpu: Gpu, dtype: str) -> float:
    known = dtype if dtype in BITS else "bfloat16"
    return board_gpu.peak(board_gpu.compute_dtype(math_format(known))[0])


@cache
def _weights(zoo: str) -> _Weights | None:
    """Both embedding and head are taken off, so that tied weights make the bound looser only."""
    known = find(zoo) if zoo else None
    if known is None:
        return None
    config = known.config
    met = known.active_parameters or known.parameters
    plain = "vocab_size" in config and "hidden_size" in config
    if met is None or not plain or config.get("is_encoder_decoder"):
        return None
    head = config["vocab_size"] * config["hidden_size"]
    stored = (known.parameters or met) - head
    return _Weights(stored, met - 2 * head, head, _kv_elements(config))


def _kv_elements(config: Mapping[str, Any]) -> int:
    """Elements of keys and values per token, 0 where the cache is of another kind or windowed."""
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if config.get("model_type") not in _PLAIN_CACHES or windowed:
        return 0
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * width)
