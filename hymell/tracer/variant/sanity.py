"""Does the module compute what attention in a decoder must: tested on a small model on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hymell.attention_findings import Check
from hymell.errors import HymellError
from hymell.tracer.build import build_model, quiet
from hymell.tracer.inputs import cache_keyword
from hymell.tracer.parts import language_model
from hymell.tracer.variant.small import LAYERS, VOCABULARY, describe, smaller
from hymell.tracer.variant.substitute import Variant, attention_at, empty_cache
from hymell.tracer.variant.user_class import file_of, said

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Tokens of a check: past the chunk of 64 that scans work in, and no multiple of a power of two.
TOKENS = 75
_BATCH = 2
#: Error relative to the largest output that rounding in fp32 explains.
TOLERANCE = 1e-4
_SEED = 20_240_607
#: More parameters than this take too long to fill with random numbers.
_MOST_PARAMETERS = 600_000_000
#: Ways in which transformers passes the mask on, and what they mean for a module.
_IMPLEMENTATIONS = {
    "sdpa": "where the model passes no mask (attn_implementation sdpa)",
    "eager": "where the model passes a mask to add (attn_implementation eager)",
}


def run_checks(
    variant: Variant, config: PretrainedConfig, *, trust_remote_code: bool = False
) -> tuple[Check, ...]:
    """Shape and dtype, causality, independent rows, and decode against prefill.

    The variant stands in every layer of a model of two layers with random weights. First with
    narrow heads; where the module does not fit those, with the model's own attention sizes. One
    that runs in neither fails a check of its own, which says what it raised.
    """
    everywhere = replace(variant, layers=None)
    failure: Exception | None = None
    with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        for small in smaller(config):
            torch.manual_seed(_SEED)
            if _size_of(small, trust_remote_code) > _MOST_PARAMETERS:
                failure = failure or HymellError("its attention is too large for the checks")
                continue
            try:
                model = build_model(
                    small,
                    trust_remote_code=trust_remote_code,
                    device="cpu",
                    dtype=torch.float32,
                )
                # A stock model that does not run at these sizes says nothing of the module.
                _outputs(model, _ids())
            except Exception as error:
                failure = failure or error
                continue
            try:
                everywhere.put_into(model)
                _outputs(model, _ids())
            except Exception as error:
                failure = error
                continue
            return tuple(_checks(everywhere, model, describe(small)))
    assert failure is not None
    return (Check("runs", False, said(failure, file_of(variant.cls))),)


def _size_of(config: PretrainedConfig, trust_remote_code: bool) -> int:
    try:
        model = build_model(config, trust_remote_code=trust_remote_code)
    except HymellError:
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def _checks(variant: Variant, model: nn.Module, where: str) -> Iterator[Check]:
    yield _typed(variant, model, where)
    for name, test in (
        ("causal", _causal),
        ("rows independent", _rows_independent),
        ("decode equals prefill", _decode),
    ):
        yield _worst(name, test, variant, model)


def _typed(variant: Variant, model: nn.Module, where: str) -> Check:
    """Shape and dtype are checked by every call; here in fp32 and, after all, in bf16."""
    name = "shape and dtype"
    try:
        values = _outputs(model, _ids())
        model.to(torch.bfloat16)
        half = _outputs(model, _ids())
    except Exception as error:
        return Check(name, False, f"in bfloat16: {said(error, file_of(variant.cls))}")
    finally:
        model.to(torch.float32)
    finite = all(bool(torch.isfinite(x).all()) for x in (*values, *half))
    if not finite:
        return Check(name, False, f"outputs are not finite; {where}")
    return Check(name, True, f"as the hidden states in float32 and bfloat16, finite; {where}")


def _worst(name: str, test: Any, variant: Variant, model: nn.Module) -> Check:
    """The check with each way of passing the mask; the first that fails, else the worst."""
    found: list[Check] = []
    for implementation, meaning in _IMPLEMENTATIONS.items():
        config: Any = model.config
        config._attn_implementation = implementation
        try:
            deviation, remark = test(model)
        except Exception as error:
            return Check(name, False, f"{said(error, file_of(variant.cls))}, {meaning}")
        passed = deviation <= TOLERANCE
        words = remark if passed else f"{remark}, {meaning}"
        found.append(Check(name, passed, words, deviation))
    return next((c for c in found if not c.passed), max(found, key=lambda c: c.deviation or 0.0))


def _causal(model: nn.Module) -> tuple[float, str]:
    changed_at = TOKENS // 2
    ids = _ids()
    other = ids.clone()
    other[:, changed_at] = (other[:, changed_at] + 1) % VOCABULARY
    a, b = _outputs(model, ids)[0], _outputs(model, other)[0]
    leak = _relative(a[:, :changed_at], b[:, :changed_at], a)
    if torch.equal(a[:, changed_at:], b[:, changed_at:]):
        return float("inf"), f"token {changed_at} changes nothing, not even its own output"
    return leak, f"token {changed_at} of {TOKENS} changed, outputs before it compared"


def _rows_independent(model: nn.Module) -> tuple[float, str]:
    ids = _ids()
    whole, alone = _outputs(model, ids)[0], _outputs(model, ids[:1])[0]
    return _relative(whole[:1], alone, whole), "a sequence alone and beside another"


def _decode(model: nn.Module) -> tuple[float, str]:
    ids = _ids()
    prefill = _outputs(model, ids)
    first = TOKENS // 3
    cache = empty_cache(model)
    steps = [_outputs(model, ids[:, :first], cache)]
    steps += [_outputs(model, ids[:, t : t + 1], cache) for t in range(first, TOKENS)]
    deviation = max(
        _relative(whole, torch.cat([step[layer] for step in steps], dim=1), whole)
        for layer, whole in enumerate(prefill)
    )
    return deviation, f"{first} tokens at once, then {TOKENS - first} one by one"


def _outputs(model: nn.Module, ids: Tensor, cache: Any = None) -> list[Tensor]:
    """The outputs of every attention module, in order of the layers."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: Any, result: Any) -> None:
        found.append((result[0] if isinstance(result, tuple) else result).clone())

    handles = [attention_at(model, i).register_forward_hook(keep) for i in range(LAYERS)]
    text = language_model(model)
    arguments: dict[str, Any] = {"use_cache": cache is not None}
    if cache is not None:
        arguments[cache_keyword(text)] = cache
    try:
        text(ids, **arguments)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _relative(a: Tensor, b: Tensor, scale: Tensor) -> float:
    largest = float(scale.abs().max())
    difference = float((a - b).abs().max())
    return difference / largest if largest else difference


def _ids() -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(1, VOCABULARY, (_BATCH, TOKENS), generator=generator)
