"""How quantised checkpoints store their weights: every form of config, and published totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from hymell.dtypes import BITS, bytes_per_element
from hymell.errors import HymellError, UnsupportedError
from hymell.quantization import QuantScheme, parse
from hymell.weight_names import Patterns

Q = "model.layers.3.self_attn.q_proj.weight"
UP = "model.layers.3.mlp.up_proj.weight"
ROUTER = "model.layers.3.mlp.gate.weight"
SHARED = "model.layers.3.mlp.shared_experts.up_proj.weight"
EXPERTS = "model.layers.3.mlp.experts.gate_up_proj"
HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"
NORM = "model.layers.3.input_layernorm.weight"
SHAPES: dict[str, tuple[int, ...]] = {
    Q: (64, 64),
    UP: (128, 64),
    ROUTER: (8, 64),
    SHARED: (128, 64),
    EXPERTS: (8, 256, 64),
    HEAD: (100, 64),
    EMBED: (100, 64),
    NORM: (64,),
}


def read(block: dict[str, Any], **config: Any) -> QuantScheme:
    scheme = parse({"model_type": "llama", **config, "quantization_config": block})
    assert scheme is not None
    return scheme


def stored(scheme: QuantScheme) -> dict[str, str]:
    """The parameters that a scheme quantises, with their dtype; all others stay as they are."""
    found = {name: scheme.weight_dtype(name, shape) for name, shape in SHAPES.items()}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


LINEARS = (Q, UP, SHARED, EXPERTS)

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def compressed(weights: dict[str, Any], **block: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": block.pop("acts", None),
    }
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **block}


def modelopt(algo: str, **block: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algo, **block}


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}


@pytest.mark.parametrize(
    ("block", "weights", "activations", "name"),
    [
        (FP8, "float8_block128", "float8_e4m3", "fp8 blocks 128x128 (fp8 activations)"),
        ({"quant_method": "fp8"}, "float8_e4m3", "float8_e4m3", "fp8 (fp8 activations)"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "float8_e5m2", "float8_e4m3", "fp8 e5m2"),
        ({"quant_method": "mxfp8"}, "mxfp8", "mxfp8", "mxfp8"),
        ({"quant_method": "fbgemm_fp8"}, "float8_e4m3", "float8_e4m3", "fp8"),
        ({"quant_method": "eetq"}, "int8", None, "int8 (weights only)"),
        ({"quant_method": "quanto", "weights": "int4"}, "int4_g128", None, "int4 groups of 128"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            "int4_g128",
            None,
            "int4 groups of 128 (weights only)",
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", None, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4_channel", None, "int4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4_g64", None, "int4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "int4_g128", None, "int4"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "int4_g128", None, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", None, "nf4"),
        (
            {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "nf4_double",
            None,
            "nf4 double",
        ),
        ({"load_in_8bit": True}, "int8", "int8", "int8 (int8 activations)"),
        (compressed(INT4), "int4_g32_sym", None, "int4 groups of 32 (weights only)"),
        (compressed({**INT4, "symmetric": False}), "int4_g32", None, "int4 groups of 32"),
        (compressed(INT8, acts=INT8), "int8", "int8", "int8"),
        (compressed(FLOAT8, acts=FLOAT8), "float8_e4m3", "float8_e4m3", "fp8"),
        (compressed(FLOAT4, acts=FLOAT4), "nvfp4", "nvfp4", "nvfp4"),
        (compressed({**FLOAT4, "group_size": 32}), "mxfp4", None, "mxfp4"),
        (
            compressed({**FLOAT8, "strategy": "block", "block_structure": [128, 128]}),
            "float8_block128",
            None,
            "fp8 blocks 128x128",
        ),
        (modelopt("FP8"), "float8_e4m3", "float8_e4m3", "fp8"),
        (modelopt("NVFP4"), "nvfp4", "nvfp4", "nvfp4 (nvfp4 activations)"),
        (modelopt("W4A16_NVFP4"), "nvfp4", None, "nvfp4 (weights only)"),
        (modelopt("W4A8_AWQ", group_size=128), "int4_g128_sym", "float8_e4m3", "int4 groups"),
        ({"quant_algo": "FP8"}, "float8_e4m3", "float8_e4m3", "fp8"),
    ],
)
def test_every_form(
    block: dict[str, Any], weights: str, activations: str | None, name: str
) -> None:
    """Linear and expert weights are stored so; norms, embeddings, router and head are not."""
    scheme = read(block)
    assert stored(scheme) == dict.fromkeys(LINEARS, weights)
    assert scheme.activation_dtype == activations
    assert {scheme.math_dtype(key, SHAPES[key]) for key in LINEARS} == {activations}
    assert scheme.name.startswith(name)
    assert weights in BITS


def test_mxfp4_is_for_experts_alone() -> None:
    scheme = read({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    assert stored(scheme) == {EXPERTS: "mxfp4"}
    assert scheme.activation_dtype is None
    assert scheme.weight_dtype(f"{EXPERTS}_bias", (8, 256)) is None


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("model.layers.0.block_sparse_moe.input_linear.weight", (32, 512, 64), "float8_e4m3"),
        ("model.layers.0.mlp.experts.0.w1.weight", (128, 64), "float8_e4m3"),
        ("model.layers.0.mixer.conv1d.weight", (128, 1, 4), None),
        ("model.encoder.conv1.weight", (64, 80, 3), None),
        ("model.layers.0.self_attn.q_proj.bias", (64,), None),
        ("model.layers.0.mixer.A_log", (64, 16), None),
    ],
)
def test_what_counts_as_a_linear_weight(
    name: str, shape: tuple[int, ...], dtype: str | None
) -> None:
    assert read({"quant_method": "fbgemm_fp8"}).weight_dtype(name, shape) == dtype


def test_fp8_with_fp4_experts() -> None:
    """DeepSeek-V4 says so beside the quantization_config."""
    found = stored(read(FP8, expert_dtype="fp4"))
    assert found == {**dict.fromkeys(LINEARS, "float8_block128"), EXPERTS: "mxfp4"}


def test_quantization_config_of_the_text_part() -> None:
    scheme = parse({"model_type": "vl", "text_config": {"quantization_config": FP8}})
    assert scheme is not None
    assert scheme.rules[0].weights == "float8_block128"


@pytest.mark.parametrize(
    "config",
    [{}, {"quantization_config": None}, {"quantization_config": {}}, {"text_config": {"a": 1}}],
)
def test_no_quantization(config: dict[str, Any]) -> None:
    assert parse(config) is None


class TestIgnored:
    """Names of the checkpoint mean transformers' modules, fused experts included."""

    @pytest.mark.parametrize(
        ("pattern", "spared"),
        [
            ("model.layers.3.self_attn", [Q]),
            ("model.layers.3.self_attn*", [Q]),
            ("model.layers.3.self_attn.q_proj", [Q]),
            ("model.layers.*.self_attn", [Q]),
            ("*.self_attn.*", [Q]),
            ("re:.*self_attn.*", [Q]),
            ("language_model.model.layers.3.self_attn*", [Q]),
            ("model.language_model.layers.3.mlp.up_proj", [UP]),
            ("*.attn.*", [Q]),
            ("model.layers.3", [Q, UP, SHARED, EXPERTS]),
            ("model.layers.30", []),
            ("model.layers.3.mlp", [UP, SHARED, EXPERTS]),
            ("model.layers.3.block_sparse_moe.experts", [EXPERTS]),
            ("layers.3.ffn.experts*", [EXPERTS]),
            ("model.layers.3.mlp.experts.0.gate_proj", [EXPERTS]),
            ("re:.*mlp\\.experts\\.\\d+\\..*", [EXPERTS]),
            ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", [UP]),
            ("re:.*shared_experts.*", [SHARED]),
            ("model.layers.3.mlp.shared_experts*", [SHARED]),
            ("gate", []),
            ("up_proj", [UP, SHARED]),
            ("mtp*", []),
            ("lm_head", []),
        ],
    )
    def test_patterns(self, pattern: str, spared: list[str]) -> None:
        scheme = read(modelopt("NVFP4", ignore=[pattern]))
        assert set(LINEARS) - set(stored(scheme)) == set(spared)

    @pytest.mark.parametrize(
        "block",
        [
            {**FP8, "modules_to_not_convert": [Q.removesuffix(".weight")]},
            {**FP8, "ignored_layers": ["model.layers.3.self_attn"]},
            compressed(FLOAT8, ignore=["re:.*self_attn.*"]),
            modelopt("FP8", exclude_modules=["*self_attn*"]),
            {"load_in_4bit": True, "llm_int8_skip_modules": ["q_proj"]},
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {"-:.*self_attn.*": {}},
            },
        ],
    )
    def test_each_form_has_its_own_list(self, block: dict[str, Any]) -> None:
        assert set(stored(read(block))) == {UP, SHARED, EXPERTS}

    def test_a_long_list_is_matched_by_whole_layers(self) -> None:
        patterns = Patterns.of([f"model.layers.{layer}.mlp.gate" for layer in range(60)])
        assert patterns.match(ROUTER)
        assert not patterns.match("model.layers.60.mlp.gate.weight")
        assert not patterns.match("model.layers.3.mlp.gate_proj.weight")


class TestMixed:
    def test_quantized_layers(self) -> None:
        layers = {
            Q.removesuffix(".weight"): {"quant_algo": "FP8"},
            "model.layers.3.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        }
        scheme = read(modelopt("MIXED_PRECISION", quantized_layers=layers, ignore=["mtp*"]))
        assert stored(scheme) == {Q: "float8_e4m3", EXPERTS: "nvfp4", HEAD: "nvfp4"}
        assert scheme.math_dtype(Q, SHAPES[Q]) == "float8_e4m3"
        assert scheme.math_dtype(EXPERTS, SHAPES[EXPERTS]) is None
        assert scheme.name == "fp8 (fp8 activations) + nvfp4 (weights only)"

    def test_fp8_checkpoint_with_nvfp4_experts(self) -> None:
        """The list of what NVFP4 spares says nothing of the fp8 rest."""
        layers = {"layers.3.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}
        block = {**FP8, "quantized_layers": layers, "ignore": ["*.attn.*", "head"]}
        found = stored(read(block))
        assert found == {**dict.fromkeys(LINEARS, "float8_block128"), EXPERTS: "nvfp4"}

    def test_groups_with_their_own_targets(self) -> None:
        block = {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["re:.*self_attn.*"], "weights": FLOAT8},
                "b": {"targets": ["re:.*experts.*"], "weights": INT4},
            },
        }
        expected = {Q: "float8_e4m3", EXPERTS: "int4_g32_sym", SHARED: "int4_g32_sym"}
        assert stored(read(block)) == expected

    def test_gptq_changes_by_pattern(self) -> None:
        block = {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "dynamic": {"+:.*self_attn.*": {"bits": 8, "group_size": 32}},
        }
        assert stored(read(block)) == {**dict.fromkeys(LINEARS, "int4_g128"), Q: "int8_g32"}


class TestModelOptFile:
    """hf_quant_config.json, for checkpoints whose config.json says nothing."""

    FILE: ClassVar = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ["lm_head", "model.layers.3.self_attn*"],
        },
    }

    def test_read(self) -> None:
        scheme = parse({"model_type": "llama"}, self.FILE)
        assert scheme is not None
        assert stored(scheme) == dict.fromkeys((UP, SHARED, EXPERTS), "nvfp4")
        assert scheme.kv_dtype == "float8_e4m3"
        assert scheme.name == "nvfp4 (nvfp4 activations), fp8 KV cache"

    def test_config_json_wins(self) -> None:
        scheme = parse({"quantization_config": FP8}, self.FILE)
        assert scheme is not None
        assert scheme.rules[0].weights == "float8_block128"

    def test_nothing_quantised(self) -> None:
        assert parse({}, {"quantization": {"quant_algo": None}}) is None


@pytest.mark.parametrize(
    ("block", "dtype"),
    [
        (modelopt("FP8", kv_cache_quant_algo="FP8"), "float8_e4m3"),
        (modelopt("FP8", kv_cache_scheme="FP8"), "float8_e4m3"),
        (modelopt("FP8", kv_cache_scheme={"num_bits": 8, "type": "float"}), "float8_e4m3"),
        (modelopt("FP8", kv_cache_quant_algo="NVFP4"), "nvfp4"),
        (modelopt("FP8", kv_cache_scheme={"num_bits": 8, "type": "int"}), "int8"),
        (compressed(INT4, kv_cache_scheme=None), None),
        (FP8, None),
    ],
)
def test_kv_cache(block: dict[str, Any], dtype: str | None) -> None:
    assert read(block).kv_dtype == dtype


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"quant_method": "vptq"}, ["'vptq'", "compressed-tensors"]),
        (modelopt("FP3"), ["FP3", "NVFP4"]),
        (modelopt("FP8", kv_cache_quant_algo="INT3"), ["KV cache", "INT3"]),
        (modelopt("W4A16_AWQ", group_size=7), ["groups of 7"]),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, ["3-bit", "groups of 128"]),
        ({"quant_method": "quanto", "weights": "int2"}, ["int2"]),
        ({**FP8, "weight_block_size": [7, 7]}, ["fp8 blocks of (7, 7)"]),
        (compressed({"num_bits": 6, "type": "float"}), ["6-bit float"]),
        (compressed(FLOAT8, acts={"num_bits": 3, "type": "int"}), ["activations"]),
        (compressed(INT4, sparsity_config={"format": "sparse-24-bitmask"}), ["sparse-24"]),
    ],
)
def test_unsupported_is_named(block: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read(block)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"bits": 4}, "gives no quant_method"),
        ({"quant_method": 3}, "gives no quant_method"),
        ({"quant_method": "gptq"}, "bits of the quantization config must be an integer"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 128}, "bits"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed({}), "num_bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "quantises no weights"),
        ({**FP8, "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({**FP8, "weight_block_size": 128}, "weight_block_size"),
        (modelopt("MIXED_PRECISION"), "without quantized_layers"),
        (modelopt("MIXED_PRECISION", quantized_layers=[1]), "quantized_layers"),
        (compressed(INT4, ignore=["re:(["]), "no regular expression"),
    ],
)
def test_broken_description_is_named(block: dict[str, Any], words: str) -> None:
    with pytest.raises(HymellError, match=words):
        read(block)


def test_quantization_config_that_is_no_object() -> None:
    with pytest.raises(HymellError, match="quantization_config"):
        parse({"quantization_config": "fp8"})


def gpt_oss(layers: int, experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Parameters of gpt-oss under transformers' names (20b: 24, 32; 120b: 36, 128)."""
    yield "model.embed_tokens.weight", (201088, 2880)
    yield "lm_head.weight", (201088, 2880)
    yield "model.norm.weight", (2880,)
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, rows, columns in (
            ("q_proj", 4096, 2880),
            ("k_proj", 512, 2880),
            ("v_proj", 512, 2880),
            ("o_proj", 2880, 4096),
        ):
            yield f"{path}.self_attn.{name}.weight", (rows, columns)
            yield f"{path}.self_attn.{name}.bias", (rows,)
        yield f"{path}.self_attn.sinks", (64,)
        yield f"{path}.mlp.router.weight", (experts, 2880)
        yield f"{path}.mlp.router.bias", (experts,)
        yield f"{path}.mlp.experts.gate_up_proj", (experts, 2880, 5760)
        yield f"{path}.mlp.experts.gate_up_proj_bias", (experts, 5760)
        yield f"{path}.mlp.experts.down_proj", (experts, 2880, 2880)
        yield f"{path}.mlp.experts.down_proj_bias", (experts, 2880)
        yield f"{path}.input_layernorm.weight", (2880,)
        yield f"{path}.post_attention_layernorm.weight", (2880,)


def deepseek_v3() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Parameters of DeepSeek-V3, with the multi-token-prediction layer that its checkpoint adds."""
    hidden, inner = 7168, 2048
    yield "model.embed_tokens.weight", (129280, hidden)
    yield "lm_head.weight", (129280, hidden)
    yield "model.layers.61.embed_tokens.weight", (129280, hidden)
    yield "model.layers.61.shared_head.head.weight", (129280, hidden)
    for layer in range(62):
        path = f"model.layers.{layer}"
        yield f"{path}.self_attn.q_a_proj.weight", (1536, hidden)
        yield f"{path}.self_attn.q_b_proj.weight", (128 * 192, 1536)
        yield f"{path}.self_attn.kv_a_proj_with_mqa.weight", (576, hidden)
        yield f"{path}.self_attn.kv_b_proj.weight", (128 * 256, 512)
        yield f"{path}.self_attn.o_proj.weight", (hidden, 128 * 128)
        if layer < 3:
            yield f"{path}.mlp.gate_proj.weight", (18432, hidden)
            yield f"{path}.mlp.up_proj.weight", (18432, hidden)
            yield f"{path}.mlp.down_proj.weight", (hidden, 18432)
            continue
        yield f"{path}.mlp.gate.weight", (256, hidden)
        yield f"{path}.mlp.experts.gate_up_proj", (256, 2 * inner, hidden)
        yield f"{path}.mlp.experts.down_proj", (256, hidden, inner)
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{path}.mlp.shared_experts.{name}.weight", (inner, hidden)


def total_bytes(scheme: QuantScheme, parameters: Iterator[tuple[str, tuple[int, ...]]]) -> float:
    total = 0.0
    for name, shape in parameters:
        elements = 1
        for size in shape:
            elements *= size
        total += elements * bytes_per_element(scheme.weight_dtype(name, shape) or "bfloat16")
    return total


@pytest.mark.parametrize(
    ("layers", "experts", "published"),
    # metadata.total_size of model.safetensors.index.json
    [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)],
)
def test_published_size_of_gpt_oss(layers: int, experts: int, published: int) -> None:
    spared = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    scheme = read({"quant_method": "mxfp4", "modules_to_not_convert": [*spared, "lm_head"]})
    assert total_bytes(scheme, gpt_oss(layers, experts)) == pytest.approx(published, rel=1e-3)


def test_published_size_of_deepseek_v3() -> None:
    """688,586,727,753 bytes in its model.safetensors.index.json."""
    scheme = read({**FP8, "fmt": "e4m3"})
    assert total_bytes(scheme, deepseek_v3()) == pytest.approx(688_586_727_753, rel=1e-3)
