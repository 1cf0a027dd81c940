"""`trace`: the op graph of a model, whatever the model is given as."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hymell import sources, store
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.op_registry.opaque import OPAQUE_MODULES

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

Progress: TypeAlias = Callable[[str], None]
Model: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | PretrainedConfig | nn.Module"


def silent(_: str) -> None:
    """Progress that nobody asked to hear of."""


def trace(
    model: Model,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    logits_to_keep: int = 1,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> OpGraph:
    """The op graph of a model, every size a formula in B, S and L. No weights are loaded.

    ``model``: a Hugging Face id (``name@revision`` works), a local folder or config.json, a zoo
    name, the content of a config, a ``PretrainedConfig``, a Hugging Face model on any device, or
    any ``nn.Module`` with example inputs in ``args`` and ``kwargs``. ``logits_to_keep`` 0 computes
    logits for every prompt token instead of the last. Graphs of configs are kept in the cache
    directory (`hymell.store`). Code of a model repository runs only with ``trust_remote_code``.

    Raises HymellError for input that makes no sense and TraceError for a model that cannot be
    traced, each with one sentence.
    """
    say = progress or silent
    if isinstance(model, (str, os.PathLike, Mapping)):
        if not isinstance(model, Mapping):
            say(f"reading the config of {os.fspath(model)}")
        source = config_source(model, revision)
    else:
        return _trace_object(model, args, kwargs or {}, logits_to_keep, say)
    key = store.key_of(
        source.config,
        hf_quant=source.hf_quant,
        trust_remote_code=trust_remote_code and source.auto_map,
        logits_to_keep=logits_to_keep,
        opaque=sorted(f"{c.__module__}.{c.__qualname__}={n}" for c, n in OPAQUE_MODULES.items()),
    )
    if use_cache and (kept := store.get(key)) is not None:
        notes = tuple(dict.fromkeys((*source.notes, *kept.facts.notes)))
        return kept.with_facts(name=source.name, notes=notes)
    say("importing torch and transformers")
    from hymell.tracer.assemble import scheme_of, trace_config
    from hymell.tracer.configs import to_config

    scheme = scheme_of(source.config, source.hf_quant)
    config = to_config(source, trust_remote_code=trust_remote_code)
    notes = source.notes
    if config.model_type != source.config["model_type"]:
        notes += (f"the config describes the language model alone ({config.model_type})",)
    graph = trace_config(
        config,
        source.name,
        scheme=scheme,
        notes=notes,
        trust_remote_code=trust_remote_code,
        logits_to_keep=logits_to_keep,
        opaque_modules=OPAQUE_MODULES,
        progress=say,
    )
    if use_cache:
        store.put(key, graph)
    return graph


def graph_of(model: Model | OpGraph, **how: Any) -> OpGraph:
    """The graph itself, or a trace of anything else; ``how`` as `trace` takes it."""
    return model if isinstance(model, OpGraph) else trace(model, **how)


def config_source(
    model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None
) -> sources.ConfigSource:
    """The config that a name, a path or a mapping stands for."""
    if isinstance(model, (str, os.PathLike)):
        return sources.resolve(model, revision=revision)
    if not isinstance(model, Mapping):
        raise HymellError(
            f"cannot read a config from a {type(model).__name__}; pass a Hugging Face id, a folder "
            "or a config"
        )
    if "model_type" not in model:
        raise HymellError("the config has no model_type; add the field, e.g. 'llama'")
    return sources.ConfigSource(
        name=str(model.get("_name_or_path") or model.get("model_type") or "config"),
        config=dict(model),
        origin="file",
        location="a config passed as a mapping",
    )


def _trace_object(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    logits_to_keep: int,
    say: Progress,
) -> OpGraph:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    from hymell.tracer.assemble import scheme_of, trace_config, trace_model

    if isinstance(model, PretrainedConfig):
        return trace_config(
            model,
            model.name_or_path or model.model_type,
            scheme=scheme_of(model.to_dict(), None),
            logits_to_keep=logits_to_keep,
            opaque_modules=OPAQUE_MODULES,
            progress=say,
        )
    if not isinstance(model, nn.Module):
        raise HymellError(
            f"cannot trace a {type(model).__name__}; pass a Hugging Face id, a config, a folder "
            "or an nn.Module"
        )
    if isinstance(model, PreTrainedModel) and not args and not kwargs:
        from hymell.tracer.concrete import meta_copy

        return trace_model(
            meta_copy(model),
            model.name_or_path or model.config.model_type,
            scheme=scheme_of(model.config.to_dict(), None),
            logits_to_keep=logits_to_keep,
            opaque_modules=OPAQUE_MODULES,
            progress=say,
        )
    from hymell.tracer.modules import trace_plain_module

    return trace_plain_module(
        model, tuple(args), kwargs, opaque_modules=OPAQUE_MODULES, progress=say
    )
