"""casys-kaist/LLMServingSim: the layers of one decoder block, of both of its profilers.

The current one (``perf``, us) measures attention over its own grid; its blocks are the rows whose
new tokens are on the grid of the other layers, prefill or decode, not mixed. The first one (v0, ns)
has norms and rotations of several eager kernels; its experts were timed one by one, so it has no
FFN block of a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.dtypes import ALIASES
from hymell.measure.blocks.table import framed, summed
from hymell.measure.e2e import names
from hymell.measure.readers import llmservingsim, llmservingsim_v0
from hymell.measure.readers.layout import MeasuredFile, read_csv

_ATTENTION = ("layernorm", "qkv_proj", "qk_norm", "rotary_emb", "attention", "o_proj")
_FFN = ("layernorm", "gate_up_proj", "act_fn", "down_proj")
_EXPERTS = ("layernorm", "experts")
_ATTENTION_V0 = ("input_layernorm", "q_proj", "k_proj", "v_proj", "rope", "attn", "o_proj")
_FFN_V0 = ("post_layernorm", "gate_proj", "up_proj", "act_fn", "down_proj")


def blocks(root: Path) -> Iterator[pd.DataFrame]:
    """The blocks of every profile below ``root``."""
    for file in llmservingsim.files(root):
        if file.path.stem == "dense":
            yield load(file)
    for file in llmservingsim_v0.files(root):
        if file.path.stem == "layers":
            yield load_v0(file)


def load(file: MeasuredFile) -> pd.DataFrame:
    """The blocks of one model and tpN folder of the current profiler."""
    raw = read_csv(file.path)
    dense = raw.pivot_table(index="tokens", columns="layer", values="time_us") * 1e-6
    variant = file.path.parents[1].name
    model = "/".join(file.path.parts[-5:-3])
    common = _common(file, model, ALIASES.get(variant, variant))
    parts = []
    if (attention := file.path.with_name("attention.csv")).is_file():
        parts.append(_attention(read_csv(attention), dense))
    if (experts := file.path.with_name("moe.csv")).is_file():
        parts.append(_experts(read_csv(experts), dense))
    if "gate_up_proj" in dense:
        ffn = summed(dense, _FFN).reset_index()
        parts.append(ffn.assign(block="ffn"))
    return framed(pd.concat(parts, ignore_index=True).assign(**common))


def load_v0(file: MeasuredFile) -> pd.DataFrame:
    """The blocks of one model and tpN folder of the first profiler."""
    raw = read_csv(file.path)
    times = raw.pivot_table(index="input", columns="layer_name", values="latency(ns)") * 1e-9
    times.index.name = "tokens"
    common = _common(file, "/".join(file.path.parts[-4:-2]), "bfloat16")
    parts = []
    if (attention := file.path.with_name("attention.csv")).is_file():
        parts.append(_attention_v0(read_csv(attention), times))
    if "attn" in times or not parts:
        parts.append(_prompts_v0(times))
    if "gate_proj" in times:
        parts.append(summed(times, _FFN_V0).reset_index().assign(block="ffn"))
    return framed(pd.concat(parts, ignore_index=True).assign(**common))


def _prompts_v0(times: pd.DataFrame) -> pd.DataFrame:
    """One prompt from an empty cache, or where attention was not timed what stands around it."""
    rows = summed(times, _ATTENTION_V0, "" if "attn" in times else "attention").reset_index()
    tokens = rows["tokens"]
    return rows.assign(block="attention", phase="prefill", batch=1, q_len=tokens, kv_len=tokens)


def _attention_v0(raw: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """FlashAttention over its own grid: a chunk with its history, or decoding sequences.

    The cache of a decode is that of the whole batch; that of a prefill holds the chunk.
    """
    prefill = raw["is_prefill"].astype(bool)
    time = raw["time_stats.attn_prefill.mean"].where(prefill, raw["time_stats.attn_decode.mean"])
    shape = pd.DataFrame(
        {
            "tokens": raw["prefill_chunk_size"].where(prefill, raw["batch_size"]),
            "batch": raw["batch_size"],
            "q_len": raw["prefill_chunk_size"].where(prefill, 1),
            "kv_len": raw["kv_cache_size"] / raw["batch_size"],
            "phase": prefill.map({True: "prefill", False: "decode"}),
            "block": "attention",
            "kernel": raw["attention_backend"],
        }
    )
    shape = shape[shape["kv_len"] >= 1]
    layers = times.drop(columns="attn", errors="ignore")
    whole = shape.join(layers, on="tokens", how="inner").assign(attn=time * 1e-3)
    return whole[list(shape)].join(summed(whole, _ATTENTION_V0))


def _common(file: MeasuredFile, model: str, dtype: str) -> dict[str, str | int]:
    return {
        "source": file.source,
        "gpu": file.gpu,
        "library": file.library,
        "version": file.version,
        "model": model,
        "zoo": names.zoo(model),
        "dtype": dtype,
        "gemm_dtype": dtype,
        "kv_dtype": dtype,
        "tp": int(file.path.parent.name.removeprefix("tp")),
        "file": str(file.path),
    }


def _attention(raw: pd.DataFrame, dense: pd.DataFrame) -> pd.DataFrame:
    """A chunk of one sequence, or decoding sequences of one length."""
    chunk, batch = raw["prefill_chunk"], raw["n_decode"]
    rows = raw[(chunk == 0) | (batch == 0)]
    prefill = rows["n_decode"] == 0
    shape = pd.DataFrame(
        {
            "tokens": rows["prefill_chunk"] + rows["n_decode"],
            "batch": rows["n_decode"].where(~prefill, 1),
            "q_len": rows["prefill_chunk"].where(prefill, 1),
            "kv_len": rows["prefill_chunk"].where(prefill, 1)
            + rows["kv_prefill"].where(prefill, rows["kv_decode"]),
            "phase": prefill.map({True: "prefill", False: "decode"}),
            "block": "attention",
            "attention": rows["time_us"] * 1e-6,
        }
    )
    whole = shape.join(dense, on="tokens", how="inner")
    return whole[[*shape.columns.drop("attention")]].join(summed(whole, _ATTENTION))


def _experts(raw: pd.DataFrame, dense: pd.DataFrame) -> pd.DataFrame:
    shape = pd.DataFrame(
        {
            "tokens": raw["tokens"],
            "active_experts": raw["activated_experts"],
            "experts": raw["time_us"] * 1e-6,
            "block": "ffn",
        }
    )
    whole = shape.join(dense, on="tokens", how="inner")
    return whole[[*shape.columns.drop("experts")]].join(summed(whole, _EXPERTS))
