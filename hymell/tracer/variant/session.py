"""One class in one model: traced at once, checked and timed when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PretrainedConfig

from hymell.attention_findings import Check
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.sources import ConfigSource
from hymell.tracer.assemble import scheme_of
from hymell.tracer.configs import to_config
from hymell.tracer.variant.substitute import Variant, trace_variant, variant_of
from hymell.tracer.variant.user_class import load_class

if TYPE_CHECKING:
    from hymell.tracer.variant.stopwatch import Timings

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The variant's graph, the layers that it took over, and what runs it."""

    variant: Variant
    config: PretrainedConfig
    graph: OpGraph
    layers: tuple[int, ...]
    trust_remote_code: bool

    @property
    def label(self) -> str:
        """The class's name."""
        return self.variant.label

    def checks(self, say: Progress) -> tuple[Check, ...]:
        """See `hymell.tracer.variant.sanity.run_checks`."""
        from hymell.tracer.variant.sanity import run_checks

        say(f"checking {self.label} on the CPU")
        return run_checks(self.variant, self.config, trust_remote_code=self.trust_remote_code)

    def timings(self, activations: str | None, batch: int, longest: int, say: Progress) -> Timings:
        """See `hymell.tracer.variant.stopwatch.time_blocks`."""
        from hymell.tracer.variant.stopwatch import time_blocks

        return time_blocks(
            self.variant,
            self.config,
            activations=activations,
            batch=batch,
            longest=longest,
            trust_remote_code=self.trust_remote_code,
            progress=say,
        )


def prepare(
    attention: str | type[nn.Module],
    model: ConfigSource | PretrainedConfig | Any,
    *,
    options: Mapping[str, Any],
    layers: frozenset[int] | None,
    trust_remote_code: bool,
    opaque_modules: Mapping[type, str],
    progress: Progress,
) -> Prepared:
    """Load the class, read the model's config, trace the model with the class in it.

    Raises HymellError as `load_class`, `variant_of` and `trace_variant` do, and for a model that
    is neither named nor a config.
    """
    if isinstance(model, ConfigSource):
        scheme = scheme_of(model.config, model.hf_quant)
        name, notes = model.name, model.notes
        config = to_config(model, trust_remote_code=trust_remote_code)
    elif isinstance(model, PretrainedConfig):
        config, name, notes = model, model.name_or_path or model.model_type, ()
        scheme = scheme_of(model.to_dict(), None)
    else:
        raise HymellError(
            f"attention is exchanged in the model of a config, not in a {type(model).__name__}; "
            "pass a Hugging Face id, a folder, a config.json or a config"
        )
    if isinstance(attention, str):
        progress(f"importing {attention}")
        attention = load_class(attention)
    if not (isinstance(attention, type) and issubclass(attention, nn.Module)):
        raise HymellError("the attention must be a class of torch.nn.Module or 'FILE.py:Class'")
    variant = variant_of(
        attention, config, options=options, layers=layers, trust_remote_code=trust_remote_code
    )
    graph, taken = trace_variant(
        variant,
        config,
        name,
        scheme=scheme,
        notes=notes,
        trust_remote_code=trust_remote_code,
        opaque_modules=opaque_modules,
        progress=progress,
    )
    return Prepared(variant, config, graph, taken, trust_remote_code)
