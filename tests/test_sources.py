"""From what the user typed to a config: paths, zoo names, hub ids, and everything that fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_stand_in import HubStandIn

import hymell.zoo
from hymell import sources
from hymell.errors import HymellError

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
QUANT = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}


@pytest.fixture(autouse=True)
def zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo of one model, so that these tests depend on no other's contents."""
    model = SimpleNamespace(name="known", ids=("known", "known/model"), config=LLAMA)
    models = {"known/model": model, "known": model}
    monkeypatch.setattr(hymell.zoo, "find", models.get)
    monkeypatch.setattr(
        hymell.zoo,
        "suggest",
        lambda name: ["known/model"] if name.startswith("known") else [],
    )


def fails(source: str | os.PathLike[str], revision: str | None = None) -> str:
    """The one-line message that resolving must fail with."""
    with pytest.raises(HymellError) as caught:
        sources.resolve(source, revision=revision)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


class TestLocal:
    def test_folder(self, tmp_path: Path) -> None:
        write(tmp_path / "config.json", LLAMA)
        for source in (tmp_path, str(tmp_path)):
            found = sources.resolve(source)
            assert found.config == LLAMA
            assert (found.origin, found.name, found.hf_quant) == ("folder", tmp_path.name, None)

    def test_file_with_any_name(self, tmp_path: Path) -> None:
        found = sources.resolve(write(tmp_path / "org--model_config.json", LLAMA))
        assert (found.origin, found.name) == ("file", "org--model")

    def test_config_json_is_named_after_its_folder(self, tmp_path: Path) -> None:
        assert sources.resolve(write(tmp_path / "config.json", LLAMA)).name == tmp_path.name

    def test_quantization_beside_the_config(self, tmp_path: Path) -> None:
        write(tmp_path / "hf_quant_config.json", QUANT)
        config = write(tmp_path / "config.json", LLAMA)
        assert sources.resolve(tmp_path).hf_quant == QUANT
        assert sources.resolve(config).hf_quant == QUANT

    def test_auto_map_is_seen(self, tmp_path: Path) -> None:
        config = write(tmp_path / "config.json", {**LLAMA, "auto_map": {"AutoConfig": "c.C"}})
        assert sources.resolve(config).auto_map

    def test_a_path_wins_over_the_zoo(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "known" / "model").mkdir(parents=True)
        write(tmp_path / "known" / "model" / "config.json", {"model_type": "gpt2"})
        assert sources.resolve("known/model").config == {"model_type": "gpt2"}

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ('{"model_type": "llama", "hidden', ["not valid JSON", "cut short"]),
            ("", ["not valid JSON"]),
            ("[" * 100_000, ["not valid JSON"]),
            ("[1, 2]", ["must hold a JSON object", "list"]),
            ('{"hidden_size": 64}', ["lacks the field 'model_type'"]),
            ('{"model_type": 3}', ["has 3 in the field 'model_type'"]),
            ('{"peft_type": "LORA", "base_model_name_or_path": "a/b"}', ["adapter", "a/b"]),
            ('{"_class_name": "UNet2DConditionModel"}', ["diffusers UNet2DConditionModel"]),
        ],
    )
    def test_broken_config(self, tmp_path: Path, content: str, words: list[str]) -> None:
        message = fails(write(tmp_path / "config.json", content))
        for word in [*words, "config.json"]:
            assert word in message

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\x01\xff")
        assert "not valid JSON" in fails(tmp_path)

    def test_broken_quantization_file_names_itself(self, tmp_path: Path) -> None:
        write(tmp_path / "config.json", LLAMA)
        write(tmp_path / "hf_quant_config.json", "[]")
        assert "hf_quant_config.json must hold a JSON object" in fails(tmp_path)

    @pytest.mark.parametrize(
        ("filename", "words"),
        [
            ("adapter_config.json", "an adapter"),
            ("model_index.json", "a diffusers pipeline"),
            ("model-Q4_K_M.gguf", "GGUF weights"),
            ("params.json", "maker's own format"),
            ("readme.md", "give a folder that holds a model"),
        ],
    )
    def test_folder_without_config(self, tmp_path: Path, filename: str, words: str) -> None:
        write(tmp_path / filename, "{}")
        message = fails(tmp_path)
        assert "has no config.json" in message
        assert words in message

    def test_weight_file(self, tmp_path: Path) -> None:
        assert "holds weights" in fails(write(tmp_path / "model.gguf", "GGUF"))

    @pytest.mark.parametrize(
        "path",
        ["/no/such/folder", "./nothing", "~/nothing-here", "~nobody-xyz", "a/b/c", "x.json", "d/"],
    )
    def test_missing_path(self, path: str) -> None:
        assert f"{path} does not exist" in fails(path)

    def test_missing_path_object(self) -> None:
        assert "org/name does not exist" in fails(Path("org/name"))

    @pytest.mark.parametrize("nothing", ["", "   ", "\n"])
    def test_nothing(self, nothing: str) -> None:
        assert "no model was given" in fails(nothing)

    def test_local_has_no_revision(self, tmp_path: Path) -> None:
        write(tmp_path / "config.json", LLAMA)
        assert "has no revisions" in fails(tmp_path, "main")


class TestZoo:
    def test_found(self) -> None:
        found = sources.resolve("known/model")
        assert (found.config, found.origin, found.revision) == (LLAMA, "zoo", None)

    def test_config_is_a_copy(self) -> None:
        sources.resolve("known/model").config["hidden_size"] = 0
        assert sources.resolve("known/model").config == LLAMA

    def test_opens_no_socket(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket.socket, "connect", _no_network)
        monkeypatch.setattr(socket, "getaddrinfo", _no_network)
        assert sources.resolve("known/model").origin == "zoo"

    def test_revision_goes_to_the_hub(self, hub: HubStandIn) -> None:
        commit = hub.publish("known/model", {"config.json": {"model_type": "gpt2"}})
        for found in (
            sources.resolve("known/model", revision="main"),
            sources.resolve("known/model@main"),
            sources.resolve("known/model@main", revision="main"),
            sources.resolve("known@main"),
        ):
            assert (found.origin, found.revision) == ("hub", commit)
            assert found.config == {"model_type": "gpt2"}

    @pytest.mark.parametrize("text", ["known/model@", "@main", "@"])
    def test_half_a_revision(self, text: str) -> None:
        assert "name@revision" in fails(text)

    def test_two_revisions(self) -> None:
        assert "contradict" in fails("known/model@a", "b")


def _no_network(*args: object, **kwargs: object) -> None:
    raise AssertionError("the network was used")


class TestHub:
    def test_config_and_nothing_else(self, hub: HubStandIn) -> None:
        commit = hub.publish("org/m", {"config.json": LLAMA, "model.safetensors": b"0" * 999})
        found = sources.resolve("org/m")
        assert found.config == LLAMA
        assert (found.origin, found.revision, found.hf_quant) == ("hub", commit, None)
        assert found.location == f"{hub.url}/org/m"
        assert not any("safetensors" in request.path for request in hub.requests)

    def test_quantization_beside_the_config(self, hub: HubStandIn) -> None:
        hub.publish("org/m", {"config.json": LLAMA, "hf_quant_config.json": QUANT})
        assert sources.resolve("org/m").hf_quant == QUANT

    def test_quantization_inside_is_enough(self, hub: HubStandIn) -> None:
        quantised = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
        hub.publish("org/m", {"config.json": quantised, "hf_quant_config.json": QUANT})
        assert sources.resolve("org/m").hf_quant is None
        assert not any("hf_quant" in request.path for request in hub.requests)

    def test_second_run_only_checks_freshness(self, hub: HubStandIn) -> None:
        hub.publish("org/m", {"config.json": LLAMA})
        sources.resolve("org/m")
        hub.requests.clear()
        sources.resolve("org/m")
        assert {request.method for request in hub.requests} == {"HEAD"}
        assert {request.path for request in hub.requests} == {"/org/m/resolve/main/config.json"}

    def test_new_commit_is_seen(self, hub: HubStandIn) -> None:
        hub.publish("org/m", {"config.json": LLAMA})
        sources.resolve("org/m")
        commit = hub.publish("org/m", {"config.json": {"model_type": "gpt2"}})
        assert sources.resolve("org/m").config == {"model_type": "gpt2"}
        assert sources.resolve("org/m").revision == commit

    def test_cached_commit_asks_nobody(self, hub: HubStandIn) -> None:
        commit = hub.publish("org/m", {"config.json": LLAMA})
        sources.resolve("org/m", revision=commit)
        hub.requests.clear()
        assert sources.resolve("org/m", revision=commit).config == LLAMA
        assert hub.requests == []

    def test_token_is_sent(self, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.publish("org/m", {"config.json": LLAMA})
        sources.resolve("org/m")
        assert {request.token for request in hub.requests} == {"Bearer hf_secret"}

    @pytest.mark.parametrize("failure", ["stall", "rate_limited", "server_error", "closed"])
    def test_cache_serves_when_the_hub_does_not(
        self, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, failure: str
    ) -> None:
        hub.publish("org/m", {"config.json": LLAMA, "hf_quant_config.json": QUANT})
        sources.resolve("org/m")
        _break(hub, "org/m", failure, monkeypatch)
        found = sources.resolve("org/m")
        assert (found.config, found.hf_quant) == (LLAMA, QUANT)
        assert len(found.notes) == 1
        assert "used the copy in the Hugging Face cache" in found.notes[0]

    @pytest.mark.parametrize("failure", ["missing", "gated", "forbidden"])
    def test_cache_does_not_hide_a_refusal(self, hub: HubStandIn, failure: str) -> None:
        hub.publish("org/m", {"config.json": LLAMA})
        sources.resolve("org/m")
        hub.fail("org/m", failure)
        assert "org/m" in fails("org/m")

    @pytest.mark.parametrize(
        ("failure", "words"),
        [
            ("missing", ["is not on", "check the spelling", "HF_TOKEN"]),
            ("missing_or_private", ["is not on", "private", "HF_TOKEN"]),
            ("gated", ["gated", "accept its licence", "HF_TOKEN"]),
            ("gated_without_token", ["gated", "accept its licence", "HF_TOKEN"]),
            ("bad_token", ["token was refused", "HF_TOKEN"]),
            ("forbidden", ["status 403", "access was refused"]),
            ("disabled", ["disabled by the hub"]),
            ("rate_limited", ["rate limiting", "retry later", "HF_TOKEN"]),
            ("server_error", ["status 503", "local config.json"]),
            ("not_a_hub", ["does not answer like a Hugging Face hub", "HF_ENDPOINT"]),
            ("stall", ["did not answer in time", "local config.json"]),
            ("closed", ["no connection to", "check the network"]),
        ],
    )
    def test_failures(
        self, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, failure: str, words: list[str]
    ) -> None:
        _break(hub, "org/m", failure, monkeypatch)
        message = fails("org/m")
        for word in [*words, "org/m", hub.url if failure != "disabled" else ""]:
            if not (failure == "bad_token" and word == hub.url):
                assert word in message
        assert len(hub.requests) <= 1, "a hub that fails is asked once"

    def test_unknown_id_gets_suggestions(self, hub: HubStandIn) -> None:
        assert "did you mean known/model?" in fails("known/modle")

    def test_unknown_revision(self, hub: HubStandIn) -> None:
        hub.publish("org/m", {"config.json": LLAMA})
        assert "org/m has no revision 'v9'" in fails("org/m@v9")

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            (["adapter_config.json", "adapter_model.safetensors"], "an adapter"),
            (["model_index.json", "unet/config.json"], "a diffusers pipeline"),
            (["m-Q4_K_M.gguf"], "GGUF weights"),
            (["README.md"], "give a model that transformers can load"),
        ],
    )
    def test_repository_without_config(self, hub: HubStandIn, files: list[str], words: str) -> None:
        hub.publish("org/m", dict.fromkeys(files, b"x"))
        message = fails("org/m")
        assert "org/m has no config.json" in message
        assert words in message

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b'{"model_type": "lla', "not valid JSON"),
            (b"<html>", "not valid JSON"),
            (b"[]", "must hold a JSON object"),
            (b"{}", "lacks the field 'model_type'"),
        ],
    )
    def test_broken_config(self, hub: HubStandIn, content: bytes, words: str) -> None:
        hub.publish("org/m", {"config.json": content})
        message = fails("org/m")
        assert words in message
        assert "config.json of org/m" in message

    @pytest.mark.parametrize(
        "name", ["org/na me", "-x", "org/a..b", "org/m.git", "ключ", "x" * 200, "x" * 9999, "a\0b"]
    )
    def test_invalid_id(self, hub: HubStandIn, name: str) -> None:
        assert "valid hub id" in fails(name)
        assert hub.requests == []


def _break(hub: HubStandIn, repo: str, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    if failure == "closed":
        hub.close()
    else:
        hub.fail(repo, failure)


class TestOffline:
    @pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
    def test_cached_id_needs_no_network(
        self, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        commit = hub.publish("org/m", {"config.json": LLAMA, "hf_quant_config.json": QUANT})
        online = sources.resolve("org/m")
        monkeypatch.setenv(variable, "1")
        monkeypatch.setattr(socket.socket, "connect", _no_network)
        for revision in (None, "main", commit):
            assert sources.resolve("org/m", revision=revision) == online

    def test_id_that_is_not_cached(self, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(socket.socket, "connect", _no_network)
        message = fails("org/m")
        assert "org/m is not in the Hugging Face cache" in message
        assert "HF_HUB_OFFLINE" in message

    def test_environment_of_a_process(self, hub: HubStandIn, tmp_path: Path) -> None:
        """HF_HOME and HF_ENDPOINT count as the shell sets them; a second, offline run works."""
        hub.publish("org/m", {"config.json": LLAMA})
        code = "from hymell.sources import resolve; print(resolve('org/m').origin)"
        environment = {
            **os.environ,
            "HF_HOME": str(tmp_path / "home"),
            "HF_ENDPOINT": hub.url,
        }
        environment.pop("HF_HUB_CACHE", None)
        for offline in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", code],
                env={**environment, "HF_HUB_OFFLINE": offline},
                capture_output=True,
                text=True,
                check=True,
            )
            assert (done.stdout, done.stderr) == ("hub\n", "")
        assert (tmp_path / "home" / "hub" / "models--org--m").is_dir()


def test_no_heavy_imports(tmp_path: Path) -> None:
    """A local config is read without torch, transformers or huggingface_hub."""
    write(tmp_path / "config.json", LLAMA)
    code = (
        "import sys; from hymell.sources import resolve; resolve(sys.argv[1]);"
        "print({'torch', 'transformers', 'huggingface_hub', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
