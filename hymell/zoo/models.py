"""Known models: the facts of their published config.json that shape what inference costs.

One file per distinct config under ``configs/``, and ``index.json`` that maps each short name to
the hub ids that share it, so that a look-up reads two small files. Nothing here touches the
network, and a config is a plain dict: this room imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).with_name("configs")
INDEX = CONFIGS / "index.json"

_SUGGESTIONS = 5


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One config and what is published about it.

    ``ids`` are the hub ids with this very config, and further short names (without a slash).
    ``config`` holds keys and values as published, only those that shape the model.
    ``parameters`` is the published total with tied weights counted once, None where no total is
    published to three digits; ``source`` says where it stands. ``active_parameters``, for mixtures
    of experts, are the parameters that one text token meets: the language model (embedding and
    head included) without the experts that were not chosen.
    """

    name: str
    ids: tuple[str, ...]
    config: dict[str, Any]
    parameters: int | None
    active_parameters: int | None
    source: str
    notes: str | None


def find(name: str) -> ZooModel | None:
    """The model with this hub id or short name, case ignored; None when the zoo has none."""
    known = _names().get(name.strip().lower())
    return None if known is None else _load(known[0])


def list_models() -> tuple[ZooModel, ...]:
    """Every model of the zoo, in the order of the short names."""
    return tuple(_load(name) for name in sorted(_read(INDEX)))


def suggest(name: str) -> list[str]:
    """Up to five ids and short names like ``name``; those that contain its last part come first."""
    names = _names()
    wanted = name.strip().lower()
    part = wanted.rpartition("/")[2]
    holding = sorted((key for key in names if part in key), key=len) if len(part) > 3 else []
    near = difflib.get_close_matches(wanted, names, n=_SUGGESTIONS, cutoff=0.6)
    return [names[key][1] for key in list(dict.fromkeys([*holding, *near]))[:_SUGGESTIONS]]


def index_of(models: Iterable[ZooModel]) -> dict[str, list[str]]:
    """What ``index.json`` must hold for these models: the ids by short name."""
    return {model.name: list(model.ids) for model in models}


def markdown_table(models: Iterable[ZooModel]) -> str:
    """The table of docs/models.md: one row per config, totals in billions."""
    rows = [
        "| name | hub ids | class | parameters (B) | active (B) |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    rows += [
        f"| {model.name} | {'<br>'.join(model.ids)} | {model.config['architectures'][0]} "
        f"| {_billions(model.parameters)} | {_billions(model.active_parameters)} |"
        for model in models
    ]
    return "\n".join(rows) + "\n"


def _billions(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.4g}"


@cache
def _names() -> dict[str, tuple[str, str]]:
    """Each id and short name in lower case -> (the short name, the spelling to show)."""
    return {
        spelling.lower(): (name, spelling)
        for name, ids in _read(INDEX).items()
        for spelling in (name, *ids)
    }


def _load(name: str) -> ZooModel:
    entry = _read(CONFIGS / f"{name}.json")
    return ZooModel(**{**entry, "ids": tuple(entry["ids"])})


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
