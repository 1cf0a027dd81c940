"""What is held out of the tables of scans and of their convolution, and which tables there are.

Head counts (channel counts of a convolution) are held out with every batch and length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1.form import Form
from hymell.estimators.level1.scan import CONV1D, DEFAULT_CHUNK, scan_form
from hymell.measure.splits.attention import SEEDS, Split
from hymell.measure.table import Table

#: Longest sequence fitted on when the longest are held out.
_TRAINED_LENGTH: Final = 4096
_HELD_SHARE: Final = 0.2
_HELD: Final[Mapping[str, str]] = {
    "gdn": "heads",
    "kda": "heads",
    "mamba2": "heads",
    "conv1d": "channels",
}
_ELEMENT_BYTES: Final = 2.0


class ScanTarget(NamedTuple):
    """One table to fit: a kernel in one phase; ``family`` is the scan that a convolution serves."""

    op: str
    gpu: str
    library: str
    version: str
    phase: str
    kernel: str
    family: str = ""

    @property
    def form(self) -> Form:
        """The level-1 form of the table."""
        return CONV1D if self.op == "conv1d" else scan_form(self.op, self.phase)


#: Tables of 40 rows or more; all are bfloat16.
TARGETS: Final = (
    ScanTarget(
        "gdn", "a100-sxm-80gb", "sglang", "0.5.10", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "b200-sxm", "sglang", "0.5.14", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn",
        "b200-sxm",
        "sglang",
        "0.5.14",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "b200-sxm", "trtllm", "1.3.0rc15", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn", "b200-sxm", "trtllm", "1.3.0rc15", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "b200-sxm", "trtllm", "1.3.0rc20", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn", "b200-sxm", "trtllm", "1.3.0rc20", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "b200-sxm", "vllm", "0.22.0", "context", "chunk_gated_delta_rule"),
    ScanTarget("gdn", "b200-sxm", "vllm", "0.24.0", "context", "chunk_gated_delta_rule_flashinfer"),
    ScanTarget(
        "gdn",
        "b200-sxm",
        "vllm",
        "0.24.0",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "h100-sxm", "sglang", "0.5.14", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn",
        "h100-sxm",
        "sglang",
        "0.5.14",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "h100-sxm", "trtllm", "1.3.0rc20", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn", "h100-sxm", "trtllm", "1.3.0rc20", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "h100-sxm", "vllm", "0.24.0", "context", "chunk_gated_delta_rule_flashinfer"),
    ScanTarget(
        "gdn",
        "h100-sxm",
        "vllm",
        "0.24.0",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "h200-sxm", "sglang", "0.5.14", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn",
        "h200-sxm",
        "sglang",
        "0.5.14",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "h200-sxm", "trtllm", "1.3.0rc20", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn", "h200-sxm", "trtllm", "1.3.0rc20", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "h200-sxm", "vllm", "0.22.0", "context", "chunk_gated_delta_rule"),
    ScanTarget("gdn", "h200-sxm", "vllm", "0.24.0", "context", "chunk_gated_delta_rule_flashinfer"),
    ScanTarget(
        "gdn",
        "h200-sxm",
        "vllm",
        "0.24.0",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "l40s", "sglang", "0.5.14", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn",
        "l40s",
        "sglang",
        "0.5.14",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("gdn", "l40s", "trtllm", "1.3.0rc20", "context", "chunk_gated_delta_rule"),
    ScanTarget(
        "gdn", "l40s", "trtllm", "1.3.0rc20", "generation", "fused_recurrent_gated_delta_rule"
    ),
    ScanTarget("gdn", "l40s", "vllm", "0.24.0", "context", "chunk_gated_delta_rule_triton"),
    ScanTarget(
        "gdn",
        "l40s",
        "vllm",
        "0.24.0",
        "generation",
        "fused_recurrent_gated_delta_rule_packed_decode",
    ),
    ScanTarget("kda", "b200-sxm", "sglang", "0.5.16", "context", "chunk_kda"),
    ScanTarget("kda", "b200-sxm", "sglang", "0.5.16", "verify", "fused_kda_decode_mtp_dspark"),
    ScanTarget("kda", "b200-sxm", "vllm", "0.1.dev19262", "context", "flashkda_fwd"),
    ScanTarget("kda", "b200-sxm", "vllm", "0.1.dev19262", "generation", "fused_kda_decode"),
    ScanTarget(
        "kda", "b200-sxm", "vllm", "0.1.dev19262", "generation", "fused_recurrent_kda_packed_decode"
    ),
    ScanTarget("kda", "b200-sxm", "vllm", "0.1.dev19262", "verify", "fused_recurrent_kda"),
    ScanTarget("kda", "h100-sxm", "sglang", "0.5.16", "context", "chunk_kda"),
    ScanTarget(
        "kda", "h100-sxm", "sglang", "0.5.16", "verify", "fused_sigmoid_gating_delta_rule_update"
    ),
    ScanTarget("kda", "h100-sxm", "vllm", "0.1.dev19262", "context", "flashkda_fwd"),
    ScanTarget("kda", "h100-sxm", "vllm", "0.1.dev19262", "generation", "fused_kda_decode"),
    ScanTarget(
        "kda", "h100-sxm", "vllm", "0.1.dev19262", "generation", "fused_recurrent_kda_packed_decode"
    ),
    ScanTarget("kda", "h100-sxm", "vllm", "0.1.dev19262", "verify", "fused_recurrent_kda"),
    ScanTarget("kda", "h200-sxm", "sglang", "0.5.16", "context", "chunk_kda"),
    ScanTarget(
        "kda", "h200-sxm", "sglang", "0.5.16", "verify", "fused_sigmoid_gating_delta_rule_update"
    ),
    ScanTarget("kda", "h200-sxm", "vllm", "0.1.dev19262", "context", "flashkda_fwd"),
    ScanTarget("kda", "h200-sxm", "vllm", "0.1.dev19262", "generation", "fused_kda_decode"),
    ScanTarget(
        "kda", "h200-sxm", "vllm", "0.1.dev19262", "generation", "fused_recurrent_kda_packed_decode"
    ),
    ScanTarget("kda", "h200-sxm", "vllm", "0.1.dev19262", "verify", "fused_recurrent_kda"),
    ScanTarget("kda", "l40s", "sglang", "0.5.16", "context", "chunk_kda"),
    ScanTarget(
        "kda", "l40s", "sglang", "0.5.16", "verify", "fused_sigmoid_gating_delta_rule_update"
    ),
    ScanTarget("kda", "l40s", "vllm", "0.1.dev19262", "context", "chunk_kda_with_fused_gate"),
    ScanTarget(
        "kda", "l40s", "vllm", "0.1.dev19262", "generation", "fused_recurrent_kda_packed_decode"
    ),
    ScanTarget("kda", "l40s", "vllm", "0.1.dev19262", "verify", "fused_recurrent_kda"),
    ScanTarget("mamba2", "b200-sxm", "trtllm", "1.3.0rc15", "context", "mamba_chunk_scan_combined"),
    ScanTarget("conv1d", "a100-sxm-80gb", "sglang", "0.5.10", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "a100-sxm-80gb", "sglang", "0.5.10", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget("conv1d", "b200-sxm", "sglang", "0.5.14", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "b200-sxm", "sglang", "0.5.14", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget("conv1d", "b200-sxm", "sglang", "0.5.16", "context", "causal_conv1d_fn_qkv3", "kda"),
    ScanTarget("conv1d", "b200-sxm", "trtllm", "1.3.0rc15", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc15", "context", "causal_conv1d_fn", "mamba2"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc15", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc15", "generation", "causal_conv1d_update", "mamba2"
    ),
    ScanTarget("conv1d", "b200-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "mamba2"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "mamba2"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "vllm", "0.1.dev19262", "context", "causal_conv1d_fn_qkv3", "kda"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "vllm", "0.1.dev19262", "generation", "causal_conv1d_update", "kda"
    ),
    ScanTarget(
        "conv1d", "b200-sxm", "vllm", "0.1.dev19262", "verify", "causal_conv1d_update", "kda"
    ),
    ScanTarget("conv1d", "b200-sxm", "vllm", "0.22.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "b200-sxm", "vllm", "0.22.0", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "b200-sxm", "vllm", "0.24.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "b200-sxm", "vllm", "0.24.0", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "h100-sxm", "sglang", "0.5.14", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "h100-sxm", "sglang", "0.5.14", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget("conv1d", "h100-sxm", "sglang", "0.5.16", "context", "causal_conv1d_fn_qkv3", "kda"),
    ScanTarget("conv1d", "h100-sxm", "sglang", "0.5.16", "verify", "causal_conv1d_update", "kda"),
    ScanTarget("conv1d", "h100-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "h100-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "mamba2"
    ),
    ScanTarget(
        "conv1d", "h100-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget(
        "conv1d", "h100-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "mamba2"
    ),
    ScanTarget(
        "conv1d", "h100-sxm", "vllm", "0.1.dev19262", "context", "causal_conv1d_fn_qkv3", "kda"
    ),
    ScanTarget(
        "conv1d", "h100-sxm", "vllm", "0.1.dev19262", "generation", "causal_conv1d_update", "kda"
    ),
    ScanTarget(
        "conv1d", "h100-sxm", "vllm", "0.1.dev19262", "verify", "causal_conv1d_update", "kda"
    ),
    ScanTarget("conv1d", "h100-sxm", "vllm", "0.24.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "h100-sxm", "vllm", "0.24.0", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "h200-sxm", "sglang", "0.5.14", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "h200-sxm", "sglang", "0.5.14", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget("conv1d", "h200-sxm", "sglang", "0.5.16", "context", "causal_conv1d_fn_qkv3", "kda"),
    ScanTarget("conv1d", "h200-sxm", "sglang", "0.5.16", "verify", "causal_conv1d_update", "kda"),
    ScanTarget("conv1d", "h200-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget(
        "conv1d", "h200-sxm", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "mamba2"
    ),
    ScanTarget(
        "conv1d", "h200-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget(
        "conv1d", "h200-sxm", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "mamba2"
    ),
    ScanTarget(
        "conv1d", "h200-sxm", "vllm", "0.1.dev19262", "context", "causal_conv1d_fn_qkv3", "kda"
    ),
    ScanTarget(
        "conv1d", "h200-sxm", "vllm", "0.1.dev19262", "generation", "causal_conv1d_update", "kda"
    ),
    ScanTarget(
        "conv1d", "h200-sxm", "vllm", "0.1.dev19262", "verify", "causal_conv1d_update", "kda"
    ),
    ScanTarget("conv1d", "h200-sxm", "vllm", "0.22.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "h200-sxm", "vllm", "0.22.0", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "h200-sxm", "vllm", "0.24.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "h200-sxm", "vllm", "0.24.0", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "l40s", "sglang", "0.5.14", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "l40s", "sglang", "0.5.14", "generation", "causal_conv1d_update", "gdn"),
    ScanTarget("conv1d", "l40s", "sglang", "0.5.16", "context", "causal_conv1d_fn_qkv3", "kda"),
    ScanTarget("conv1d", "l40s", "sglang", "0.5.16", "verify", "causal_conv1d_update", "kda"),
    ScanTarget("conv1d", "l40s", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "l40s", "trtllm", "1.3.0rc20", "context", "causal_conv1d_fn", "mamba2"),
    ScanTarget(
        "conv1d", "l40s", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "gdn"
    ),
    ScanTarget(
        "conv1d", "l40s", "trtllm", "1.3.0rc20", "generation", "causal_conv1d_update", "mamba2"
    ),
    ScanTarget("conv1d", "l40s", "vllm", "0.1.dev19262", "context", "causal_conv1d_fn_qkv3", "kda"),
    ScanTarget(
        "conv1d", "l40s", "vllm", "0.1.dev19262", "generation", "causal_conv1d_update", "kda"
    ),
    ScanTarget("conv1d", "l40s", "vllm", "0.1.dev19262", "verify", "causal_conv1d_update", "kda"),
    ScanTarget("conv1d", "l40s", "vllm", "0.24.0", "context", "causal_conv1d_fn", "gdn"),
    ScanTarget("conv1d", "l40s", "vllm", "0.24.0", "generation", "causal_conv1d_update", "gdn"),
)


def select(table: Table, target: ScanTarget) -> Table:
    """The rows of a target in a table of its op, GPU, library and version."""
    mine = table.where(phase=target.phase, kernel=target.kernel)
    return mine.where(family=target.family) if target.family else mine


def splits(table: Table) -> list[Split]:
    """A fifth of the head (or channel) counts held out, one split per seed, then the longest.

    With fewer than three counts there is nothing to hold out. Raises HymellError for a table of
    another op.
    """
    if table.op not in _HELD:
        raise HymellError(f"scan splits do not cut a table of {table.op}; use its own module")
    found: list[Split] = []
    counts = np.unique(table[_HELD[table.op]])
    if len(counts) >= 3:
        for seed in SEEDS:
            size = max(1, round(_HELD_SHARE * len(counts)))
            chosen = np.random.default_rng(seed).choice(counts, size, replace=False)
            held = np.isin(table[_HELD[table.op]], chosen)
            found.append((f"{_HELD[table.op]}-{seed}", ~held, held))
    long = table["q_len"] > _TRAINED_LENGTH
    if long.any() and not long.all():
        found.append(("length", ~long, long))
    return found


def dims(table: Table) -> Mapping[str, NDArray[Any]]:
    """The sizes that the level-1 form of the table takes.

    A scan reads queries and keys of ``groups`` heads and values, and writes outputs, of ``heads``
    heads; where a table does not state the chunk of its kernel it is 64.
    """
    sizes = {"batch": table["batch"], "length": table["q_len"]}
    if table.op == "conv1d":
        return sizes | {"channels": table["channels"], "width": table["width"]}
    tokens, heads = table["batch"] * table["q_len"], table["heads"]
    row = 2.0 * table["groups"] * table["key_dim"] + 2.0 * heads * table["value_dim"]
    return sizes | {
        "heads": heads,
        "key_dim": table["key_dim"],
        "value_dim": table["value_dim"],
        "chunk": np.where(table["chunk"] > 0, table["chunk"], DEFAULT_CHUNK),
        "token_bytes": _ELEMENT_BYTES * tokens * row,
    }
