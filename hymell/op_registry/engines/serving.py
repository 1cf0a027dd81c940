"""The rules that serving engines share."""

from __future__ import annotations

from hymell.op_registry.fusion.absorb import absorb_latent
from hymell.op_registry.fusion.append import merge_rope_append, rope_then_append
from hymell.op_registry.fusion.fold import fold_constants
from hymell.op_registry.fusion.gemms import merge_siblings
from hymell.op_registry.fusion.layers import fuse_across_layers
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
    fuse_one_norm,
)

#: Rotary and append are two launches.
TWO_LAUNCHES = (*BEFORE, rope_then_append, sink_into_reader, fuse_across_layers)

#: One kernel rotates, appends and normalises queries and keys.
ONE_LAUNCH = (*BEFORE, merge_rope_append, sink_into_reader, fuse_across_layers)
