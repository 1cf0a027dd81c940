"""Mixture-of-experts modules that Hugging Face's experts registry does not reach.

They are recognised by what they hold and what their forward takes, and recorded as the same
``hymell.experts`` op as any other; routing stays as the ops that it is.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hymell.tracer.capture import Capture
from hymell.tracer.composites import emit_experts
from hymell.tracer.patching import Patches


def install(capture: Capture, model: nn.Module, patches: Patches) -> None:
    """Keep such experts whole while ``patches`` is active."""
    for module in model.modules():
        forward = _replacement(capture, module)
        if forward is not None:
            patches.attribute(module, "forward", types.MethodType(forward, module))


def _replacement(capture: Capture, module: nn.Module) -> Callable[..., Any] | None:
    if hasattr(module, "has_gate"):
        return None
    kind = type(module).__name__
    if kind == "JetMoeMoE":
        return _sorted_experts(capture)
    if kind == "JetMoeTopKGating":
        return _sorted_routing
    if kind == "JetMoeParallelExperts":
        return _grouped_linear
    if _scales_inputs(module):
        return _dense_experts(capture)
    if "xpert" in kind and _takes_routing(module):
        return _routed_experts(capture)
    return None


def _takes_routing(module: nn.Module) -> bool:
    """A forward of (tokens, chosen experts, their weights) over stacked expert weights."""
    required = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    return (
        len(required) == 3
        and any(word in required[1] for word in ("index", "indices", "selected"))
        and "weight" in required[2]
    )


def _routed_experts(capture: Capture) -> Callable[..., Tensor]:
    def forward(module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        shape = hidden.shape
        tokens = hidden.reshape(-1, shape[-1])
        weights = [p for p in module.parameters() if p.dim() >= 2]
        experts = _count(module, weights)
        down = weights[-1]
        intermediate = down.numel() // experts // shape[-1]
        up = sum(weight.numel() for weight in weights[:-1]) // experts // shape[-1]
        out = emit_experts(
            capture,
            tokens,
            top_k_index.reshape(tokens.shape[0], -1),
            top_k_weights.reshape(tokens.shape[0], -1),
            list(module.parameters()),
            experts=experts,
            gated=up == 2 * intermediate,
            intermediate=intermediate,
        )
        return out.view(shape)

    return forward


def _count(module: Any, weights: list[Tensor]) -> int:
    stacked = [weight.shape[0] for weight in weights if weight.dim() == 3]
    return stacked[0] if stacked else int(module.num_experts)


def _scales_inputs(module: nn.Module) -> bool:
    """Llama 4's layout: a router, and experts that take every token once per expert."""
    experts, router = getattr(module, "experts", None), getattr(module, "router", None)
    return (
        isinstance(experts, nn.Module)
        and isinstance(router, nn.Linear)
        and getattr(experts, "gate_up_proj", torch.empty(0)).dim() == 3
        and len(inspect.signature(experts.forward).parameters) == 1
    )


def _dense_experts(capture: Capture) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(module: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
        with capture.inside(module.router):
            logits = functional.linear(hidden, module.router.weight)
            values, indices = torch.topk(logits, module.top_k, dim=1)
            scores = torch.sigmoid(values.float()).to(logits.dtype)
        experts = module.experts
        with capture.inside(experts):
            routed = emit_experts(
                capture,
                hidden,
                indices,
                scores,
                [experts.gate_up_proj, experts.down_proj],
                experts=experts.gate_up_proj.shape[0],
                gated=True,
                intermediate=experts.down_proj.shape[1],
            )
        out = module.shared_expert(hidden)
        out.add_(routed)
        return out, logits

    return forward


def _sorted_experts(capture: Capture) -> Callable[..., Tensor]:
    def forward(module: Any, layer_input: Tensor) -> Tensor:
        tokens = layer_input.reshape(-1, layer_input.shape[-1])
        router = module.router
        with capture.inside(router):
            values, indices = router.layer(tokens).float().topk(router.top_k, dim=1)
            weights = torch.softmax(values, dim=1).type_as(tokens)
        up, down = module.input_linear.weight, module.output_linear.weight
        out = emit_experts(
            capture,
            tokens,
            indices,
            weights,
            [up, down],
            experts=up.shape[0],
            gated=True,
            intermediate=down.shape[2],
        )
        summed: Tensor = out.view(layer_input.shape) + module.bias
        return summed

    return forward


def _sorted_routing(module: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """JetMoE's attention experts: how many tokens each gets stays a tensor, never a Python list."""
    logits = module.layer(hidden_states).float()
    values, indices = logits.topk(module.top_k, dim=1)
    weights = torch.softmax(values, dim=1).type_as(hidden_states)
    sizes = functional.one_hot(indices.flatten(), module.num_experts).sum(0)
    _, order = indices.flatten().sort(0)
    token = order.div(module.top_k, rounding_mode="trunc")
    return order, token, weights.flatten()[order], sizes, logits


def _grouped_linear(module: Any, inputs: Tensor, expert_size: Tensor) -> Tensor:
    ends = expert_size.cumsum(0).to(torch.int32)
    out: Tensor = torch._grouped_mm(inputs, module.weight.transpose(-2, -1), offs=ends)
    return out
