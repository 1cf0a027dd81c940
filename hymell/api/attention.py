"""`compare_attention`: a model with an attention of one's own beside its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hymell.api.setting import CalibrationChoice, setting_of
from hymell.api.tracing import Progress, config_source, silent, trace
from hymell.errors import HymellError
from hymell.op_registry.opaque import OPAQUE_MODULES
from hymell.workload import Workload

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from hymell.analysis.attention_variant import AttentionComparison


def compare_attention(
    attention: str | type[nn.Module],
    model: str | os.PathLike[str] | Mapping[str, Any] | PretrainedConfig,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
    batch: int = 1,
    contexts: Sequence[int] | None = None,
    layers: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    calibration: CalibrationChoice = "auto",
    check: bool = True,
    measure: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> AttentionComparison:
    """What a model costs with the attention of a class of yours, beside its own.

    ``attention`` is a class of ``torch.nn.Module`` or ``"FILE.py:Class"``, a file that is then run.
    It is made with the config and the layer's index, as far as its constructor takes them, and
    ``options`` by name; its forward is called as docs/attention_variants.md says. It stands in
    ``layers`` of the model (indices; None: all). Both are priced over ``contexts`` (default: powers
    of 2 from 128 to 1M tokens) as `predict` prices them. ``check`` runs it on a small model on the
    CPU; ``measure`` times one layer of both on the GPU or CPU at hand, as PyTorch runs it.

    Raises HymellError for a class, a model or lengths that do not fit, TraceError for a module that
    cannot be traced, each in one sentence.
    """
    from hymell.analysis.attention_variant import CONTEXTS, check_contexts, compare_graphs
    from hymell.analysis.measured_blocks import price_blocks

    say = progress or silent
    # All of it before the trace, which can take long.
    lengths = check_contexts(CONTEXTS if contexts is None else contexts)
    Workload(batch)
    setting = setting_of(
        gpu,
        engine,
        engine_version=engine_version,
        dtype=dtype,
        kv_dtype=kv_dtype,
        calibration=calibration,
    )
    chosen = None if layers is None else frozenset(layers)
    if chosen is not None and not chosen:
        raise HymellError("layers: name at least one layer, or none for all of them")
    known = None if isinstance(model, (str, os.PathLike, Mapping)) else model
    source = config_source(model, revision) if known is None else None
    say("importing torch and transformers")
    from hymell.tracer.variant.session import prepare

    ready = prepare(
        attention,
        source if source is not None else known,
        options=options or {},
        layers=chosen,
        trust_remote_code=trust_remote_code,
        opaque_modules=OPAQUE_MODULES,
        progress=say,
    )
    original = trace(
        model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    say("pricing both over the context lengths")
    setup = setting.setup(original)
    found = compare_graphs(
        original,
        ready.graph,
        name=ready.label,
        layers=ready.layers,
        gpu=setup["gpu"],
        engine=setup["engine"],
        batch=batch,
        contexts=lengths,
        precision=setup["precision"],
        estimator=setup["estimator"],
    )
    checks = ready.checks(say) if check else ()
    if not measure:
        return found.with_findings(checks, None)
    timed = ready.timings(setting.precision.activations, batch, lengths[-1], say)
    beside = price_blocks(
        timed.blocks,
        device=timed.device,
        on_gpu=timed.kind == "cuda",
        dtype=timed.dtype,
        batch=batch,
        remark=timed.remark,
        asked=setting.gpu,
    )
    return found.with_findings(checks, beside)
