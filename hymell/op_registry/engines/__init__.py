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

ENGINES: Mapping[str, Engine] = {e.name: e for e in (EAGER, COMPILE, VLLM, SGLANG, TRTLLM)}

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


__all__ = ["ENGINES", "Engine", "Overheads", "get_engine"]
