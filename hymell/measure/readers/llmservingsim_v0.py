"""casys-kaist/LLMServingSim, first profiler (v0): eager layers and FlashAttention, as CSV files.

Layout: ``profiler/v0/perf_models/HARDWARE/ORG/MODEL/tpN/layers.csv`` (nanoseconds) and
``attention.csv`` (milliseconds). Norms, rotary embeddings, activations and the router are layers of
several eager kernels; the router is left out, the others keep their layer name as ``kernel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.readers.layout import MeasuredFile, Part, find_folders, gpu_name, read_csv
from hymell.measure.readers.llmservingsim import layer_parts
from hymell.measure.readers.models import ModelSizes, model_sizes

SOURCE = "llmservingsim-v0"

_LIBRARY = "llmservingsim"
_VERSION = "v0"
_DTYPE = "bfloat16"
_ATTENTION = ("attention_prefill", "attention_decode")
_OPS = {
    "attention": frozenset(_ATTENTION),
    "layers": frozenset(
        {"gemm", "rms_norm", "layer_norm", "pointwise", "rope", "embedding", "attention_prefill"}
    ),
}


def files(root: Path) -> Iterator[MeasuredFile]:
    """The profiles below ``root``."""
    for data in find_folders(root, "profiler/v0/perf_models"):
        for path in sorted(data.glob("*/*/*/tp*/*.csv")):
            if path.stem in _OPS:
                gpu = gpu_name(path.relative_to(data).parts[0])
                yield MeasuredFile(path, SOURCE, gpu, _LIBRARY, _VERSION, _OPS[path.stem], load)


def load(path: Path) -> Iterator[Part]:
    """The rows of one file, by op; all of them marked where the model's sizes are not known."""
    raw = read_csv(path)
    model = "/".join(path.parts[-4:-2])
    tp = int(path.parent.name.removeprefix("tp"))
    known = model_sizes(model)
    sizes = known or ModelSizes(1, 1, 1, 1, 1, 1)
    drop = "" if known else "unknown_model"
    if path.stem == "layers":
        yield from _layers(raw, sizes, tp, drop)
    else:
        yield from _attention(raw, sizes, tp, drop)


def _layers(raw: pd.DataFrame, sizes: ModelSizes, tp: int, drop: str) -> Iterator[Part]:
    common = pd.DataFrame(
        {
            "dtype": _DTYPE,
            "kernel": raw["layer_name"],
            "time_s": raw["latency(ns)"] * 1e-9,
            "drop": drop,
        }
    )
    common.loc[common["kernel"] == "gate", "drop"] = "several_kernels"
    yield from layer_parts(common, raw["input"], sizes, tp)
    common["tokens"] = raw["input"]
    whole = _shape(common[common["kernel"] == "attn"], sizes, tp)
    tokens = whole["tokens"]
    yield Part("attention_prefill", whole.assign(batch=1, q_len=tokens, kv_len=tokens))


def _attention(raw: pd.DataFrame, sizes: ModelSizes, tp: int, drop: str) -> Iterator[Part]:
    """``kv_cache_size`` counts a chunk's own tokens; in decode it is that of the whole batch."""
    for op, prefill in zip(_ATTENTION, (True, False), strict=True):
        mine = raw[raw["is_prefill"] == prefill]
        time = mine["time_stats.attn_prefill.mean" if prefill else "time_stats.attn_decode.mean"]
        rows = pd.DataFrame(
            {
                "dtype": _DTYPE,
                "kernel": mine["attention_backend"],
                "time_s": time * 1e-3,
                "drop": drop,
                "batch": mine["batch_size"],
                "q_len": mine["prefill_chunk_size"] if prefill else 1,
                "kv_len": mine["kv_cache_size"] / mine["batch_size"],
            }
        )
        yield Part(op, _shape(rows, sizes, tp))


def _shape(rows: pd.DataFrame, sizes: ModelSizes, tp: int) -> pd.DataFrame:
    return rows.assign(
        heads=sizes.heads // tp,
        kv_heads=max(sizes.kv_heads // tp, 1),
        head_dim=sizes.head_dim,
        window=0,
        kv_dtype=_DTYPE,
    )
