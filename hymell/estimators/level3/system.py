"""Fitted systems as files: what an engine on a GPU adds to the kernels, measured on whole models.

Shipped ones lie in ``hymell/hardware/systems/ENGINE/GPU@VERSION.json``, one per version of an
engine that somebody measured; `benchmarks/end_to_end.py` writes them where they are nearer to
models that they were not fitted on than typical overheads are. They hold for the level-1
calibrations that they were fitted over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hymell.hardware
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.level3.terms import MULTIPLIERS, TERMS

SCHEMA_VERSION = 2

#: Where shipped systems lie.
FOLDER = Path(hymell.hardware.__file__).parent / "systems"


@dataclass(frozen=True)
class System:
    """Coefficients of `TERMS` by name, each in its unit; a multiplier that is absent is 1.

    ``version`` is the engine's, or the year of the runs where these state none. ``source`` names
    the runs, ``rows`` and ``models`` count them. ``mape`` and ``composed_mape`` are the mean
    absolute errors in % on models left out of the fit, of this and of typical overheads. ``gpu`` is
    where the runs were made; ``transferred``: priced is another one, which ``transfers`` says to be
    better than typical overheads.
    """

    engine: str
    gpu: str
    version: str
    source: str
    coefficients: Mapping[str, float]
    rows: int
    models: tuple[str, ...]
    mape: float
    composed_mape: float
    transfers: bool = False
    transferred: bool = False

    def value(self, name: str) -> float:
        """A coefficient; of what was not fitted, 1 for a multiplier and 0 for any other."""
        return self.coefficients.get(name, 1.0 if name in MULTIPLIERS else 0.0)

    def describe(self) -> str:
        """Whose runs they are, how far off, and what they say, in a line for a report."""
        how = "transferred from" if self.transferred else "fitted on"
        factors = ", ".join(
            f"{name} x {self.coefficients[name]:.2g}"
            for name in TERMS
            if name in MULTIPLIERS and name in self.coefficients
        )
        return (
            f"{how} {self.rows} runs of {self.source} ({self.gpu}, {self.engine} {self.version}; "
            f"{self.mape:.1f}% off on models left out, {self.composed_mape:.1f}% without): "
            f"{factors}, {self.value('gqa'):.2g} of GQA's saving lost; "
            f"{self.value('step_s') * 1e6:.0f} us per step, "
            f"{self.value('sequence_s') * 1e6:.0f} us per sequence and step, "
            f"{self.value('logit_s') * 1e11:.1f} us per sequence, step and 100,000 logits"
        )


def fitted_systems(engine: str) -> tuple[tuple[str, str], ...]:
    """(GPU, version) of an engine's shipped systems, newest versions first; reads no file."""
    stems = (path.stem.partition("@") for path in (FOLDER / engine).glob("*@*.json"))
    found = sorted((gpu, version) for gpu, _, version in stems)
    return tuple(sorted(found, key=lambda pair: age(pair[1]), reverse=True))


def age(version: str) -> tuple[bool, tuple[int, ...], str]:
    """What sorts versions, oldest first; a year, where nobody stated one, is before all others."""
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version))
    return not re.fullmatch(r"\d{4}", version), numbers, version


def system_file(engine: str, gpu: str, version: str) -> Path:
    """Where a shipped system lies."""
    return FOLDER / engine / f"{gpu}@{version}.json"


@cache
def shipped_system(engine: str, gpu: str, version: str) -> System | None:
    """The shipped system of an engine's version on a GPU, None without one; errors as `load`."""
    file = system_file(engine, gpu, version)
    return load(file) if file.is_file() else None


def load(file: Path) -> System:
    """A system from its file. Raises HymellError for a file that is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}")
        return _system(content)
    except DAMAGED as error:
        raise HymellError(
            f"{file} is no system of this version ({type(error).__name__}: {error}); "
            "write it anew with benchmarks/end_to_end.py"
        ) from None


def _system(content: Mapping[str, Any]) -> System:
    found = {}
    for name, entry in content["coefficients"].items():
        value = float(entry["value"])
        if entry["unit"] != TERMS[name].unit or not 0 <= value < float("inf"):
            raise ValueError(f"coefficient {name} is {entry}")
        found[name] = value
    return System(
        engine=str(content["engine"]),
        gpu=str(content["gpu"]),
        version=str(content["version"]),
        source=str(content["source"]),
        coefficients=found,
        rows=int(content["rows"]),
        models=tuple(str(model) for model in content["models"]),
        mape=float(content["mape"]),
        composed_mape=float(content["composed_mape"]),
        transfers=bool(content["transfers"]),
    )


def save(system: System, file: Path) -> None:
    """Write a system: every coefficient with its unit and what it says."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "engine": system.engine,
        "gpu": system.gpu,
        "version": system.version,
        "source": system.source,
        "rows": system.rows,
        "models": list(system.models),
        "mape": round(system.mape, 2),
        "composed_mape": round(system.composed_mape, 2),
        "transfers": system.transfers,
        "coefficients": {
            name: {
                "value": float(f"{system.coefficients[name]:.4g}"),
                "unit": TERMS[name].unit,
                "meaning": TERMS[name].meaning,
            }
            for name in TERMS
            if name in system.coefficients
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
