"""What the user pointed at -> the content of a config.json. No torch, no transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hymell import hub
from hymell.errors import HymellError

Origin: TypeAlias = Literal["zoo", "file", "folder", "hub"]


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A model's config and where it came from.

    ``location`` is a path, a zoo name or a hub address; ``revision`` the hub commit that was read.
    ``auto_map`` is true when the config names Python code of its repository. ``hf_quant`` is the
    content of the hf_quant_config.json beside it, as NVIDIA ModelOpt writes one. ``notes`` are
    sentences for the report.
    """

    name: str
    config: dict[str, Any]
    origin: Origin
    location: str
    revision: str | None = None
    auto_map: bool = False
    hf_quant: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def resolve(source: str | os.PathLike[str], *, revision: str | None = None) -> ConfigSource:
    """The config behind a path, a zoo name or a hub id.

    Tried in this order: an existing folder (with its config.json) or JSON file; a zoo model,
    unless a revision is asked for; the Hugging Face hub. ``name@revision`` means the same as
    ``revision``. Only the hub touches the network, and only for config.json and
    hf_quant_config.json. Raises HymellError with one sentence for everything that goes wrong.
    """
    text = os.fspath(source)
    if not text.strip():
        raise HymellError(
            "no model was given; name a Hugging Face id, a config.json, a folder or one of the "
            "models that `hymell models` lists"
        )
    path = _existing(text)
    if path is not None:
        if revision is not None:
            raise HymellError(f"{text} is local and has no revisions; leave the revision out")
        return _from_folder(path) if path.is_dir() else _from_file(path)
    if not isinstance(source, str) or _looks_like_a_path(text):
        raise HymellError(f"{text} does not exist; give an existing folder or config.json")
    name, revision = _split_revision(text, revision)
    if revision is None:
        return _from_zoo(name) or _from_hub(name, None)
    return _from_hub(_hub_id(name), revision)


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, an unknown ~user
        return None


def _looks_like_a_path(text: str) -> bool:
    starts = ("/", "./", "../", "~", ".\\", "..\\")
    return (
        text.startswith(starts)
        or text in (".", "..")
        or text.count("/") > 1
        or text.endswith(("/", ".json", ".gguf", ".safetensors"))
    )


def _split_revision(text: str, revision: str | None) -> tuple[str, str | None]:
    name, at, inline = text.partition("@")
    if not at:
        return text, revision
    if not name or not inline:
        raise HymellError(f"{text!r} is not a model; write it as name@revision")
    if revision is not None and revision != inline:
        raise HymellError(f"{text} and revision {revision!r} contradict each other; give one")
    return name, inline


def _from_folder(folder: Path) -> ConfigSource:
    file = folder / hub.CONFIG
    if not file.exists():
        kind = hub.kind_of(_names_in(folder))
        what = f"it holds {kind}" if kind else "give a folder that holds a model, or a hub id"
        raise HymellError(f"the folder {folder} has no config.json: {what}")
    return _local(file, folder.resolve().name, "folder", folder)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise HymellError(f"{folder} cannot be read: {error.strerror or error}") from None


def _from_file(file: Path) -> ConfigSource:
    if file.suffix in (".gguf", ".safetensors", ".bin", ".pt", ".pth"):
        raise HymellError(f"{file} holds weights; give the model's config.json or its hub id")
    stem = file.stem.removesuffix("config").rstrip("_-.")
    return _local(file, stem or file.resolve().parent.name, "file", file)


def _local(file: Path, name: str, origin: Origin, location: Path) -> ConfigSource:
    config = _model_config(_read_object(file, str(file)), str(file))
    beside = file.with_name(hub.QUANT_CONFIG)
    return ConfigSource(
        name=name,
        config=config,
        origin=origin,
        location=str(location.resolve()),
        auto_map=_names_code(config),
        hf_quant=_read_object(beside, str(beside)) if beside.is_file() else None,
    )


def _from_zoo(name: str) -> ConfigSource | None:
    from hymell import zoo

    model = zoo.find(name)
    if model is None:
        return None
    return ConfigSource(name=name, config=dict(model.config), origin="zoo", location=model.name)


def _hub_id(name: str) -> str:
    """The hub id that a short name of the zoo stands for: the first of its ids."""
    from hymell import zoo

    model = None if "/" in name else zoo.find(name)
    return name if model is None else next((i for i in model.ids if "/" in i), name)


def _from_hub(repo_id: str, revision: str | None) -> ConfigSource:
    found = hub.fetch_config(repo_id, revision)
    label = f"config.json of {repo_id}"
    config = _model_config(_read_object(found.path, label), label)
    quant = None
    if not _quantization_is_inside(config):
        beside = hub.fetch_beside(repo_id, hub.QUANT_CONFIG, found.commit)
        quant = _read_object(beside, f"{hub.QUANT_CONFIG} of {repo_id}") if beside else None
    return ConfigSource(
        name=repo_id,
        config=config,
        origin="hub",
        location=f"{hub.endpoint()}/{repo_id}",
        revision=found.commit,
        auto_map=_names_code(config),
        hf_quant=quant,
        notes=found.notes,
    )


def _read_object(file: Path, label: str) -> dict[str, Any]:
    """The JSON object in a file; ``label`` names it in errors."""
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise HymellError(f"{label} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        detail = str(error).splitlines()[0]
        raise HymellError(
            f"{label} is not valid JSON ({detail}); it may be cut short: fetch it again"
        ) from None
    if not isinstance(content, dict):
        found = type(content).__name__
        raise HymellError(f"{label} must hold a JSON object, but holds a {found}")
    return content


def _model_config(config: dict[str, Any], label: str) -> dict[str, Any]:
    """The config, once it is certain that it describes a transformers model."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type:
        return config
    if "peft_type" in config:
        base = config.get("base_model_name_or_path") or "its base model"
        raise HymellError(f"{label} describes an adapter; give the base model instead: {base}")
    if "_class_name" in config:
        raise HymellError(
            f"{label} describes a diffusers {config['_class_name']}, which hymell does not cover"
        )
    state = "lacks the field" if model_type is None else f"has {model_type!r} in the field"
    raise HymellError(
        f'{label} {state} \'model_type\'; add it, as in {{"model_type": "llama", ...}}'
    )


def _names_code(config: Mapping[str, Any]) -> bool:
    return bool(config.get("auto_map"))


def _quantization_is_inside(config: Mapping[str, Any]) -> bool:
    """True when config.json itself says how the weights are stored."""
    nested = (value for value in config.values() if isinstance(value, Mapping))
    return any(part.get("quantization_config") for part in (config, *nested))
