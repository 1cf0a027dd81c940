"""Which level-1 forms there are, by op and name: what a calibration file refers to.

To add a form, put a `Form` into a module of this package and name the module under its op; an op
with one form per format has its maker in `_make`. Modules are imported when a form of theirs is
first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Final

from hymell.errors import HymellError
from hymell.estimators.level1.form import Form

_ENERGY: Final = ("kernel_energy",)

#: Modules of this package with the forms of each op; the forms of ``..._energy`` give J.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("gemm_tile", "gemm_five_regime", "gemm_formats"),
    "attention_prefill": ("attention_prefill", "attention_tiles"),
    "encoder_attention": ("attention_prefill", "attention_tiles"),
    "attention_decode": ("attention_decode", "attention_tiles"),
    "mla_prefill": ("mla", "attention_tiles"),
    "mla_decode": ("mla", "attention_tiles"),
    "moe": ("moe", "routing"),
    "gdn": ("scan",),
    "kda": ("scan",),
    "mamba2": ("scan",),
    "conv1d": ("scan",),
    "rms_norm": ("row_ops",),
    "layer_norm": ("row_ops",),
    "softmax": ("row_ops",),
    "pointwise": ("pointwise", "row_ops"),
    "embedding": ("pointwise", "row_ops"),
    "rope": ("pointwise", "row_ops"),
    "all_reduce": ("collective",),
    "all_gather": ("collective",),
    "reduce_scatter": ("collective",),
    "all_to_all": ("collective",),
    "custom_all_reduce": ("collective",),
    "gemm_energy": _ENERGY,
    "attention_prefill_energy": _ENERGY,
    "attention_decode_energy": _ENERGY,
    "moe_energy": _ENERGY,
}


@cache
def find(op: str, name: str) -> Form | None:
    """The form of an op by name, None where there is none."""
    for module in MODULES.get(op, ()):
        for value in vars(import_module(f"{__package__}.{module}")).values():
            if isinstance(value, Form) and (value.op, value.name) == (op, name):
                return value
    return _make(op, name)


def _make(op: str, name: str) -> Form | None:
    """Forms of which there is one per format or kind."""
    try:
        if op == "gemm":
            from hymell.estimators.level1.gemm_tile import tile_form

            return tile_form(name.removeprefix("tile-"))
        if op == "moe":
            from hymell.estimators.level1.moe import moe_form

            return moe_form(name.removeprefix("moe-tile-"))
    except HymellError:
        return None
    if MODULES.get(op) == ("collective",) and name == "three-lines":
        from hymell.estimators.level1.collective import collective

        return collective(op)
    if MODULES.get(op) == _ENERGY and name == "power":
        from hymell.estimators.level1.kernel_energy import kernel_energy

        return kernel_energy(op.removesuffix("_energy"))
    if op in ("gdn", "kda", "mamba2"):
        from hymell.estimators.level1.scan import chunked_form, recurrent_form

        made = {form.name: form for form in (chunked_form(op), recurrent_form(op))}
        return made.get(name)
    return None
