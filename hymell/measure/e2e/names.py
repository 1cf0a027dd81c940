"""What upstream calls GPUs, engines and models, and what hymell calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hymell.dtypes import ALIASES
from hymell.measure.readers.layout import gpu_name
from hymell.zoo import find

#: Boards that their upstream name leaves open. The A100s of 40 GB are those of Polaris and Swing
#: (ANL) and of AWS p4d, all SXM4; LLMServingSim's meta.yaml names the server board.
_GPUS: Final[Mapping[str, str]] = {
    "A100-40": "a100-sxm-40gb",
    "A100-80": "a100-sxm-80gb",
    "A100-PCIe80": "a100-pcie-80gb",
    # PyTorch sees each of the two dies as a device.
    "AMD_Instinct_MI250": "mi250",
    "RTX6000Ada": "rtx-6000-ada",
    "RTXPRO6000": "rtx-pro-6000-server",
}

#: Upstream's spellings, in lower case -> the library, and hymell's engine ("" for none).
_LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "tensorrt-llm": ("trtllm", "trtllm"),
    "trtllm": ("trtllm", "trtllm"),
    "hf-eager": ("pytorch", "eager"),
    "deepspeed-mii": ("deepspeed-mii", ""),
    "llama.cpp": ("llama.cpp", ""),
}

_UNKNOWN: Final = "unknown"

#: Number formats that hymell spells otherwise and `ALIASES` does not list.
_DTYPES: Final[Mapping[str, str]] = {"f16": "float16"}

#: Upstream's names of models whose shape is that of a zoo model under another name. Fine-tunes
#: keep the shape of what they were tuned from; a few added tokens do not count.
_MODELS: Final[Mapping[str, str]] = {
    "llama-3-405b": "llama-3.1-405b",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8": "llama-4-maverick",
    "zhipuai/GLM-5": "glm-5",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "bert_large": "bert-large-classifier",
    "gpt2_large": "gpt2-large",
    "opt_13": "opt-1.3b",
    "metaai/llama-7B": "llama-7b",
    "metaai/llama-13B": "llama-13b",
    "metaai/Llama-2-7b-chat-hf": "llama-2-7b",
    "metaai/Llama-2-13b-chat-hf": "llama-2-13b",
    "lmsys/vicuna-7B": "llama-7b",
    "lmsys/vicuna-13B": "llama-13b",
    "tatsu-lab/alpaca-7B": "llama-7b",
    "BAIR/koala-7b": "llama-7b",
    "BAIR/koala-13b": "llama-13b",
    "project-baize/baize-v2-7B": "llama-7b",
    "camel-ai/CAMEL-13B-Combined-Data": "llama-13b",
    "nomic-ai/gpt4all-13b-snoozy": "llama-13b",
    "openaccess-ai-collective/manticore-13b-chat-pyg": "llama-13b",
    "h2oai/h2ogpt-gm-oasst1-en-2048-open-llama-7b-preview-300bt-v2": "llama-7b",
    "OpenAssistant/oasst-sft-1-pythia-12b": "pythia-12b",
    "FreedomIntelligence/phoenix-inst-chat-7b": "bloom-7b1",
    "RWKV/rwkv-raven-7b": "rwkv-4-7b",
    "Salesforce/xgen-7b-8k-inst": "xgen-7b-8k",
    "StabilityAI/stablelm-tuned-alpha-7b": "stablelm-tuned-alpha-7b",
    "databricks/dolly-v2-12b": "dolly-v2-12b",
    "togethercomputer/RedPajama-INCITE-7B-Chat": "redpajama-incite-7b",
}


def gpu(upstream: str) -> str:
    """hymell's name of the GPU, or upstream's own in the same spelling where hymell has none."""
    return _GPUS.get(upstream) or gpu_name(upstream)


def library(upstream: str) -> tuple[str, str, str]:
    """(library, version, engine) of ``vLLM-0.5``; a version that is not stated is ``unknown``."""
    lowered = upstream.lower()
    for spelling, (name, engine) in _LIBRARIES.items():
        if lowered.startswith(spelling):
            return name, upstream[len(spelling) :].strip("-()") or _UNKNOWN, engine
    return lowered, _UNKNOWN, ""


def dtype(upstream: str) -> str:
    """hymell's number format, or upstream's name of a pair (``int4_wo``)."""
    return _DTYPES.get(upstream) or ALIASES.get(upstream, upstream)


def stored_dtype(dtype: str, zoo: str) -> str:
    """The format of a run's weights: what upstream calls fp8 is in blocks where the published
    checkpoint is.
    """
    known = find(zoo) if zoo else None
    if dtype != "float8_e4m3" or known is None:
        return dtype
    scheme = known.config.get("quantization_config", {})
    blocks = scheme.get("weight_block_size") == _BLOCK or known.name in _BLOCK_STAND_INS
    return "float8_block128" if blocks else dtype


#: Sides of the blocks of DeepSeek's fp8.
_BLOCK: Final = [128, 128]

#: Experts with a scale per channel: no table has these; vLLM runs them on the kernel of blocks, and
#: not on that of NVIDIA's checkpoints, whose scale is of the tensor.
_BLOCK_STAND_INS: Final = frozenset({"llama-4-maverick"})


def zoo(upstream: str) -> str:
    """The zoo model with the shape of upstream's, "" where there is none."""
    known = find(_MODELS.get(upstream, upstream))
    return "" if known is None else known.name
