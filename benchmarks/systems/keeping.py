"""Results that benchmarks keep in build/, under names that tell what they follow from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd

import hymell
from hymell.measure.location import locate

T = TypeVar("T")


def kept(file: Path, make: Callable[[], T]) -> T:
    """What ``file`` holds, made and written there where it is not yet."""
    if file.is_file():
        # Written by this program into its own build folder.
        found: T = pd.read_pickle(file)
        return found
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.to_pickle(made, file)
    return made


def state_of(name: str, apart: frozenset[str], module: str) -> str:
    """Of everything that prices of a set follow from: its table, the package and ``module``.

    ``apart``: folders and files of the package that no such price comes from.
    """
    package = Path(hymell.__file__).parent
    found = hashlib.sha256((locate() / "e2e" / f"{name}.csv").read_bytes())
    for path in sorted(package.rglob("*")):
        skipped = apart & set(path.relative_to(package).parts)
        if path.suffix in (".py", ".json", ".safetensors") and not skipped:
            found.update(path.name.encode() + path.read_bytes())
    found.update(Path(module).read_bytes())
    return found.hexdigest()[:16]
