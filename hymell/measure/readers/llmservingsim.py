"""casys-kaist/LLMServingSim, current profiler: layers under vLLM in eager mode, as CSV files.

Layout: ``profiler/perf/HARDWARE/MODEL/VARIANT/tpN/NAME.csv`` with ``meta.yaml`` beside the tpN.
Times are in microseconds. The library is vLLM, whose kernels these are; meta.yaml says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hymell.dtypes import ALIASES
from hymell.measure.readers.layout import MeasuredFile, Part, find_folders, gpu_name, read_csv
from hymell.measure.readers.models import ModelSizes, model_sizes

SOURCE = "llmservingsim"

_LIBRARY = "vllm"
_OPS = {
    "attention": frozenset({"attention_prefill", "attention_decode", "attention_mixed"}),
    "dense": frozenset({"gemm", "rms_norm", "layer_norm", "pointwise", "rope", "embedding"}),
    "per_sequence": frozenset({"gemm", "sampler"}),
    "moe": frozenset({"moe"}),
}
#: Layers that parallelism leaves alone; upstream measured them once and wrote them into every tpN.
_UNCUT = frozenset({"layernorm", "final_layernorm", "qk_norm", "sampler"})


def files(root: Path) -> Iterator[MeasuredFile]:
    """The profiles below ``root`` that have a meta.yaml."""
    for data in find_folders(root, "profiler/perf"):
        for meta in sorted(data.rglob("meta.yaml")):
            facts = _facts(meta)
            for path in sorted(meta.parent.glob("tp*/*.csv")):
                if path.stem in _OPS:
                    yield MeasuredFile(
                        path=path,
                        source=SOURCE,
                        gpu=gpu_name(facts.get("gpu", meta.relative_to(data).parts[0])),
                        library=_LIBRARY,
                        version=facts.get("vllm_version", "unknown"),
                        ops=_OPS[path.stem],
                        load=load,
                    )


def load(path: Path) -> Iterator[Part]:
    """The rows of one file, by op; all of them marked where the model's sizes are not known."""
    raw = read_csv(path)
    facts = _facts(path.parent.parent / "meta.yaml")
    tp = int(path.parent.name.removeprefix("tp"))
    known = model_sizes(facts.get("model", ""))
    sizes = known or ModelSizes(1, 1, 1, 1, 1, 1)
    variant = facts.get("variant", "bf16")
    common = pd.DataFrame(
        {
            "dtype": ALIASES.get(variant, variant),
            "time_s": raw["time_us"] * 1e-6,
            "kernel": raw.get("layer", path.stem),
            "drop": "" if known else "unknown_model",
        }
    )
    if "layer" in raw and tp > 1:
        common.loc[raw["layer"].isin(_UNCUT), "drop"] = "exact_copy"
    if path.stem == "attention":
        yield from _attention(raw, common, sizes, tp)
    elif path.stem == "moe":
        yield _moe(raw, common, sizes, tp)
    else:
        count = raw["tokens"] if "tokens" in raw else raw["sequences"]
        yield from layer_parts(common, count, sizes, tp)


def layer_parts(
    common: pd.DataFrame, count: pd.Series, sizes: ModelSizes, tp: int
) -> Iterator[Part]:
    """One part per layer of ``common["kernel"]``; ``count`` is its tokens, or sequences at the end.

    A layer with a name that is not known here is no primitive of ours and not yielded.
    """
    heads, kv_heads = sizes.heads // tp, max(sizes.kv_heads // tp, 1)
    query, key, width = heads * sizes.head_dim, kv_heads * sizes.head_dim, sizes.width // tp
    products = {
        "qkv_proj": (query + 2 * key, sizes.hidden),
        "q_proj": (query, sizes.hidden),
        "k_proj": (key, sizes.hidden),
        "v_proj": (key, sizes.hidden),
        "o_proj": (sizes.hidden, query),
        "gate_up_proj": (2 * width, sizes.hidden),
        "gate_proj": (width, sizes.hidden),
        "up_proj": (width, sizes.hidden),
        "down_proj": (sizes.hidden, width),
        "lm_head": (sizes.vocab // tp, sizes.hidden),
        "gate": (sizes.experts, sizes.hidden),
        "expert.w1": (sizes.expert_width, sizes.hidden),
        "expert.w3": (sizes.expert_width, sizes.hidden),
        "expert.w2": (sizes.hidden, sizes.expert_width),
    }
    norms = ("layernorm", "input_layernorm", "post_layernorm", "final_layernorm")
    for layer, rows in common.groupby("kernel", sort=False):
        n = count[rows.index]
        if layer in products:
            out, inner = products[str(layer)]
            yield Part("gemm", rows.assign(m=n, n=out, k=inner))
        elif layer in norms:
            yield Part(sizes.norm, rows.assign(rows=n, cols=sizes.hidden))
        elif layer == "qk_norm":
            per_head = n * (heads + kv_heads)
            yield Part("rms_norm", rows.assign(rows=per_head, cols=sizes.head_dim))
        elif layer == "act_fn":
            # Experts are not cut: one expert's width, whatever the parallelism.
            cols = sizes.expert_width if sizes.experts else width
            yield Part("pointwise", rows.assign(rows=n, cols=cols, reads=2, kind="silu_mul"))
        elif layer in ("rotary_emb", "rope"):
            shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": sizes.head_dim}
            yield Part("rope", rows.assign(tokens=n, **shape))
        elif layer == "embedding":
            vocab = sizes.vocab // tp
            yield Part("embedding", rows.assign(tokens=n, hidden=sizes.hidden, vocab=vocab))
        elif layer == "sampler":
            yield Part("sampler", rows.assign(tokens=n, vocab=sizes.vocab))


def _attention(
    raw: pd.DataFrame, common: pd.DataFrame, sizes: ModelSizes, tp: int
) -> Iterator[Part]:
    """A chunk of one sequence over its history, decoding sequences of one length, or both."""
    rows = common.assign(
        heads=sizes.heads // tp,
        kv_heads=max(sizes.kv_heads // tp, 1),
        head_dim=sizes.head_dim,
        window=0,
        kv_dtype=common["dtype"],
    )
    chunk, history = raw["prefill_chunk"], raw["kv_prefill"]
    batch, cached = raw["n_decode"], raw["kv_decode"]
    prefill = rows.assign(batch=1, q_len=chunk, kv_len=chunk + history)
    decode = rows.assign(batch=batch, q_len=1, kv_len=cached + 1)
    mixed = prefill.assign(decode_batch=batch, decode_kv_len=cached + 1)
    yield Part("attention_prefill", prefill[batch == 0])
    yield Part("attention_decode", decode[chunk == 0])
    yield Part("attention_mixed", mixed[(batch > 0) & (chunk > 0)])


def _moe(raw: pd.DataFrame, common: pd.DataFrame, sizes: ModelSizes, tp: int) -> Part:
    rows = common.assign(
        tokens=raw["tokens"],
        top_k=sizes.top_k,
        experts=sizes.experts,
        hidden=sizes.hidden,
        intermediate=sizes.expert_width,
        tp=tp,
        ep=1,
        gated=1,
        skew=np.nan,
        active_experts=raw["activated_experts"],
        distribution="active_experts",
    )
    return Part("moe", rows)


def _facts(meta: Path) -> dict[str, str]:
    """The top-level ``key: value`` lines of a meta.yaml, all that is needed of it."""
    text = meta.read_text(encoding="utf-8") if meta.is_file() else ""
    pairs = re.findall(r"(?m)^(\w+):[ \t]+(\S.*?)[ \t]*$", text)
    return {key: value.strip("'\"") for key, value in pairs}
