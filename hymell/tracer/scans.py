"""Scans and causal convolutions kept whole, so that a graph does not grow with the prompt.

Hugging Face's pure PyTorch stand-ins for hub kernels are found by their code object, whatever the
model; a few recurrences written as plain loops are known by name; scans a user marked with
`hymell.zoo.attention.scan_marker` arrive through its handler.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hymell.tracer.capture import Capture
from hymell.tracer.patching import Patches

#: Kernels whose stand-in returns None: the model then takes its unfused path.
_WITHOUT_FALLBACK = frozenset({"mamba_inner_fn", "mamba_split_conv1d_scan_combined"})


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a scan computes: sizes per head, and the state it carries per sequence."""

    kind: str
    mode: str
    heads: int
    key_dim: int
    value_dim: int
    chunk: int | None = None
    state_elements: int | None = None

    def attrs(self) -> dict[str, Any]:
        """The composite op's attributes."""
        state = self.state_elements
        return {
            "kind": self.kind,
            "mode": self.mode,
            "heads": self.heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "state_elements": self.heads * self.key_dim * self.value_dim
            if state is None
            else state,
            "chunk": self.chunk,
        }


Rule = Callable[..., tuple[Any, Geometry]]


def emit_scan(
    capture: Capture, inputs: Sequence[Tensor], outputs: Sequence[Tensor], geometry: Geometry
) -> None:
    """Record ``hymell.scan.<kind>``."""
    capture.emit(f"hymell.scan.{geometry.kind}", inputs, outputs, geometry.attrs())


def install(capture: Capture, model: nn.Module, patches: Patches) -> None:
    """Keep the scans that the model's code calls whole while ``patches`` is active."""
    names = {type(module).__module__ for module in model.modules()}
    for name in sorted(names):
        namespace = sys.modules.get(name)
        if namespace is None or name.startswith("torch."):
            continue
        for attribute, function in list(vars(namespace).items()):
            kernel = _kernel_name(function)
            if kernel is not None and kernel not in _WITHOUT_FALLBACK:
                patches.attribute(namespace, attribute, _kept(capture, kernel, function))
        for owner, attribute, kind in _named(namespace):
            original = vars(owner)[attribute]
            patches.attribute(owner, attribute, _kept(capture, kind, original))
    marker = sys.modules.get("hymell.zoo.attention.scan_marker")
    if marker is not None:
        patches.attribute(marker, "HANDLER", functools.partial(_marked, capture))


def _kernel_name(function: object) -> str | None:
    """The hub kernel a function stands in for, or None."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.endswith("hub_kernels.py"):
        return None
    if "func_name" not in code.co_freevars:
        return None
    cell = function.__closure__[code.co_freevars.index("func_name")]  # type: ignore[attr-defined]
    return str(cell.cell_contents)


def _named(namespace: Any) -> Iterator[tuple[Any, str, str]]:
    """Recurrences written as plain loops: (owner, attribute, kind)."""
    if callable(getattr(namespace, "rwkv_linear_attention", None)):
        yield namespace, "rwkv_linear_attention", "rwkv"
    for value in list(vars(namespace).values()):
        if isinstance(value, type) and value.__module__ == namespace.__name__:
            if "_rnn_scan" in vars(value):
                yield value, "_rnn_scan", "rg_lru"
            if value.__name__ == "xLSTMBackend":
                yield value, "forward", "mlstm"


def _kept(capture: Capture, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    rule = _RULES.get(name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not capture.recording and rule is None:
            return function(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        with capture.paused():
            if name.startswith("causal_conv1d"):
                out = torch.empty_like(inputs[0])
            elif rule is None:
                out, geometry = function(*args, **kwargs), _unknown(name, inputs)
            else:
                out, geometry = rule(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if name.startswith("causal_conv1d"):
            _emit_conv(capture, name, inputs, outputs)
        else:
            emit_scan(capture, inputs, outputs, geometry)
        return out

    return call


def _emit_conv(
    capture: Capture, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    weight = next(t for t in inputs[1:] if t.dim() == 2)
    attrs = {
        "kind": "causal_conv1d",
        "mode": "recurrent" if name.endswith("update") else "chunk",
        "channels": inputs[0].shape[1],
        "kernel": weight.shape[-1],
    }
    capture.emit("hymell.causal_conv1d", inputs, outputs, attrs)


def _unknown(name: str, inputs: Sequence[Tensor]) -> Geometry:
    """A kernel hymell has no rule for: kept whole, sized by its first input."""
    shape = inputs[0].shape
    return Geometry(name, "chunk", shape[1] if len(shape) > 2 else 1, 1, shape[-1])


def _delta_rule(kind: str, mode: str) -> Rule:
    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *args: Any,
        chunk_size: int = 64,
        output_final_state: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, Geometry]:
        batch, _, heads, value_dim = value.shape
        key_dim = key.shape[-1]
        state = value.new_empty(batch, heads, key_dim, value_dim, dtype=torch.float32)
        chunk = chunk_size if mode == "chunk" else None
        geometry = Geometry(kind, mode, heads, key_dim, value_dim, chunk)
        return (torch.empty_like(value), state if output_final_state else None), geometry

    return rule


def _selective_scan(
    hidden: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *args: Any,
    return_last_state: bool = False,
    **kwargs: Any,
) -> tuple[Any, Geometry]:
    batch, channels, _ = hidden.shape
    geometry = Geometry("selective_scan", "chunk", channels, A.shape[-1], 1)
    out = torch.empty_like(hidden)
    if not return_last_state:
        return out, geometry
    return (out, hidden.new_empty(batch, channels, A.shape[-1])), geometry


def _selective_step(
    state: Tensor, hidden: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Geometry]:
    out = torch.empty_like(hidden)
    if state.dim() == 4:
        _, heads, value_dim, key_dim = state.shape
        return out, Geometry("mamba2_ssd", "recurrent", heads, key_dim, value_dim)
    return out, Geometry("selective_scan", "recurrent", state.shape[1], state.shape[-1], 1)


def _ssd(
    hidden: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    *args: Any,
    return_final_states: bool = False,
    **kwargs: Any,
) -> tuple[Any, Geometry]:
    batch, _, heads, value_dim = hidden.shape
    key_dim = B.shape[-1]
    geometry = Geometry("mamba2_ssd", "chunk", heads, key_dim, value_dim, chunk_size)
    out = torch.empty_like(hidden)
    if not return_final_states:
        return out, geometry
    state = hidden.new_empty(batch, heads, value_dim, key_dim, dtype=torch.float32)
    return (out, state), geometry


def _rwkv(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Sequence[Tensor] | None = None,
    return_state: bool = False,
) -> tuple[Any, Geometry]:
    channels = key.shape[-1]
    mode = "recurrent" if key.shape[1] == 1 else "chunk"
    # Numerator, denominator and running maximum per channel (Peng et al. 2023, arXiv:2305.13048).
    geometry = Geometry("rwkv", mode, channels, 1, 1, None, 3 * channels)
    new_state = None
    if return_state or state is not None:
        new_state = [torch.empty_like(key[:, 0], dtype=torch.float32) for _ in range(3)]
    return (torch.empty_like(key), new_state), geometry


def _rg_lru(
    module: nn.Module,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, Geometry]:
    batch, length, channels = hidden_states.shape
    mode = "recurrent" if length == 1 else "chunk"
    geometry = Geometry("rg_lru", mode, channels, 1, 1)
    state = hidden_states.new_empty(batch, channels, dtype=torch.float32)
    return (torch.empty_like(hidden_states), state), geometry


def _mlstm(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    return_last_states: bool | None = None,
    mode: str | None = None,
    **kwargs: Any,
) -> tuple[Any, Geometry]:
    batch, heads, length, key_dim = key.shape
    value_dim = value.shape[-1]
    config = module.config
    step = length == 1
    geometry = Geometry(
        "mlstm",
        "recurrent" if step else "chunk",
        heads,
        key_dim,
        value_dim,
        None if step else config.chunk_size,
        # Matrix memory, normaliser and maximum per head (Beck et al. 2024, arXiv:2405.04517).
        heads * (key_dim * value_dim + key_dim + 1),
    )
    out = torch.empty_like(value)
    training = "train" in (mode or config.mode)
    wanted = return_last_states if return_last_states is not None else config.return_last_states
    if training and not wanted:
        return out, geometry
    dtype = getattr(torch, config.inference_state_dtype)
    sizes = ((key_dim, value_dim), (key_dim,), (1,))
    states = tuple(value.new_empty(batch, heads, *size, dtype=dtype) for size in sizes)
    return (out, states), geometry


_RULES: Mapping[str, Rule] = {
    "chunk_gated_delta_rule": _delta_rule("gated_delta_rule", "chunk"),
    "fused_recurrent_gated_delta_rule": _delta_rule("gated_delta_rule", "recurrent"),
    "chunk_kda": _delta_rule("kda", "chunk"),
    "fused_recurrent_kda": _delta_rule("kda", "recurrent"),
    "selective_scan_fn": _selective_scan,
    "selective_state_update": _selective_step,
    "mamba_chunk_scan_combined": _ssd,
    "rwkv": _rwkv,
    "rg_lru": _rg_lru,
    "mlstm": _mlstm,
}


def _marked(
    capture: Capture,
    kind: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A scan its author marked, on q, k (B, H, S, dk) and v (B, H, S, dv): (o, state)."""
    named = _by_name(function, args, kwargs)
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    query, key, value = (named.get(name) for name in ("q", "k", "v"))
    with capture.paused():
        if isinstance(key, Tensor) and isinstance(value, Tensor) and isinstance(query, Tensor):
            batch, heads, length, value_dim = value.shape
            key_dim = key.shape[-1]
            step = length == 1
            chunk = named.get("chunk_size")
            geometry = Geometry(
                kind,
                "recurrent" if step else "chunk",
                heads,
                key_dim,
                value_dim,
                None if step else chunk,
            )
            state = value.new_empty(batch, heads, key_dim, value_dim, dtype=torch.float32)
            out: Any = (torch.empty_like(value), state)
        else:
            out, geometry = function(*args, **kwargs), _unknown(kind, inputs)
    outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    emit_scan(capture, inputs, outputs, geometry)
    return out


def _by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, Any]:
    import inspect

    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments
