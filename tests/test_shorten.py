"""Traces by way of a shorter twin are those of the model itself; remembered meta results too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES

from hymell import sources
from hymell.tracer import assemble, meta_results
from hymell.tracer.assemble import scheme_of, trace_config
from hymell.tracer.build import build_model
from hymell.tracer.configs import to_config
from hymell.tracer.layers import identical_layers
from hymell.tracer.shorten import twins_of

#: Families whose layers are all identical, and some whose layers are not.
UNIFORM = ("llama", "qwen3", "mistral", "gpt2", "falcon", "bloom", "qwen3_moe", "mixtral", "olmo2")
MIXED = ("gemma2", "gpt_oss", "deepseek_v3", "llama4_text")


def through_all_layers(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **how: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(assemble, "twins_of", lambda *_: None)
        return trace_config(*arguments, **how)


@pytest.mark.parametrize("family", [*UNIFORM, *MIXED])
def test_the_graph_is_that_of_the_whole_model(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FAMILIES[family]()
    assert (twins_of(config, build_model(config)) is None) == (family in MIXED)
    short = trace_config(FAMILIES[family](), family)
    whole = through_all_layers(monkeypatch, FAMILIES[family](), family)
    assert short == whole
    assert short.to_json() == whole.to_json()


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-8B-FP8"])
def test_so_is_that_of_a_real_model_with_its_formats(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources.resolve("Qwen/Qwen3-8B" if "FP8" in name else name)
    if "FP8" in name:
        quant = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        source.config["quantization_config"] = quant
    how = {"scheme": scheme_of(source.config, None)}
    short = trace_config(to_config(source), name, **how)
    whole = through_all_layers(monkeypatch, to_config(source), name, **how)
    assert short.to_json() == whole.to_json()
    assert (
        short.regions[0].layers[0].paths[-1].endswith(str(source.config["num_hidden_layers"] - 1))
    )


def test_constants_that_depend_on_the_depth_leave_the_model_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A residual scaled by the number of layers shows as another number in the longer twin."""
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaDecoderLayer.forward

    def scaled(self: Any, hidden_states: Any, **rest: Any) -> Any:
        depth = self.self_attn.config.num_hidden_layers
        return original(self, hidden_states, **rest) * (depth**-0.5)

    monkeypatch.setattr(modeling_llama.LlamaDecoderLayer, "forward", scaled)
    short = trace_config(FAMILIES["llama"](), "x")
    whole = through_all_layers(monkeypatch, FAMILIES["llama"](), "x")
    assert short.to_json() == whole.to_json()
    assert "0.5" in short.to_json()


def test_one_odd_layer_is_seen() -> None:
    model = build_model(FAMILIES["llama"]())
    assert identical_layers(model) == tuple(f"model.layers.{i}" for i in range(4))
    model.model.layers[2].mlp.up_proj = torch.nn.Linear(64, 97, device="meta")
    assert identical_layers(model) is None


# --- remembered results --------------------------------------------------------------------------


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def described(out: Any) -> Any:
    tensors = [out] if isinstance(out, torch.Tensor) else list(out)
    return [(tuple(t.shape), t.stride(), t.dtype, t.device.type) for t in tensors]


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.ops.aten.mm.default, (meta(3, 4), meta(4, 5))),
        (torch.ops.aten.mm.default, (meta(4, 3).t(), meta(4, 5))),
        (torch.ops.aten.add.Tensor, (meta(3, 4, dtype=torch.int64), 1)),
        (torch.ops.aten.add.Tensor, (meta(3, 4, dtype=torch.int64), 1.0)),
        (torch.ops.aten.add.Tensor, (meta(3, 4), meta(4, dtype=torch.float32))),
        (torch.ops.aten.mean.dim, (meta(3, 4), [-1], True)),
        (torch.ops.aten.cat.default, ([meta(3, 4), meta(3, 2)], 1)),
        (torch.ops.aten.topk.default, (meta(3, 9), 2)),
        (torch.ops.aten.silu.default, (meta(8, 3).t(),)),
    ],
)
def test_a_remembered_result_is_what_the_op_gives(func: Any, args: tuple[Any, ...]) -> None:
    meta_results._KNOWN.clear()
    wanted = described(func(*args))
    assert described(meta_results.run(func, args, {})) == wanted
    assert len(meta_results._KNOWN) == 1
    again = meta_results.run(func, args, {})
    assert described(again) == wanted
    assert len(meta_results._KNOWN) == 1
    tensors = [again] if isinstance(again, torch.Tensor) else list(again)
    assert all(tensor is not value for tensor in tensors for value in args)


def test_arguments_that_are_equal_and_promote_differently_are_apart() -> None:
    meta_results._KNOWN.clear()
    whole = meta(3, dtype=torch.int64)
    add = torch.ops.aten.add.Tensor
    assert [meta_results.run(add, (whole, n), {}).dtype for n in (1, 1.0)] == [
        torch.int64,
        torch.float32,
    ]


def test_values_on_the_host_are_not_remembered() -> None:
    meta_results._KNOWN.clear()
    one = meta_results.run(torch.ops.aten.add.Tensor, (torch.ones(2), 1), {})
    assert one.tolist() == [2, 2]
    assert not meta_results._KNOWN
