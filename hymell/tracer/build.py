"""A Hugging Face config as a model on meta: full structure, no weights, no downloads."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hymell.errors import HymellError, TraceError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

#: Auto mappings in the order in which a config's model type is looked up.
_MAPPINGS = (
    ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    (
        "AutoModelForZeroShotImageClassification",
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
    ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    ("AutoModel", "MODEL_MAPPING_NAMES"),
    ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"),
)
#: The level of `logging.ERROR`.
_ERROR_LEVEL = 40
#: Model types that the causal-LM mapping also lists, though their use is another one.
_NOT_CAUSAL = frozenset({"bert", "roberta", "electra", "camembert", "xlm-roberta", "whisper"})


def build_model(
    config: PretrainedConfig,
    *,
    trust_remote_code: bool = False,
    device: str = "meta",
    dtype: Any = None,
) -> nn.Module:
    """The model of a config, in eval mode; on ``torch.device("meta")`` it has no weights.

    On another device its weights are random. The dtype is the config's (bfloat16 when it names
    none) unless given. The class is the config's own architecture where transformers knows it,
    else the first auto class that lists its model type. Raises TraceError when transformers cannot
    build the model.
    """
    import torch

    try:
        with torch.device(device), quiet():
            model = _construct(config, dtype or _dtype(config), trust_remote_code)
    except HymellError:
        raise
    except Exception as error:
        raise TraceError(
            f"transformers could not build a {config.model_type} model: {one_line(error)}"
        ) from error
    return model.eval()


def _construct(config: PretrainedConfig, dtype: Any, trust_remote_code: bool) -> nn.Module:
    import transformers

    config = _complete(config)
    remote = getattr(config, "auto_map", None) or {}
    if remote and trust_remote_code:
        name = next((n for n, _ in _MAPPINGS if n in remote), None)
        if name is not None:
            auto = getattr(transformers, name)
            model: nn.Module = auto.from_config(config, dtype=dtype, trust_remote_code=True)
            return model
    cls = getattr(transformers, model_class_name(config))
    text = config.get_text_config(decoder=True)
    if not isinstance(config, cls.config_class) and isinstance(text, cls.config_class):
        config = text
    built: nn.Module = cls._from_config(config, dtype=dtype)
    return built


def _complete(config: PretrainedConfig) -> PretrainedConfig:
    """A config with what its model reads but its class no longer sets."""
    attention = getattr(config, "attn_config", None)
    if config.model_type != "dbrx" or hasattr(attention, "rope_theta"):
        return config
    config = copy.deepcopy(config)
    rope = getattr(config, "rope_parameters", None) or {}
    config.attn_config.rope_theta = rope.get("rope_theta", 10000.0)
    return config


def model_class_name(config: PretrainedConfig) -> str:
    """Name of the transformers class that runs a config.

    Raises HymellError when transformers lists no class for its model type.
    """
    from transformers.models.auto import modeling_auto

    model_type = config.model_type
    known: dict[str, str] = {}
    for auto, mapping in _MAPPINGS:
        name = getattr(modeling_auto, mapping).get(model_type)
        if name is not None:
            known[auto] = name if isinstance(name, str) else name[0]
    for architecture in getattr(config, "architectures", None) or ():
        if architecture in known.values():
            return str(architecture)
    if not known:
        raise HymellError(
            f"transformers knows no model class for model_type {model_type!r}; "
            "a newer transformers or --trust-remote-code may"
        )
    order = [auto for auto, _ in _MAPPINGS]
    if model_type in _NOT_CAUSAL or getattr(config, "is_encoder_decoder", False):
        order.remove("AutoModelForCausalLM")
        order.append("AutoModelForCausalLM")
    if getattr(config, "vision_config", None) is not None:
        order.sort(key=lambda auto: auto != "AutoModelForImageTextToText")
    return next(known[auto] for auto in order if auto in known)


def _dtype(config: PretrainedConfig) -> Any:
    import torch

    for holder in (config, config.get_text_config(decoder=True)):
        dtype = getattr(holder, "dtype", None)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."), None)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return dtype
    return torch.bfloat16


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' notes out of the user's terminal and vision probes out of the build."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    check = os.environ.get("TRANSFORMERS_DISABLE_TORCH_CHECK")
    os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"
    logging.set_verbosity(_ERROR_LEVEL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if check is None:
            del os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"]
        else:
            os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = check


def one_line(error: BaseException, limit: int = 160) -> str:
    """An exception's message in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
