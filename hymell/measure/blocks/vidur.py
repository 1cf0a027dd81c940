"""microsoft/vidur: the layers of one decoder block over tokens and tensor parallelism.

The kernel of attention is not read (`attention.csv`, left out of the data for its size), so the
attention block is its norm, projections and rotation. phi-2 runs attention and FFN side by side on
one norm, which the attention block has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.blocks.table import framed, summed
from hymell.measure.e2e import names
from hymell.measure.readers.layout import find_folders, read_csv

SOURCE = "vidur"

_ATTENTION = ("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj")
_FFN = ("post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj")


def blocks(root: Path) -> Iterator[pd.DataFrame]:
    """The two blocks of every profile below ``root``."""
    for data in find_folders(root, "data/profiling"):
        for path in sorted(data.glob("compute/*/*/*/mlp.csv")):
            gpu, organisation, model = path.relative_to(data).parts[1:4]
            yield load(path, names.gpu(gpu), f"{organisation}/{model}")


def load(path: Path, gpu: str, model: str) -> pd.DataFrame:
    """Both blocks of one model on one GPU, from the means (ms)."""
    raw = read_csv(path)
    means = {
        layer: raw[f"time_stats.{layer}.mean"] * 1e-3
        for layer in (*_ATTENTION, *_FFN)
        if f"time_stats.{layer}.mean" in raw
    }
    times = pd.DataFrame(means, index=raw.index)
    common = pd.DataFrame(
        {
            "source": SOURCE,
            "gpu": gpu,
            "library": SOURCE,
            "version": "unknown",
            "model": model,
            "zoo": names.zoo(model),
            "dtype": "float16",
            "gemm_dtype": "float16",
            "tp": raw["num_tensor_parallel_workers"],
            "tokens": raw["num_tokens"],
            "file": str(path),
        }
    )
    attention = common.join(summed(times, _ATTENTION, "attention")).assign(block="attention")
    ffn = common.join(summed(times, _FFN)).assign(block="ffn")
    return framed(pd.concat([attention, ffn], ignore_index=True))
