"""Which weights a checkpoint's patterns mean, under the names that transformers gives them.

Quantisation configs list modules under the names of the checkpoint; transformers 5 loads several
families under other names and fuses a layer's experts into one 3-D tensor. Both sides are brought
to one spelling here before they are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

#: Leading path segments that only say where in a larger model the decoder sits.
_ROOTS = frozenset(
    {"model", "language_model", "transformer", "text_model", "backbone", "base_model"}
)

#: Segment names of checkpoints -> transformers' usual ones.
_SEGMENTS = {
    "ffn": "mlp",
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "attn": "self_attn",
    "head": "lm_head",
    "embed": "embed_tokens",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
}

#: Modules with a weight matrix that quantisers leave alone unless they are told otherwise.
_LEFT_ALONE = frozenset(
    {
        "gate",
        "router",
        "shared_expert_gate",
        "lm_head",
        "embed_out",
        "output_projection",
        "classifier",
        "score",
        "shared",
        "wte",
        "wpe",
        "conv1d",
    }
)
_LEFT_ALONE_PARTS = ("norm", "embed", "rotary", "relative_attention_bias")


def module_path(parameter: str) -> str:
    """The path of the module that holds a parameter, in the common spelling."""
    return _common(_module(parameter))


def is_expert(parameter: str) -> bool:
    """True for the weights of routed experts, fused or one by one."""
    return "experts" in parameter.split(".")


def is_matrix(parameter: str, shape: tuple[int, ...]) -> bool:
    """True for the weight of a linear layer or of fused experts; biases and tables of 1-D are not.

    ``shape`` is (out, in) for a linear layer and (experts, ..., ...) for fused experts. GraniteMoe
    keeps its experts in a 3-D ``weight``, which a convolution's short last side tells apart.
    """
    last = parameter.rsplit(".", 1)[-1]
    if last.endswith("bias"):
        return False
    if is_expert(parameter):
        return len(shape) in (2, 3)
    stacked = len(shape) == 3 and min(shape[1:]) >= 16
    return last == "weight" and (len(shape) == 2 or stacked)


def is_usually_quantised(parameter: str, shape: tuple[int, ...]) -> bool:
    """True for a matrix that a scheme aimed at "all linear layers" converts.

    Not so: norms, embeddings, routers, the output head, convolutions and 1-D tensors.
    """
    if not is_matrix(parameter, shape):
        return False
    segments = module_path(parameter).split(".")
    return not any(
        segment in _LEFT_ALONE or any(part in segment for part in _LEFT_ALONE_PARTS)
        for segment in segments
    )


@dataclass(frozen=True, slots=True)
class Patterns:
    """Module patterns of a quantisation config: plain names, globs, and regexes after ``re:``.

    A plain name means the module of that path, all that is inside it, and modules whose path
    contains it as whole segments ("gate" is ``mlp.gate``, never ``mlp.gate_proj``).
    """

    names: frozenset[str]
    prefixes: tuple[str, ...]
    globs: re.Pattern[str] | None
    regexes: tuple[re.Pattern[str], ...]

    @staticmethod
    def of(patterns: Iterable[str]) -> Patterns:
        """Compile a config's list. Raises re.error for a regex that is none."""
        names, prefixes, globs, regexes = set(), [], [], []
        for pattern in patterns:
            if pattern.startswith("re:"):
                regexes.append(re.compile(pattern.removeprefix("re:")))
                continue
            common = _common(pattern.removesuffix(".weight"))
            if "*" not in common:
                names.add(common)
            elif common.find("*") == len(common) - 1:
                prefixes.append(common[:-1])
            else:
                globs.append(re.escape(common).replace(r"\*", ".*"))
        union = re.compile(f"(?:{'|'.join(globs)})(?:\\.|$)") if globs else None
        return Patterns(frozenset(names), tuple(prefixes), union, tuple(regexes))

    def match(self, parameter: str) -> bool:
        """True when a pattern means the module of this parameter."""
        paths = _spellings(parameter)
        common = paths[: len(paths) // 2]
        return (
            any(self.names & _runs(path) for path in common)
            or (bool(self.prefixes) and any(path.startswith(self.prefixes) for path in common))
            or (self.globs is not None and any(self.globs.match(path) for path in common))
            or any(regex.match(path) for regex in self.regexes for path in paths)
        )


def _module(parameter: str) -> str:
    """The module's path as written; a fused expert tensor counts as a module of its own."""
    return parameter.removesuffix(".weight")


def _common(path: str) -> str:
    """A path or pattern without leading roots and with its segments in the common spelling."""
    segments = path.split(".")
    while len(segments) > 1 and segments[0] in _ROOTS:
        del segments[0]
    return ".".join(_SEGMENTS.get(segment, segment) for segment in segments)


@lru_cache(maxsize=4096)
def _spellings(parameter: str) -> tuple[str, ...]:
    """The names a checkpoint may use for a parameter's module: first common ones, then as written.

    Fused experts stand for ``experts`` as a whole and for each projection of the first expert.
    """
    written = [_module(parameter)]
    owner, experts, tensor = written[0].rpartition(".experts.")
    if experts:
        first = "down_proj" if "down" in tensor else "gate_proj"
        written += [f"{owner}.experts", f"{owner}.experts.0.{first}"]
    return (*(_common(path) for path in written), *written)


@lru_cache(maxsize=4096)
def _runs(path: str) -> frozenset[str]:
    """Every run of consecutive segments of a path."""
    segments = path.split(".")
    return frozenset(
        ".".join(segments[start:stop])
        for start in range(len(segments))
        for stop in range(start + 1, len(segments) + 1)
    )
