"""A config's content -> a transformers config object, with every contradiction said by name.

Code of a model repository never runs here unless ``trust_remote_code`` is given, and nothing asks
on the terminal: the fields by which transformers would do either are dropped first.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymell.errors import HymellError
from hymell.sources import ConfigSource

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: How the names end under which published configs give a model's width and depth. Without them
#: a class falls back to the size of its first model, which is never what the user meant.
_WIDTH_ENDS = ("hidden_size", "hidden_sizes", "_model", "_embd", "_dim", "embed_dim", "width")
_DEPTH_ENDS = ("_layers", "_layer", "depth", "depths", "_blocks", "layer_types", "_pattern")
_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
_HEAD_ENDS = ("head_dim", "head_size", "d_kv")

#: Sizes that must be whole numbers from 1 up to a bound that no real model comes near.
LARGEST: dict[str, int] = {
    "hidden_size": 2**20,
    "d_model": 2**20,
    "n_embd": 2**20,
    "num_hidden_layers": 2**13,
    "num_layers": 2**13,
    "n_layer": 2**13,
    "n_layers": 2**13,
    "decoder_layers": 2**13,
    "encoder_layers": 2**13,
    "num_attention_heads": 2**14,
    "n_head": 2**14,
    "num_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**16,
    "intermediate_size": 2**24,
    "moe_intermediate_size": 2**24,
    "vocab_size": 2**26,
    "num_experts": 2**16,
    "num_local_experts": 2**16,
    "n_routed_experts": 2**16,
    "num_experts_per_tok": 2**16,
    "max_position_embeddings": 2**40,
}

#: Sizes for which 0 or -1 is a published way to say "none".
MAY_BE_NONE = frozenset(
    {
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "max_position_embeddings",
    }
)

#: Fields by which a config could make transformers load code or kernels from elsewhere.
_LOADS_CODE = (
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
    "_experts_implementation_internal",
)


def to_config(source: ConfigSource, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The transformers config that a source describes.

    A ``model_type`` that transformers knows gets transformers' own class, ``auto_map`` or not.
    With ``trust_remote_code``, a source with an ``auto_map`` gets the class of its repository, and
    that code runs. Raises HymellError for an unknown ``model_type`` and, naming the field, for
    sizes that are missing, of the wrong type, out of bounds or in contradiction.
    """
    from transformers import CONFIG_MAPPING

    model_type = source.config["model_type"]
    check_sizes(source.config, source.name)
    if trust_remote_code and source.auto_map:
        return _remote_config(source)
    if model_type not in CONFIG_MAPPING:
        raise HymellError(_unknown(source))
    config_class: type[PretrainedConfig] = CONFIG_MAPPING[model_type]
    _check_names(source.config, source.name)
    _check_complete(source.config, config_class, source.name)
    language = _language_only(config_class, source.config)
    if language is not None:
        config_class, content = language
        source = replace(source, config=content)
    config = _build(config_class, source)
    _check_heads(config, source.config, source.name)
    return config


def known_fields(source: ConfigSource) -> dict[str, Any]:
    """The fields that a source's config may have, with their values: its own, those of its class.

    Fields of a config inside have its name and a dot before theirs. Raises HymellError as
    `to_config`.
    """
    config = to_config(source)
    found = _named_fields(config)
    for name in type(config).sub_configs:
        inner = getattr(config, name, None)
        if inner is not None and not isinstance(inner, Mapping):
            found |= {f"{name}.{key}": value for key, value in _named_fields(inner).items()}
    return {**found, **{key: value for _, key, value in _dotted(source.config)}}


def _named_fields(config: PretrainedConfig) -> dict[str, Any]:
    names = _field_defaults(type(config))
    return {name: getattr(config, name, None) for name in names if not name.startswith("_")}


def _dotted(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for prefix, part in _parts(config):
        for key, value in part.items():
            if not isinstance(value, Mapping):
                yield prefix, f"{prefix}{key}", value


def check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Raises HymellError when a size, here or in a nested config, is no plausible whole number."""
    for prefix, part in _parts(config):
        for field, largest in LARGEST.items():
            may_be_none = field in MAY_BE_NONE or (field == "head_dim" and "kv_lora_rank" in part)
            _check_size(f"{prefix}{field}", part.get(field), largest, may_be_none, name)
        experts = next(
            (
                part[key]
                for key in ("num_experts", "num_local_experts", "n_routed_experts")
                if part.get(key)
            ),
            None,
        )
        chosen = part.get("num_experts_per_tok")
        if isinstance(experts, int) and isinstance(chosen, int) and chosen > experts:
            raise HymellError(
                f"{name}: {prefix}num_experts_per_tok is {chosen}, more than the {experts} experts"
            )


def _check_names(config: Mapping[str, Any], name: str) -> None:
    """Raises HymellError for an architecture, dtype or activation that cannot be one."""
    from transformers.activations import ACT2FN

    for prefix, part in _parts(config):
        classes = part.get("architectures") or []
        if not isinstance(classes, list) or not all(isinstance(item, str) for item in classes):
            raise HymellError(f"{name}: {prefix}architectures must be a list of class names")
        for field in ("dtype", "torch_dtype"):
            dtype = part.get(field)
            if dtype is not None and not isinstance(dtype, Mapping) and str(dtype) not in _DTYPES:
                known = ", ".join(_DTYPES)
                raise HymellError(f"{name}: {prefix}{field} is {_show(dtype)}; use one of {known}")
        act = part.get("hidden_act")
        if isinstance(act, str) and act not in ACT2FN:
            raise HymellError(
                f"{name}: {prefix}hidden_act {act!r} is no activation that transformers knows; "
                "correct it, or upgrade transformers"
            )


def _check_size(field: str, value: Any, largest: int, may_be_none: bool, name: str) -> None:
    """One size; lists (a size per layer) are checked element by element, None is left alone."""
    if isinstance(value, list):
        for element in value:
            _check_size(field, element, largest, True, name)
        return
    if value is None or isinstance(value, Mapping):
        return
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool):
        raise HymellError(f"{name}: {field} must be a whole number, not {_show(value)}")
    lowest = -1 if may_be_none else 1
    if not lowest <= value <= largest:
        bounds = f"between {lowest} and {largest}"
        raise HymellError(f"{name}: {field} is {_show(value)}; it must be {bounds}")


def _parts(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The config and the configs nested in it, each with the prefix of its field names."""
    yield prefix, config
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            yield from _parts(value, f"{prefix}{key}.")


def _check_complete(
    config: Mapping[str, Any], config_class: type[PretrainedConfig], name: str
) -> None:
    """A config that leaves its size to the class's defaults describes no model in particular."""
    if any(key in config for key in config_class.sub_configs):
        return
    fields = {*_field_defaults(config_class), *config_class.attribute_map}
    given = [key for key, value in config.items() if value and not key.endswith("head_dim")]
    for field, ends in (("hidden_size", _WIDTH_ENDS), ("num_hidden_layers", _DEPTH_ENDS)):
        if field in fields and not any(key.endswith(ends) for key in given):
            raise _incomplete(field, config_class, name)
    if config_class.sub_configs and not any(key.endswith(_WIDTH_ENDS) for key in given):
        raise _incomplete("text_config", config_class, name)


def _language_only(
    config_class: type[PretrainedConfig], config: Mapping[str, Any]
) -> tuple[type[PretrainedConfig], dict[str, Any]] | None:
    """Class and content of the language model, where a file gives no more of a composite model.

    Its class would take the vision tower (and, of a flat file, even the language model) from its
    defaults: sizes of another model. None for a complete file.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    parts = config_class.sub_configs
    if not {"text_config", "vision_config"} <= set(parts) or "vision_config" in config:
        return None
    if not hasattr(parts["text_config"], "model_type"):
        # Any language model may stand there, so the file has to say which.
        return None
    nested = config.get("text_config")
    content = dict(nested if isinstance(nested, Mapping) else config)
    content.pop("architectures", None)
    text_class = parts["text_config"]
    content["model_type"] = text_class.model_type
    if text_class.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        # Only the composite has a head; its vision tower then has the class's own size.
        return config_class, {"model_type": config["model_type"], "text_config": content}
    return text_class, content


def _incomplete(field: str, config_class: type[PretrainedConfig], name: str) -> HymellError:
    parts = [part for part in config_class.sub_configs if part != field]
    return HymellError(
        f"{name}: the config gives no {' or '.join([field, *parts])}; add it, for "
        f"{config_class.__name__} would otherwise assume the size of another model"
    )


def _build(config_class: type[PretrainedConfig], source: ConfigSource) -> PretrainedConfig:
    content = _plain(source.config)
    try:
        return config_class.from_dict(content)
    except Exception as error:  # whatever a config class does with values it did not expect
        raise HymellError(
            f"{source.name}: {config_class.__name__} rejects the config: "
            f"{_culprit(content, config_class)}{_one_line(error)}"
        ) from None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, nested configs included, without `_LOADS_CODE` and with its floats decoded.

    transformers 5 saves an infinite number as ``{"__float__": "Infinity"}``.
    """
    return {key: _plain_value(value) for key, value in config.items() if key not in _LOADS_CODE}


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_value(element) for element in value]
    if not isinstance(value, Mapping):
        return value
    special = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
    if set(value) == {"__float__"} and value["__float__"] in special:
        return special[value["__float__"]]
    return _plain(value)


def _culprit(content: Mapping[str, Any], config_class: type[PretrainedConfig]) -> str:
    """The field whose value has another type than the class's default, as "field is 'x': "."""
    for field, default in _field_defaults(config_class).items():
        value = content.get(field)
        is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
        if is_number and isinstance(value, (str, bool, Mapping)):
            return f"{field} is {_show(value)}: "
    return ""


def _field_defaults(config_class: type[PretrainedConfig]) -> dict[str, Any]:
    """The fields that a config class declares, with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(config_class)}


def _one_line(error: BaseException) -> str:
    """An error of transformers as one short clause, without its list of everything it knows."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^(?:Class v|V)alidation error for \w+ '\w+': \w+: ", "", text)
    text = re.split(r"\.? (?:Errors:|Should contain one of)", text)[0]
    return text if len(text) <= 300 else f"{text[:300]}..."


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _check_heads(config: PretrainedConfig, content: Mapping[str, Any], name: str) -> None:
    """Heads divide the width unless the config gives their size; KV heads divide the heads."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:  # several decoders: none of them is the text model
        return
    if getattr(text, "is_heterogeneous", False):  # these sizes then differ per layer
        return
    given = {key for _, part in _parts(content) for key in part}
    head_size_is_known = (
        any(key.endswith(_HEAD_ENDS) for key in given)
        or isinstance(_field_defaults(type(text)).get("head_dim"), int)
        or any(getattr(text, key, None) for key in ("qk_nope_head_dim", "d_kv"))
    )
    width = getattr(text, "hidden_size", None)
    heads = getattr(text, "num_attention_heads", None)
    kv_heads = getattr(text, "num_key_value_heads", None)
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return
    if width % heads and not head_size_is_known:
        raise HymellError(
            f"{name}: num_attention_heads {heads} does not divide hidden_size {width}; "
            "correct one of them or give head_dim"
        )
    if isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        raise HymellError(
            f"{name}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}; "
            "correct one of them"
        )


def _unknown(source: ConfigSource) -> str:
    """Why an unknown model_type cannot be traced, and what would help."""
    import difflib

    import transformers
    from transformers import CONFIG_MAPPING

    model_type = source.config["model_type"]
    said = (
        f"{source.name}: transformers {transformers.__version__} does not know the model_type "
        f"{model_type!r}; "
    )
    near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), 2, 0.8)
    hint = f" (it knows {' and '.join(near)})" if near else ""
    code = source.auto_map and source.origin != "zoo"
    other = "run the repository's own code with --trust-remote-code" if code else "correct it"
    return f"{said}upgrade transformers, or {other}{hint}"


def _remote_config(source: ConfigSource) -> PretrainedConfig:
    """The repository's own config class; the caller has agreed that its code runs."""
    from transformers import AutoConfig

    if source.origin == "hub":
        where, revision = source.name, source.revision
    else:
        where, revision = _folder(source), None
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            where, revision=revision, trust_remote_code=True
        )
    except Exception as error:  # the repository's code may raise anything
        raise HymellError(f"{source.name}: its own config code fails: {_one_line(error)}") from None
    return config


def _folder(source: ConfigSource) -> str:
    """The folder that holds a local source's config.json and its code."""
    path = Path(source.location)
    folder = path if path.is_dir() else path.parent
    if not os.path.isfile(folder / "config.json"):
        raise HymellError(
            f"{source.name}: --trust-remote-code needs the folder with config.json and its code; "
            "give that folder or the hub id"
        )
    return str(folder)
