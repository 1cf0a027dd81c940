"""From what people and tools call a GPU (`NVIDIA H100 80GB HBM3`, `h100_sxm`) to its data sheet.

A name is taken apart into tokens. A GPU is meant when the name holds the tokens of its model
(`h100`, `a6000`, `pro 6000`) and nothing that its data sheet does not say: form factor, memory
size and type, architecture, vendor, brand. Where several GPUs are left, an alias that equals the
name decides (`h100` is listed under h100-sxm); otherwise the name is ambiguous, and an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hymell.errors import HymellError
from hymell.hardware.gpu import Gpu
from hymell.hardware.load import gpu_names, load_gpu, read_gpu_file

#: Words of a name that tell variants of one model apart and are not the model itself.
_VARIANT = re.compile(r"sxm|pcie|nvl|rtx|server|\d+gb")
_SEPARATORS = re.compile(r"[\s\-_,()™®]+")
#: `rtx4090`, `h100sxm5`: the brand in front and the form factor behind, written in one word.
_GLUED = re.compile(r"\A(rtx)?(.+?)(sxm\d?|pcie|nvl)?\Z")
_SIZE = re.compile(r"(\d+)(?:gb|gib|g)")
_GIB = 1024**3
#: Suggestions shown.
_MOST = 5


def find_gpu(text: str) -> Gpu:
    """The GPU that ``text`` means: a name, loosely written, or the path of a data-sheet JSON.

    Text that ends in ``.json``, or names an existing file and no built-in GPU, is read as a file.
    A family name alone means its SXM board, the one with the most memory: ``a100`` is
    a100-sxm-80gb. Raises HymellError, with suggestions, for a name that is unknown or fits
    several GPUs, and for a file that is not a data sheet.
    """
    if text.strip().lower().endswith(".json"):
        return read_gpu_file(text.strip())
    tokens = _tokens(text)
    if (name := "-".join(tokens)) in gpu_names():
        return load_gpu(name)
    fits = [entry for entry in _index() if entry.model <= set(tokens) <= entry.accepted]
    if len(fits) > 1:
        fits = [entry for entry in fits if set(tokens) - entry.vendor in entry.aliases] or fits
    if len(fits) == 1:
        return load_gpu(fits[0].name)
    if _is_file(text):
        return read_gpu_file(text)
    if fits:
        names = " or ".join(entry.name for entry in fits)
        raise HymellError(
            f"GPU {_quoted(text)} is ambiguous: say {names} (`hymell gpus` lists all)"
        )
    raise HymellError(_unknown(text, tokens))


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a built-in GPU answers to, as sets of tokens."""

    name: str
    model: frozenset[str]
    accepted: frozenset[str]
    vendor: frozenset[str]
    aliases: frozenset[frozenset[str]]
    spellings: tuple[str, ...]


@cache
def _index() -> tuple[_Entry, ...]:
    return tuple(_entry(load_gpu(name)) for name in gpu_names())


def _entry(gpu: Gpu) -> _Entry:
    name = _tokens(gpu.name)
    aliases = tuple(_tokens(alias) for alias in gpu.aliases)
    vendor = frozenset((*_tokens(gpu.vendor), "gpu"))
    described = (gpu.display_name, gpu.architecture, gpu.memory_type)
    size = f"{gpu.memory_bytes // _GIB}gb"
    accepted = {size, *vendor, *name}.union(*map(_tokens, described), *aliases)
    return _Entry(
        name=gpu.name,
        model=frozenset(token for token in name if not _VARIANT.fullmatch(token)),
        accepted=frozenset(accepted),
        vendor=vendor,
        aliases=frozenset(map(frozenset, aliases)),
        spellings=(gpu.name, *("-".join(alias) for alias in aliases)),
    )


def _tokens(text: str) -> tuple[str, ...]:
    """`NVIDIA A100-SXM4-80 GB` -> nvidia, a100, sxm4, 80gb."""
    words = [word for word in _SEPARATORS.split(text.casefold()) if word]
    tokens: list[str] = []
    for word in words:
        if word in ("gb", "gib", "g") and tokens and tokens[-1].isdigit():
            tokens[-1] += "gb"
        elif size := _SIZE.fullmatch(word):
            tokens.append(f"{size[1]}gb")
        else:
            tokens += _GLUED.sub(r"\1 \2 \3", word).split()
    return tuple(tokens)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or holding a NUL
        return False


def _unknown(text: str, tokens: tuple[str, ...]) -> str:
    names = _suggestions(tokens)
    if not names:
        return (
            f"unknown GPU {_quoted(text)}: `hymell gpus` lists the known ones, "
            "and the path of a .json data sheet of your own works too"
        )
    return (
        f"no known GPU is called {_quoted(text)}: did you mean {', '.join(names)}? "
        "`hymell gpus` lists all"
    )


def _suggestions(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """GPUs of the same model or with its number in their name; without any, names spelt alike."""
    from difflib import SequenceMatcher, get_close_matches

    slug = "-".join(tokens)[:60]
    related = [
        entry.name
        for entry in _index()
        if any(_same_number(token, model) for token in tokens for model in entry.model)
    ]
    if related:
        matcher = SequenceMatcher(None, "", slug)

        def likeness(name: str) -> float:
            matcher.set_seq1(name)
            return matcher.ratio()

        return tuple(sorted(related, key=likeness, reverse=True)[:_MOST])
    owner = {spelling: entry.name for entry in _index() for spelling in entry.spellings}
    alike = get_close_matches(slug, owner, n=_MOST, cutoff=0.7)
    return tuple(dict.fromkeys(owner[spelling] for spelling in alike))


def _same_number(token: str, model: str) -> bool:
    """Equal, or a long number that ends the other: `6000` may well stand for `a6000`."""
    return token == model or (len(token) > 3 and model.endswith(token))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
