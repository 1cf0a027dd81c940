"""What a shell offers when a value is half typed: names that hymell knows offline."""

from __future__ import annotations

from collections.abc import Iterable


def gpus(incomplete: str) -> list[str]:
    """GPUs with a data sheet whose names begin so."""
    from hymell.hardware import gpu_names

    return _begins(gpu_names(), incomplete)


def engines(incomplete: str) -> list[str]:
    """Engines whose names begin so."""
    from hymell.op_registry.engines import ENGINES

    return _begins(ENGINES, incomplete)


def models(incomplete: str) -> list[str]:
    """Known models, by name or Hugging Face id, that begin so, whatever their case."""
    from hymell.zoo import list_models

    return _begins((name for m in list_models() for name in (m.name, *m.ids)), incomplete)


def runs(incomplete: str) -> list[str]:
    """Names of kept runs that begin so."""
    from hymell.analysis.own_store import saved_names

    return _begins(saved_names(), incomplete)


def _begins(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if name.casefold().startswith(text.casefold())]
