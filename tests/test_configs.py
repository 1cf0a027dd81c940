"""From a config's content to a transformers config: what is refused, and that no code runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hymell.errors import HymellError
from hymell.sources import ConfigSource, resolve
from hymell.tracer.configs import to_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_key_value_heads": 4}


def source(config: dict[str, Any], **fields: Any) -> ConfigSource:
    return ConfigSource(name="m", config=config, origin="file", location="m.json", **fields)


def fails(config: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(HymellError) as caught:
        to_config(source(config, **fields))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("m: ")
    assert len(message) < 500
    return message


def test_known_class() -> None:
    config = to_config(source(LLAMA))
    assert (type(config).__name__, config.hidden_size) == ("LlamaConfig", 64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({"hidden_size": -64}, ["hidden_size is -64"]),
        ({"hidden_size": 0}, ["hidden_size is 0"]),
        ({"hidden_size": None}, ["gives no hidden_size"]),
        ({"hidden_size": [64]}, ["hidden_size", "list"]),
        ({"num_hidden_layers": 2.5}, ["num_hidden_layers", "2.5"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000"]),
        ({"num_hidden_layers": None}, ["gives no num_hidden_layers"]),
        ({"vocab_size": 10**12}, ["vocab_size is 1000000000000"]),
        ({"num_attention_heads": 0}, ["num_attention_heads is 0"]),
        ({"num_attention_heads": 5}, ["attention heads (5)"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads 3", "num_attention_heads 4"]),
        ({"num_key_value_heads": "2"}, ["num_key_value_heads", "'2'"]),
        ({"head_dim": 0}, ["head_dim is 0"]),
        ({"max_position_embeddings": -5}, ["max_position_embeddings is -5"]),
        ({"rms_norm_eps": "tiny"}, ["rms_norm_eps", "'tiny'"]),
        ({"rope_scaling": 3}, ["rope_parameters", "3"]),
        ({"dtype": "floaty"}, ["dtype is 'floaty'", "bfloat16"]),
        ({"torch_dtype": 3}, ["torch_dtype is 3"]),
        ({"hidden_act": "nope"}, ["hidden_act 'nope'"]),
        ({"architectures": 5}, ["architectures"]),
        ({"layer_types": ["full_attention"]}, ["num_hidden_layers", "layer_types"]),
    ],
)
def test_a_field_that_cannot_be(change: dict[str, Any], words: list[str]) -> None:
    message = fails({**LLAMA, **change})
    for word in words:
        assert word in message


def test_more_experts_chosen_than_there_are() -> None:
    message = fails({**MIXTRAL, "num_local_experts": 2, "num_experts_per_tok": 4})
    assert "num_experts_per_tok is 4, more than the 2 experts" in message


def test_heads_need_not_divide_when_their_size_is_given() -> None:
    config = {**MIXTRAL, "num_attention_heads": 5, "num_key_value_heads": 5}
    assert "num_attention_heads 5 does not divide hidden_size 64" in fails(config)
    assert to_config(source({**config, "head_dim": 16})).num_attention_heads == 5


def test_nested_fields_are_named_with_their_part() -> None:
    nested = {"model_type": "llava", "text_config": {**LLAMA, "hidden_size": "64"}}
    assert "text_config.hidden_size" in fails(nested)


@pytest.mark.parametrize(
    ("model_type", "missing"),
    [("llama", "hidden_size"), ("t5", "hidden_size"), ("llava", "text_config or vision_config")],
)
def test_a_config_without_any_size(model_type: str, missing: str) -> None:
    assert f"gives no {missing}" in fails({"model_type": model_type})


class TestUnknownType:
    CONFIG: ClassVar = {**LLAMA, "model_type": "llama_of_tomorrow"}

    def test_says_which_and_what_helps(self) -> None:
        import transformers

        message = fails(self.CONFIG)
        assert f"transformers {transformers.__version__}" in message
        assert "'llama_of_tomorrow'" in message
        assert "upgrade transformers" in message
        assert "--trust-remote-code" not in message

    def test_a_typo_gets_a_hint(self) -> None:
        assert "it knows llama" in fails({**LLAMA, "model_type": "lama"})

    def test_remote_code_is_named_as_a_way(self) -> None:
        assert "--trust-remote-code" in fails(self.CONFIG, auto_map=True)


def test_nested_unknown_type() -> None:
    message = fails({"model_type": "llava", "text_config": {"model_type": "zzz"}})
    assert "zzz" in message


CODE = """
from pathlib import Path
from transformers import PretrainedConfig

Path({mark!r}).touch()


class MyConfig(PretrainedConfig):
    model_type = "mine"
"""


class TestRemoteCode:
    """A folder whose config names Python code; the code leaves a mark when it runs."""

    @pytest.fixture(autouse=True)
    def modules_in_tmp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import dynamic_module_utils
        from transformers.utils import hub

        modules = str(tmp_path / "modules")
        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", modules)
        monkeypatch.setattr(hub, "HF_MODULES_CACHE", modules)

    def _folder(self, tmp_path: Path, model_type: str) -> tuple[Path, Path]:
        folder, mark = tmp_path / "model", tmp_path / "mark"
        folder.mkdir()
        auto_map = {"AutoConfig": "my_code.MyConfig"}
        config = {**LLAMA, "model_type": model_type, "auto_map": auto_map}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "my_code.py").write_text(CODE.format(mark=str(mark)))
        return folder, mark

    @pytest.fixture
    def no_questions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ask(*args: object) -> str:
            raise AssertionError("something asked on the terminal")

        monkeypatch.setattr("builtins.input", ask)

    @pytest.mark.usefixtures("no_questions")
    def test_known_type_uses_the_built_in_class(self, tmp_path: Path) -> None:
        folder, mark = self._folder(tmp_path, "llama")
        config = to_config(resolve(folder))
        assert type(config).__module__.startswith("transformers.models.llama")
        assert getattr(config, "auto_map", None) is None, "AutoModel would ask or run it"
        assert not mark.exists()

    @pytest.mark.usefixtures("no_questions")
    def test_unknown_type_is_refused(self, tmp_path: Path) -> None:
        folder, mark = self._folder(tmp_path, "mine")
        with pytest.raises(HymellError, match="--trust-remote-code"):
            to_config(resolve(folder))
        assert not mark.exists()

    def test_trusted_code_runs(self, tmp_path: Path) -> None:
        folder, mark = self._folder(tmp_path, "mine")
        for source in (folder, folder / "config.json"):
            config = to_config(resolve(source), trust_remote_code=True)
            assert type(config).__name__ == "MyConfig"
        assert mark.exists()

    def test_trusted_code_that_fails(self, tmp_path: Path) -> None:
        folder, _ = self._folder(tmp_path, "mine")
        (folder / "my_code.py").write_text("raise RuntimeError('broken by its author')")
        with pytest.raises(HymellError, match="its own config code fails"):
            to_config(resolve(folder), trust_remote_code=True)

    def test_trusted_file_without_its_folder(self, tmp_path: Path) -> None:
        folder, _ = self._folder(tmp_path, "mine")
        moved = (folder / "config.json").rename(tmp_path / "mine.json")
        with pytest.raises(HymellError, match="needs the folder"):
            to_config(resolve(moved), trust_remote_code=True)


def test_a_config_cannot_choose_kernels_from_the_hub() -> None:
    config = to_config(source({**LLAMA, "_attn_implementation": "kernels-community/x"}))
    assert config._attn_implementation is None


def test_infinity_as_transformers_saves_it() -> None:
    limit = [0.0, {"__float__": "Infinity"}]
    mamba = {
        "model_type": "mamba2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_heads": 2,
        "head_dim": 64,
    }
    assert to_config(source({**mamba, "time_step_limit": limit})).time_step_limit[1] == math.inf


def test_quantization_config_is_no_obstacle() -> None:
    quantised = {**LLAMA, "quantization_config": {"quant_method": "some_future_method"}}
    assert to_config(source(quantised)).hidden_size == 64


def test_the_source_is_left_as_it_was() -> None:
    config = {**LLAMA, "auto_map": {"AutoConfig": "a.B"}}
    before = json.dumps(config)
    to_config(source(config))
    assert json.dumps(config) == before
