"""The zoo's configs: they build, they count what is published, and index, files and docs agree."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hymell import zoo
from hymell.zoo import ZooModel, models

DOCS = Path(__file__).parent.parent / "docs" / "models.md"
MODELS = {model.name: model for model in zoo.list_models()}

#: Published totals (billions) that the zoo must show, from papers, cards and checkpoints.
TOTALS = {
    "meta-llama/Meta-Llama-3-8B": 8.030,
    "meta-llama/Meta-Llama-3-70B": 70.55,
    "meta-llama/Llama-3.1-405B": 405.85,
    "mistralai/Mistral-7B-v0.1": 7.242,
    "mistralai/Mixtral-8x7B-v0.1": 46.70,
    "deepseek-ai/DeepSeek-V3": 671.03,
    "Qwen/Qwen3-0.6B": 0.5960,
    "Qwen/Qwen3-30B-A3B": 30.53,
    "Qwen/Qwen1.5-MoE-A2.7B": 14.32,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.67,
    "openai/gpt-oss-20b": 20.91,
    "MiniMaxAI/MiniMax-Text-01-hf": 456.1,
}
#: Parameters per token (billions), from the same sources.
ACTIVE = {
    "mistralai/Mixtral-8x7B-v0.1": 12.88,
    "Qwen/Qwen3-30B-A3B": 3.35,
    "deepseek-ai/DeepSeek-V3": 37.55,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 17.17,
}
#: What the model card says where no total is published to three digits.
ROUNDED = {
    "dolly-v2-12b": 12_000_000_000,
    "kimi-k2.5": 1_000_000_000_000,
    "redpajama-incite-7b": 6_900_000_000,
    "xgen-7b-8k": 7_000_000_000,
}
#: The published class name -> transformers' own, where they differ.
RENAMED = {"KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration"}

#: Models with published end-to-end latency or energy (ML.ENERGY, Splitwise, Argonne, Wilkins, ...).
MEASURED_BY_OTHERS = (
    "bloom-7b1",
    "codellama-34b",
    "deepseek-ai/DeepSeek-R1-0528",
    "deepseek-ai/DeepSeek-V3.1",
    "falcon-40b",
    "google/gemma-3-27b-it",
    "gpt-j-6b",
    "llama-2-70b",
    "meta-llama/Llama-3.1-405B-Instruct-FP8",
    "meta-llama/Llama-3.3-70B-Instruct",
    "mistral-7b",
    "mistral-large-123b",
    "moonshotai/Kimi-K2.5",
    "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
    "openai/gpt-oss-120b",
    "opt-6.7b",
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "Qwen/Qwen3.5-397B-A17B",
    "qwen1.5-7b",
    "qwen2-7b",
)

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
OUTSIDE_THE_LANGUAGE_MODEL = re.compile(r"vision|visual|projector|projection")

#: Keys of published configs that say nothing about the shape, or that name code or files.
NOT_SHAPE = re.compile(
    r"_name_or_path|auto_map|transformers_version|(?!bos|eos).*_token_id|.*_token_index|use_cache"
    r"|initializer_.*|.*dropout.*|.*aux_loss.*|pretraining_tp|id2label|label2id|.*_eps|.*epsilon"
)


@pytest.fixture(scope="module", autouse=True)
def _quiet_transformers() -> None:
    import transformers

    transformers.logging.set_verbosity_error()


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    nested = [value for key, value in config.items() if key.endswith("_config")]
    return [config, *(part for value in nested for part in _parts(value))]


def _text(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


def _counts(config: dict[str, Any]) -> tuple[int, int]:
    """All parameters, tied ones once, and those that one text token meets, from a meta model."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    config_class = transformers.CONFIG_MAPPING[config["model_type"]]
    architecture = config["architectures"][0]
    model_class = getattr(transformers, RENAMED.get(architecture, architecture))
    with torch.device("meta"), no_init_weights():
        model = model_class(config_class.from_dict(config))
    model.tie_weights()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    text = _text(config)
    experts = next((text[key] for key in EXPERTS if text.get(key)), 1)
    chosen = text.get("num_experts_per_tok", 1) if experts > 1 else 1
    active = 0
    for name, size in sizes.items():
        if not OUTSIDE_THE_LANGUAGE_MODEL.search(name):
            active += size * chosen // experts if ".experts." in name else size
    return sum(sizes.values()), active


def _half_a_digit(count: int) -> float:
    """Half a unit of the last digit given, three digits at most; 1e-4 of a total given in full."""
    digits = len(str(count).rstrip("0"))
    if digits > 4:
        return count * 1e-4
    return 0.5 * 10 ** (math.floor(math.log10(count)) + 1 - min(digits, 3))


@pytest.mark.parametrize("name", MODELS)
def test_the_model_counts_what_is_published(name: str) -> None:
    model = MODELS[name]
    published = ROUNDED[name] if model.parameters is None else model.parameters
    total, active = _counts(model.config)
    assert total == pytest.approx(published, abs=_half_a_digit(published), rel=0)
    if model.active_parameters is None:
        assert not any(_text(model.config).get(key) for key in EXPERTS)
    else:
        assert active == pytest.approx(model.active_parameters, rel=1e-6)
        assert active < total


def test_only_the_known_few_have_no_published_total() -> None:
    assert {name for name, model in MODELS.items() if model.parameters is None} == set(ROUNDED)


@pytest.mark.parametrize(("model_id", "billions"), TOTALS.items())
def test_totals_as_published(model_id: str, billions: float) -> None:
    model = zoo.find(model_id)
    assert model is not None
    assert model.parameters is not None
    assert f"{model.parameters / 1e9:.4g}" == f"{billions:.4g}"


@pytest.mark.parametrize(("model_id", "billions"), ACTIVE.items())
def test_active_parameters_as_published(model_id: str, billions: float) -> None:
    model = zoo.find(model_id)
    assert model is not None
    assert model.active_parameters is not None
    assert model.active_parameters / 1e9 == pytest.approx(billions, abs=5e-3)


def test_index_and_files_agree() -> None:
    index = json.loads(models.INDEX.read_text(encoding="utf-8"))
    files = {file.stem for file in models.CONFIGS.glob("*.json")} - {models.INDEX.stem}
    assert files == set(index)
    assert index == models.index_of(MODELS.values()), "see docs/models.md on how to write the index"


@pytest.mark.parametrize("file", sorted(models.CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_files_have_one_form(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_configs_hold_only_what_shapes_the_model(model: ZooModel) -> None:
    keys = {key for part in _parts(model.config) for key in part}
    assert not {key for key in keys if NOT_SHAPE.fullmatch(key)}
    assert len(model.config["architectures"]) == 1
    assert model.config["model_type"]
    assert model.source


def test_every_name_leads_to_its_own_model() -> None:
    names = [
        (spelling, model.name) for model in MODELS.values() for spelling in (model.name, *model.ids)
    ]
    assert len({spelling.lower() for spelling, _ in names}) == len(names)
    for spelling, name in names:
        for asked in (spelling, spelling.upper(), f" {spelling.lower()}"):
            found = zoo.find(asked)
            assert found is not None
            assert found.name == name


@pytest.mark.parametrize("name", ["", "llama", "meta-llama/Llama-9-8B", "../index", "index"])
def test_unknown_names_are_not_guessed(name: str) -> None:
    assert zoo.find(name) is None


@pytest.mark.parametrize("name", MEASURED_BY_OTHERS)
def test_models_that_others_measured_are_known(name: str) -> None:
    assert zoo.find(name) is not None


def test_a_changed_config_does_not_leak() -> None:
    first = zoo.find("gpt2")
    assert first is not None
    first.config["n_layer"] = 1
    second = zoo.find("gpt2")
    assert second is not None
    assert second.config["n_layer"] == 12


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("meta-llama/Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
        ("mixtral-8x7", "mixtral-8x7b"),
        ("qwen/qwen3-30b", "qwen3-30b-a3b"),
        ("openai/gtp-oss-20b", "openai/gpt-oss-20b"),
    ],
)
def test_typos_get_suggestions(typed: str, meant: str) -> None:
    assert meant in zoo.suggest(typed)
    assert len(zoo.suggest(typed)) <= 5


def test_nothing_is_suggested_for_nonsense() -> None:
    assert zoo.suggest("") == []
    assert zoo.suggest("@@@@@@@@") == []


@pytest.mark.parametrize(
    ("name", "kind", "layers"),
    [
        ("gemma-2-9b", "sliding_attention", 21),
        ("gemma-3-27b", "full_attention", 10),
        ("command-r7b", "full_attention", 8),
        ("gpt-oss-120b", "sliding_attention", 18),
        ("qwen3-next-80b-a3b", "linear_attention", 36),
        ("qwen3.5-35b-a3b", "full_attention", 10),
        ("minimax-text-01", "linear_attention", 70),
        ("llama-4-scout", "chunked_attention", 36),
        ("nemotron-nano-9b-v2", "full_attention", 4),
        ("granite-4.0-h-small", "linear_attention", 36),
    ],
)
def test_layer_kinds_survive_the_config_class(name: str, kind: str, layers: int) -> None:
    import transformers

    config = MODELS[name].config
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    assert list(built.get_text_config().layer_types).count(kind) == layers


def test_the_table_of_the_docs_is_the_data() -> None:
    table = models.markdown_table(MODELS.values())
    assert table in DOCS.read_text(encoding="utf-8"), "see docs/models.md on how to write the table"
    assert f"{len(MODELS)} configs" in DOCS.read_text(encoding="utf-8")


def test_a_lookup_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from hymell import zoo; assert zoo.find('llama-3-8b'); zoo.suggest('lama');"
        "assert not {'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
