"""Engines by name: each is a list of fusion rules and an overhead model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from hymell.errors import HymellError
from hymell.op_registry.engines.base import Engine, Overheads
from hymell.op_registry.engines.compile import COMPILE
from hymell.op_registry.engines.eager import EAGER
from hymell.op_registry.engines.sglang import SGLANG
from hymell.op_registry.engines.trtllm import TRTLLM
from hymell.op_registry.engines.vllm import VLLM

_ENGINES = {e.name: e for e in (EAGER, COMPILE, VLLM, SGLANG, TRTLLM)}
ENGINES: Mapping[str, Engine] = _ENGINES
_BUILT_IN = frozenset(_ENGINES)

_ALIASES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "hf": "eager", "inductor": "compile"}


def get_engine(name: str) -> Engine:
    """The engine of a name (``vllm``, ``TensorRT-LLM``, ...); HymellError names the choices."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key in ENGINES:
        return ENGINES[key]
    close = difflib.get_close_matches(key, [*ENGINES, *_ALIASES], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise HymellError(f"unknown engine {name!r}; choose one of {', '.join(ENGINES)}{hint}")


def register_engine(engine: Engine) -> None:
    """Make an engine of your own known by its name, in this process.

    Raises HymellError for a name that is not in lower case without spaces, and for one that an
    engine of hymell has; a second engine of your own under one name replaces the first.
    """
    if engine.name != engine.name.strip().lower() or not engine.name or " " in engine.name:
        raise HymellError(f"{engine.name!r} is not a name for an engine; use lower case, no spaces")
    if engine.name in _BUILT_IN or engine.name in _ALIASES:
        raise HymellError(f"{engine.name!r} is an engine of hymell; choose another name for yours")
    _ENGINES[engine.name] = engine


__all__ = ["ENGINES", "Engine", "Overheads", "get_engine", "register_engine"]
