"""microsoft/vidur: the ops of transformer layers over tokens and tensor parallelism, as CSV files.

Layout: ``data/profiling/compute/GPU/ORG/MODEL/mlp.csv`` and
``data/profiling/network/GPU_FABRIC/COLLECTIVE.csv``. Times are in milliseconds with a resolution
of 1 us (the mean of several runs is read), everything is float16, sizes of messages are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.readers.layout import Load, MeasuredFile, Part, find_folders, gpu_name, read_csv

SOURCE = "vidur"

_DTYPE = "float16"
_COMPUTE_OPS = frozenset({"gemm", "rms_norm", "layer_norm", "pointwise", "rope", "embedding"})
_COLLECTIVES = frozenset({"all_reduce", "send_recv"})


def files(root: Path) -> Iterator[MeasuredFile]:
    """The profiles below ``root``; upstream states no version, so it is ``unknown``."""
    for data in find_folders(root, "data/profiling"):
        for path in sorted(data.glob("compute/*/*/*/mlp.csv")):
            yield _file(path, path.relative_to(data).parts[1], _COMPUTE_OPS, compute)
        for path in sorted(data.glob("network/*/*.csv")):
            if path.stem in _COLLECTIVES:
                gpu = path.parent.name.partition("_")[0]
                yield _file(path, gpu, frozenset({path.stem}), network)


def compute(path: Path) -> Iterator[Part]:
    """The ops of one model's layers. A norm without a gated MLP is LayerNorm (phi-2)."""
    raw = read_csv(path)
    tokens, hidden, tp = raw["num_tokens"], raw["n_embd"], raw["num_tensor_parallel_workers"]
    head_dim = hidden // raw["n_head"]
    heads, kv_heads = raw["n_head"] // tp, raw["n_kv_head"] // tp
    wide, gated = raw["n_expanded_embd"] // tp, raw["use_gated_mlp"].astype(bool)

    def part(op: str, layer: str, **sizes: object) -> Iterator[Part]:
        column = f"time_stats.{layer}.mean"
        if column in raw:
            rows = pd.DataFrame({**sizes, "time_s": raw[column] * 1e-3}, index=raw.index)
            yield Part(op, rows.assign(dtype=_DTYPE, kernel=layer))

    norm = "rms_norm" if gated.all() else "layer_norm"
    qkv = (heads + 2 * kv_heads) * head_dim
    yield from part("gemm", "attn_pre_proj", m=tokens, n=qkv, k=hidden)
    yield from part("gemm", "attn_post_proj", m=tokens, n=hidden, k=heads * head_dim)
    yield from part("gemm", "mlp_up_proj", m=tokens, n=wide * (1 + gated), k=hidden)
    yield from part("gemm", "mlp_down_proj", m=tokens, n=hidden, k=wide)
    yield from part(norm, "input_layernorm", rows=tokens, cols=hidden)
    yield from part(norm, "post_attention_layernorm", rows=tokens, cols=hidden)
    kind = gated.map({True: "silu_mul", False: "gelu"})
    yield from part("pointwise", "mlp_act", rows=tokens, cols=wide, reads=1 + gated, kind=kind)
    yield from part("pointwise", "add", rows=tokens, cols=hidden, reads=2, kind="add")
    yield from part(
        "rope", "attn_rope", tokens=tokens, heads=heads, kv_heads=kv_heads, head_dim=head_dim
    )
    yield from part("embedding", "emb", tokens=tokens, hidden=hidden, vocab=raw["vocab_size"] // tp)


def network(path: Path) -> Iterator[Part]:
    """One collective on one machine; upstream's H100 pairwise send_recv is a copy of the A100's."""
    raw = read_csv(path)
    gpu, _, fabric = path.parent.name.partition("_")
    rows = pd.DataFrame(
        {
            "message_bytes": raw["size"],
            "n_gpus": raw["num_workers"],
            "fabric": fabric,
            "dtype": _DTYPE,
            "kernel": raw["collective"],
            "time_s": raw[f"time_stats.{path.stem}.mean"] * 1e-3,
            "drop": "",
        }
    )
    rows.loc[raw["devices_per_node"] < raw["num_workers"], "drop"] = "crosses_nodes"
    if _is_copy(path, gpu, fabric):
        rows["drop"] = "copied_file"
    yield Part(path.stem, rows)


def _file(path: Path, gpu: str, ops: frozenset[str], load: Load) -> MeasuredFile:
    return MeasuredFile(path, SOURCE, gpu_name(gpu), SOURCE, "unknown", ops, load)


def _is_copy(path: Path, gpu: str, fabric: str) -> bool:
    """Whether a GPU earlier in the alphabet has the very same file for this fabric."""
    content = path.read_bytes()
    return any(
        other.parent.name < f"{gpu}_{fabric}" and other.read_bytes() == content
        for other in path.parent.parent.glob(f"*_{fabric}/{path.name}")
    )
