"""aiconfigurator's tables: from the columns of each to ops and tidy columns.

Each function takes one table as upstream wrote it and gives the sizes, labels, dtype and kernel of
its rows; times and power are the same in all tables and added by `aiconfigurator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pandas as pd

Ops = Iterator[tuple[str, pd.DataFrame]]

#: Upstream's dtypes that are one of hymell's formats; the rest (`int8_wo`, `w4a16_mxfp4`) name a
#: pair of weight and activation formats and stay as they are.
_DTYPES: Final[Mapping[str, str]] = {
    "half": "float16",
    "fp8": "float8_e4m3",
    "fp8_block": "float8_block128",
}

_BYTES: Final[Mapping[str, int]] = {"float16": 2, "bfloat16": 2, "int8": 1}

#: (intermediate, top_k, experts) of models whose experts have no gate (Nemotron 3, squared ReLU);
#: only TensorRT-LLM's kernel names say so, on these very shapes.
_NOT_GATED: Final = ((1856, 6, 128), (2688, 22, 512), (5120, 22, 512))


def dtype(column: pd.Series) -> pd.Series:
    """The column with hymell's names of the number formats."""
    return column.replace(dict(_DTYPES))


def gemm(raw: pd.DataFrame) -> Ops:
    yield "gemm", raw[["m", "n", "k"]].assign(dtype=dtype(raw["gemm_dtype"]))


def context_attention(raw: pd.DataFrame) -> Ops:
    """Prefill from an empty cache: ``step`` is the history and 0 in every row."""
    yield "attention_prefill", _attention(raw, raw["isl"], raw["isl"] + raw["step"])


def generation_attention(raw: pd.DataFrame) -> Ops:
    """One new token after ``step`` cached ones."""
    yield "attention_decode", _attention(raw, raw["isl"], raw["step"] + raw["isl"])


def encoder_attention(raw: pd.DataFrame) -> Ops:
    """Not causal, as many key heads as query heads, no cache."""
    whole = raw.assign(num_key_value_heads=raw["num_heads"], kv_cache_dtype=raw["attn_dtype"])
    yield "encoder_attention", _attention(whole, raw["isl"], raw["isl"])


def context_mla(raw: pd.DataFrame) -> Ops:
    yield "mla_prefill", _mla(raw, raw["isl"] + raw["step"])


def generation_mla(raw: pd.DataFrame) -> Ops:
    yield "mla_decode", _mla(raw, raw["isl"] + raw["step"])


def context_mla_module(raw: pd.DataFrame) -> Ops:
    yield "mla_prefill_module", _mla_module(raw)


def generation_mla_module(raw: pd.DataFrame) -> Ops:
    yield "mla_decode_module", _mla_module(raw)


def moe(raw: pd.DataFrame) -> Ops:
    """``distribution`` is `balanced` or `power_law_` and its exponent."""
    exponent = raw["distribution"].str.extract(r"power_law_([\d.]+)", expand=False)
    shape = zip(raw["inter_size"], raw["topk"], raw["num_experts"], strict=True)
    plain = np.fromiter((s in _NOT_GATED for s in shape), dtype=bool, count=len(raw))
    rows = pd.DataFrame(
        {
            "tokens": raw["num_tokens"],
            "top_k": raw["topk"],
            "experts": raw["num_experts"],
            "hidden": raw["hidden_size"],
            "intermediate": raw["inter_size"],
            "tp": raw["moe_tp_size"],
            "ep": raw["moe_ep_size"],
            "gated": (~(plain | raw["kernel_source"].str.contains("nongated"))).astype(float),
            "skew": exponent.astype(float).fillna(0.0),
            "active_experts": np.nan,
            "distribution": raw["distribution"],
            "dtype": dtype(raw["moe_dtype"]),
        }
    )
    yield "moe", rows


def gated_delta(op: str) -> Callable[[pd.DataFrame], Ops]:
    """Reader of the GDN and KDA tables; the chunk length of their kernels is not stated (0)."""

    def read(raw: pd.DataFrame) -> Ops:
        yield from _scan(
            op,
            raw.assign(
                heads=raw["num_v_heads"],
                groups=raw["num_k_heads"],
                key_dim=raw["head_k_dim"],
                value_dim=raw["head_v_dim"],
                chunk=0,
            ),
        )

    return read


def mamba2(raw: pd.DataFrame) -> Ops:
    yield from _scan(
        "mamba2",
        raw.assign(
            heads=raw["nheads"],
            groups=raw["n_groups"],
            key_dim=raw["d_state"],
            value_dim=raw["head_dim"],
            chunk=raw["chunk_size"],
        ),
    )


def nccl(raw: pd.DataFrame) -> Ops:
    """``message_size`` is in elements, of what nccl-tests calls the size of the operation."""
    rows = _collective(raw, raw["nccl_dtype"])
    for name, mine in rows.groupby(raw["op_name"]):
        yield ("all_to_all" if name == "alltoall" else str(name)), mine


def custom_all_reduce(raw: pd.DataFrame) -> Ops:
    yield "custom_all_reduce", _collective(raw, raw["allreduce_dtype"])


def _attention(raw: pd.DataFrame, q_len: pd.Series, kv_len: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "batch": raw["batch_size"],
            "q_len": q_len,
            "kv_len": kv_len,
            "heads": raw["num_heads"],
            "kv_heads": raw["num_key_value_heads"],
            "head_dim": raw["head_dim"],
            "window": raw.get("window_size", 0),
            "kv_dtype": dtype(raw["kv_cache_dtype"]),
            "dtype": dtype(raw["attn_dtype"]),
        }
    )


def _mla(raw: pd.DataFrame, kv_len: pd.Series) -> pd.DataFrame:
    """``num_heads`` is what one rank has; ``tp_size`` only says of which cut, so it is left out."""
    return pd.DataFrame(
        {
            "batch": raw["batch_size"],
            "q_len": raw["isl"],
            "kv_len": kv_len,
            "heads": raw["num_heads"],
            "kv_dtype": dtype(raw["kv_cache_dtype"]),
            "dtype": dtype(raw["mla_dtype"]),
        }
    )


def _mla_module(raw: pd.DataFrame) -> pd.DataFrame:
    rows = _mla(raw, raw["isl"] + raw["step"])
    return rows.assign(gemm_dtype=dtype(raw["gemm_type"]), model=raw["model"])


def _scan(op: str, raw: pd.DataFrame) -> Ops:
    """The short convolution before the scan is an op of its own; ``d_model`` shapes neither."""
    convolution = raw["kernel_source"].str.startswith("causal_conv1d")
    common = pd.DataFrame(
        {
            "batch": raw["batch_size"],
            "q_len": raw["seq_len"],
            "phase": raw["phase"],
            "dtype": "bfloat16",
        }
    )
    sizes = ["heads", "groups", "key_dim", "value_dim", "chunk"]
    yield op, common.join(raw[sizes])[~convolution]
    channels = 2 * raw["groups"] * raw["key_dim"] + raw["heads"] * raw["value_dim"]
    filtered = common.assign(channels=channels, width=raw["d_conv"], family=op)
    yield "conv1d", filtered[convolution]


def _collective(raw: pd.DataFrame, formats: pd.Series) -> pd.DataFrame:
    names = dtype(formats)
    return pd.DataFrame(
        {
            "message_bytes": raw["message_size"] * names.map(_BYTES),
            "n_gpus": raw["num_gpus"],
            "fabric": "",
            "dtype": names,
        }
    )


_COLLECTIVES: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})

#: By file name: the ops that a table may hold, and its reader.
TABLES: Final[Mapping[str, tuple[frozenset[str], Callable[[pd.DataFrame], Ops]]]] = {
    "gemm_perf": (frozenset({"gemm"}), gemm),
    "context_attention_perf": (frozenset({"attention_prefill"}), context_attention),
    "generation_attention_perf": (frozenset({"attention_decode"}), generation_attention),
    "encoder_attention_perf": (frozenset({"encoder_attention"}), encoder_attention),
    "context_mla_perf": (frozenset({"mla_prefill"}), context_mla),
    "generation_mla_perf": (frozenset({"mla_decode"}), generation_mla),
    "mla_context_module_perf": (frozenset({"mla_prefill_module"}), context_mla_module),
    "mla_generation_module_perf": (frozenset({"mla_decode_module"}), generation_mla_module),
    "moe_perf": (frozenset({"moe"}), moe),
    "gdn_perf": (frozenset({"gdn", "conv1d"}), gated_delta("gdn")),
    "kda_perf": (frozenset({"kda", "conv1d"}), gated_delta("kda")),
    "mamba2_perf": (frozenset({"mamba2", "conv1d"}), mamba2),
    "nccl_perf": (_COLLECTIVES, nccl),
    "custom_allreduce_perf": (frozenset({"custom_all_reduce"}), custom_all_reduce),
}
