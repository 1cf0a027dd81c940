"""The rules that serving engines share."""

from __future__ import annotations

from hymell.op_registry.fusion.absorb import absorb_latent
from hymell.op_registry.fusion.append import merge_gates, merge_rope_append, rope_then_append
from hymell.op_registry.fusion.experts import FUSED, launch_experts
from hymell.op_registry.fusion.fold import fold_constants
from hymell.op_registry.fusion.gemms import merge_siblings
from hymell.op_registry.fusion.layers import fuse_across_layers
from hymell.op_registry.fusion.layout import add_bias, read_as_it_lies, write_in_layout
from hymell.op_registry.fusion.quantise import quantise_activations
from hymell.op_registry.fusion.recognise import recognise_attention
from hymell.op_registry.fusion.sink import sink_into_reader
from hymell.op_registry.fusion.state import update_in_place
from hymell.op_registry.fusion.vertical import fuse_one_norm

BEFORE = (
    recognise_attention,
    fold_constants,
    absorb_latent,
    update_in_place,
    merge_siblings,
    add_bias,
    write_in_layout,
    read_as_it_lies,
    fuse_one_norm,
)

AFTER = (fuse_across_layers, quantise_activations, launch_experts(FUSED))

#: Rotary and append are two launches.
TWO_LAUNCHES = (*BEFORE, rope_then_append, merge_gates, sink_into_reader, *AFTER)

#: One kernel rotates, appends and normalises queries and keys.
ONE_LAUNCH = (*BEFORE, merge_rope_append, merge_gates, sink_into_reader, *AFTER)
