"""How a quantised checkpoint stores its weights, read from its config; nothing is downloaded.

`parse` understands the forms that published checkpoints use: DeepSeek-style fp8,
compressed-tensors, NVIDIA ModelOpt (in config.json or hf_quant_config.json), MXFP8, MXFP4, GPTQ,
AWQ, AutoRound, bitsandbytes, FBGEMM fp8, EETQ and Quanto. Anything else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from hymell.dtypes import BITS
from hymell.errors import HymellError, UnsupportedError
from hymell.weight_names import Patterns, is_expert, is_matrix, is_usually_quantised

Block: TypeAlias = Mapping[str, Any]
V = TypeVar("V")

FP8 = "float8_e4m3"
FP8_BLOCK = "float8_block128"

#: ModelOpt's quant_algo -> (weights, activations); "{group}" is the config's group size.
MODELOPT: dict[str, tuple[str, str | None]] = {
    "FP8": (FP8, FP8),
    "FP8_PER_CHANNEL_PER_TOKEN": (FP8, FP8),
    "FP8_PB_WO": (FP8_BLOCK, None),
    "FP8_PB_REAL": (FP8_BLOCK, FP8),
    "NVFP4": ("nvfp4", "nvfp4"),
    "NVFP4_AWQ": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", None),
    "W4A8_NVFP4_FP8": ("nvfp4", FP8),
    "W4A16_AWQ": ("int4_g{group}_sym", None),
    "INT4_AWQ": ("int4_g{group}_sym", None),
    "W4A8_AWQ": ("int4_g{group}_sym", FP8),
    "W8A8_SQ_PER_CHANNEL": ("int8", "int8"),
    "INT8_SQ": ("int8", "int8"),
    "W8A16": ("int8", None),
    "MXFP8": ("mxfp8", "mxfp8"),
    "MXFP4": ("mxfp4", None),
    "W4A8_MXFP4_FP8": ("mxfp4", FP8),
    "W4A8_MXFP4_MXFP8": ("mxfp4", "mxfp8"),
}

#: Formats of a KV cache as configs spell them.
KV_FORMATS = {
    "FP8": FP8,
    "FP8_E4M3": FP8,
    "NVFP4": "nvfp4",
    "INT8": "int8",
    "NVFP4_AFFINE": "nvfp4",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Stored format of some weights and of the activations they meet (None: the model's dtype).

    ``targets`` None means the usual weights: linear layers and experts. ``experts_only`` narrows
    that to routed experts.
    """

    weights: str
    activations: str | None = None
    targets: Patterns | None = None
    experts_only: bool = False

    def applies(self, parameter: str, shape: tuple[int, ...]) -> bool:
        """True when this rule says how the parameter is stored."""
        if self.experts_only and not is_expert(parameter):
            return False
        if self.targets is None:
            return is_usually_quantised(parameter, shape)
        return is_matrix(parameter, shape) and self.targets.match(parameter)

    def words(self) -> str:
        """The rule as a reader would put it, e.g. "nvfp4 (fp8 activations)"."""
        meets = f"{_words(self.activations)} activations" if self.activations else "weights only"
        return f"{_words(self.weights)} ({meets})"


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """A checkpoint's scheme: the first rule that applies to a parameter says how it is stored.

    ``activation_dtype`` is what the first rule multiplies in, None for weight-only schemes;
    ``kv_dtype`` the KV cache's format, None for the model's dtype. ``name`` is in words.
    """

    name: str
    rules: tuple[Rule, ...]
    ignore: Patterns = field(default_factory=lambda: Patterns.of(()))
    activation_dtype: str | None = None
    kv_dtype: str | None = None

    def rule(self, parameter: str, shape: tuple[int, ...]) -> Rule | None:
        """The rule for a parameter, or None when it stays in the model's dtype."""
        found = next((rule for rule in self.rules if rule.applies(parameter, shape)), None)
        return None if found is None or self.ignore.match(parameter) else found

    def weight_dtype(self, parameter: str, shape: tuple[int, ...]) -> str | None:
        """Stored dtype (a name of `hymell.dtypes`); None: left in the model's dtype.

        ``parameter`` is transformers' name, ``shape`` (out, in) or (experts, ..., ...).
        """
        rule = self.rule(parameter, shape)
        return None if rule is None else rule.weights

    def math_dtype(self, parameter: str, shape: tuple[int, ...]) -> str | None:
        """Dtype of the activations that meet this weight; None: the model's dtype."""
        rule = self.rule(parameter, shape)
        return None if rule is None else rule.activations


def parse(config: Block, hf_quant: Block | None = None) -> QuantScheme | None:
    """The scheme that config.json, or the hf_quant_config.json beside it, describes; None if none.

    Raises UnsupportedError for a method or format that hymell does not know, by name, and
    HymellError for a description that cannot be read.
    """
    block = _find(config)
    if block is None and hf_quant is not None:
        block = {"quant_method": "modelopt", **_mapping(hf_quant, "quantization")}
    if not block:
        return None
    method = _method(block)
    reader = _READERS.get(method)
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise UnsupportedError(
            f"quantization method {method!r} is not supported; hymell reads {known}: price the "
            "unquantised model, or one of those"
        )
    try:
        return reader({"expert_dtype": config.get("expert_dtype"), **block})
    except re.error as error:
        raise HymellError(
            f"quantization_config holds the pattern {error.pattern!r}, which is no regular "
            f"expression: {error}"
        ) from None


def _find(config: Block) -> Block | None:
    """The quantization_config, at the top or in the nested text config."""
    if config.get("quantization_config") is not None:
        return _mapping(config, "quantization_config")
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            found = _find(value)
            if found is not None:
                return found
    return None


def _method(block: Block) -> str:
    method = block.get("quant_method")
    if method is None and "quant_algo" in block:
        return "modelopt"
    if method is None and (block.get("load_in_4bit") or block.get("load_in_8bit")):
        return "bitsandbytes"
    if not isinstance(method, str):
        raise HymellError("quantization_config gives no quant_method; add it, e.g. 'fp8'")
    return method.lower()


def _scheme(rules: Sequence[Rule], ignore: Sequence[str], kv: str | None = None) -> QuantScheme:
    words = list(dict.fromkeys(rule.words() for rule in rules))
    cache = [f"{_words(kv)} KV cache"] if kv else []
    return QuantScheme(
        name=", ".join([" + ".join(words), *cache]),
        rules=tuple(rules),
        ignore=Patterns.of(ignore),
        activation_dtype=rules[0].activations,
        kv_dtype=kv,
    )


def _words(dtype: str) -> str:
    """A stored format as people say it."""
    special = {FP8: "fp8", FP8_BLOCK: "fp8 blocks 128x128", "float8_e5m2": "fp8 e5m2"}
    grouped = re.fullmatch(r"(?:float|int)(\d)_g(\d+)(?:_sym)?", dtype)
    if grouped:
        kind = "fp" if dtype.startswith("float") else "int"
        return f"{kind}{grouped[1]} groups of {grouped[2]}"
    return special.get(dtype, dtype.replace("_", " "))


def _fp8(block: Block) -> QuantScheme:
    """DeepSeek's fp8 (also transformers' FineGrainedFP8Config), experts in MXFP4 if it says so."""
    rules = _modelopt_layers(block)
    if block.get("expert_dtype") == "fp4":
        rules.append(Rule("mxfp4", FP8, experts_only=True))
    size = block.get("weight_block_size")
    weights = "float8_e5m2" if "e5m2" in str(block.get("fmt")) else FP8
    if size is not None:
        weights = _fp8_blocks(_integers(block, "weight_block_size"))
    rules.append(Rule(weights, FP8))
    ignore = _strings(block, "modules_to_not_convert") + _strings(block, "ignored_layers")
    return _scheme(rules, ignore, _kv(block))


def _mxfp8(block: Block) -> QuantScheme:
    return _scheme([Rule("mxfp8", "mxfp8")], _strings(block, "modules_to_not_convert"))


def _mxfp4(block: Block) -> QuantScheme:
    """gpt-oss: the experts alone."""
    rule = Rule("mxfp4", experts_only=True)
    return _scheme([rule], _strings(block, "modules_to_not_convert"))


def _fbgemm(block: Block) -> QuantScheme:
    return _scheme([Rule(FP8, FP8)], _strings(block, "modules_to_not_convert"))


def _eetq(block: Block) -> QuantScheme:
    return _scheme([Rule("int8")], _strings(block, "modules_to_not_convert"))


def _quanto(block: Block) -> QuantScheme:
    formats = {"float8": FP8, "int8": "int8", "int4": "int4_g128"}
    weights = _choose(formats, block.get("weights"), "quanto weights")
    activations = block.get("activations")
    acts = None if activations is None else _choose(formats, activations, "quanto activations")
    return _scheme([Rule(weights, acts)], _strings(block, "modules_to_not_convert"))


def _gptq(block: Block) -> QuantScheme:
    """GPTQ stores a zero point per group even when it is symmetric. `dynamic` is GPTQModel's."""
    bits, group = _integer(block, "bits"), _integer(block, "group_size")
    dynamic = _mapping(block, "dynamic") if block.get("dynamic") else {}
    skipped = [f"re:{key[2:]}" for key in dynamic if key.startswith("-:")]
    rules = [
        Rule(
            _int_format(change.get("bits", bits), change.get("group_size", group)),
            targets=Patterns.of([f"re:{key.removeprefix('+:')}"]),
        )
        for key, change in dynamic.items()
        if not key.startswith("-:") and isinstance(change, Mapping)
    ]
    ignore = _strings(block, "modules_to_not_convert")
    return _scheme([*rules, Rule(_int_format(bits, group))], [*ignore, *skipped])


def _awq(block: Block) -> QuantScheme:
    bits = _integer(block, "bits" if "bits" in block else "w_bit")
    group = _integer(block, "group_size" if "group_size" in block else "q_group_size")
    return _scheme([Rule(_int_format(bits, group))], _strings(block, "modules_to_not_convert"))


def _bitsandbytes(block: Block) -> QuantScheme:
    """nf4 or fp4 in blocks of 64 (QLoRA), or LLM.int8()."""
    ignore = _strings(block, "llm_int8_skip_modules")
    if block.get("load_in_8bit") or block.get("_load_in_8bit"):
        return _scheme([Rule("int8", "int8")], ignore)
    doubled = block.get("bnb_4bit_use_double_quant")
    return _scheme([Rule("nf4_double" if doubled else "nf4")], ignore)


def _compressed_tensors(block: Block) -> QuantScheme:
    """vLLM's compressed-tensors: groups of targets, each with its own weight and input format."""
    sparse = block.get("sparsity_config") or {}
    if isinstance(sparse, Mapping) and sparse.get("format") not in (None, "dense"):
        raise UnsupportedError(
            f"sparse weights ({sparse.get('format')}) are not supported; price the dense model"
        )
    rules = []
    for group in _mapping(block, "config_groups").values():
        if not isinstance(group, Mapping) or group.get("weights") is None:
            continue
        acts = _mapping(group, "input_activations") if group.get("input_activations") else None
        targets = _strings(group, "targets") or ["Linear"]
        rules.append(
            Rule(
                _tensor_format(_mapping(group, "weights")),
                None if acts is None else _activation_format(acts),
                None if "Linear" in targets else Patterns.of(targets),
            )
        )
    if not rules:
        raise HymellError("quantization_config quantises no weights in its config_groups")
    return _scheme(rules, _strings(block, "ignore"), _kv(block))


def _tensor_format(weights: Block) -> str:
    """A compressed-tensors weight description -> a stored dtype."""
    bits, kind = _integer(weights, "num_bits"), weights.get("type", "int")
    group = weights.get("group_size")
    if kind == "int":
        symmetric = "_sym" if weights.get("symmetric", True) else ""
        return _int_format(bits, -1 if group is None else group, symmetric)
    if bits == 4:
        return _choose({16: "nvfp4", 32: "mxfp4"}, group, "4-bit float groups of")
    if bits == 8 and weights.get("strategy") == "block":
        return _fp8_blocks(_integers(weights, "block_structure"))
    if bits == 8:
        groups = {None: FP8, -1: FP8, 32: "mxfp8", 128: "float8_g128"}
        return _choose(groups, group, "8-bit float groups of")
    raise UnsupportedError(f"{bits}-bit {kind} weights are not supported")


def _activation_format(activations: Block) -> str:
    bits, kind = _integer(activations, "num_bits"), activations.get("type", "int")
    if kind == "float" and bits == 4:
        return "mxfp4" if activations.get("group_size") == 32 else "nvfp4"
    if kind == "float" and bits == 8 and activations.get("group_size") == 32:
        return "mxfp8"
    formats = {("float", 8): FP8, ("int", 8): "int8"}
    return _choose(formats, (kind, bits), "activations of")


def _modelopt(block: Block) -> QuantScheme | None:
    """NVIDIA ModelOpt, in config.json or hf_quant_config.json."""
    algo = block.get("quant_algo")
    ignore = _strings(block, "exclude_modules") + _strings(block, "ignore")
    if algo is None or str(algo).upper() == "NO_QUANT":
        return None
    if algo == "MIXED_PRECISION":
        rules = _modelopt_layers(block)
        if not rules:
            raise HymellError("quantization_config is MIXED_PRECISION without quantized_layers")
    else:
        rules = [_modelopt_rule(block, None)]
    return _scheme(rules, ignore, _kv(block))


def _modelopt_layers(block: Block) -> list[Rule]:
    """One rule per algorithm of a quantized_layers map; modules outside it are left alone."""
    if not block.get("quantized_layers"):
        return []
    targets: dict[tuple[str, Any], list[str]] = {}
    details: dict[tuple[str, Any], Block] = {}
    for module in (layers := _mapping(block, "quantized_layers")):
        detail = _mapping(layers, module)
        key = (str(detail.get("quant_algo")), detail.get("group_size"))
        targets.setdefault(key, []).append(module)
        details[key] = detail
    return [_modelopt_rule(details[key], Patterns.of(names)) for key, names in targets.items()]


def _modelopt_rule(block: Block, targets: Patterns | None) -> Rule:
    weights, activations = _choose(MODELOPT, block.get("quant_algo"), "ModelOpt's quant_algo")
    if "{group}" in weights:
        group = block.get("group_size") or 128
        weights = _known(weights.format(group=group), f"int4 groups of {group}")
    return Rule(weights, activations, targets)


def _kv(block: Block) -> str | None:
    """The KV cache's format from kv_cache_scheme (a name or a description) or ModelOpt's name."""
    scheme = block.get("kv_cache_scheme") or block.get("kv_cache_quant_algo")
    if scheme is None:
        return None
    if isinstance(scheme, Mapping):
        return _activation_format(scheme)
    return _choose(KV_FORMATS, str(scheme).upper(), "a KV cache in")


def _fp8_blocks(size: tuple[int, ...]) -> str:
    return _choose({(128, 128): FP8_BLOCK, (1, 128): "float8_g128"}, size, "fp8 blocks of")


def _int_format(bits: Any, group: Any, symmetric: str = "") -> str:
    """A grouped integer format; a group of -1 is a whole row, whose one scale weighs nothing."""
    if group in (-1, None):
        return _choose({4: "int4_channel", 8: "int8"}, bits, "integer weights with bits =")
    return _known(f"int{bits}_g{group}{symmetric}", f"{bits}-bit integers in groups of {group}")


def _known(dtype: str, words: str) -> str:
    if dtype not in BITS:
        raise UnsupportedError(f"weights stored as {words} are not supported")
    return dtype


def _choose(options: Mapping[Any, V], key: Any, words: str) -> V:
    """options[key]; UnsupportedError, in words, for a key that is not there."""
    try:
        return options[key]
    except (KeyError, TypeError):
        known = ", ".join(str(option) for option in options if option is not None)
        raise UnsupportedError(f"{words} {key} is not supported; known: {known}") from None


def _mapping(block: Block, key: str) -> Block:
    value = block.get(key)
    if not isinstance(value, Mapping):
        raise HymellError(f"{key} of the quantization config must be an object, not {value!r}")
    return value


def _integer(block: Block, key: str) -> int:
    value = block.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise HymellError(f"{key} of the quantization config must be an integer, not {value!r}")
    return value


def _integers(block: Block, key: str) -> tuple[int, ...]:
    value = block.get(key)
    if not isinstance(value, Sequence) or not all(isinstance(item, int) for item in value):
        raise HymellError(f"{key} of the quantization config must list integers, not {value!r}")
    return tuple(value)


def _strings(block: Block, key: str) -> list[str]:
    """A list of names; missing and null count as none."""
    value = block.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise HymellError(f"{key} of the quantization config must list module names")
    return value


_READERS: dict[str, Callable[[Block], QuantScheme | None]] = {
    "fp8": _fp8,
    "mxfp8": _mxfp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "gptq": _gptq,
    "auto-round": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fbgemm_fp8": _fbgemm,
    "eetq": _eetq,
    "quanto": _quanto,
}
