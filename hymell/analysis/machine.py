"""What hymell finds on this machine: packages, cache, GPUs, fitted files, measurements.

Nothing is imported that a report would not import, and no GPU is touched: boards are those that
``nvidia-smi`` lists.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hymell import store
from hymell._version import __version__
from hymell.errors import HymellError
from hymell.estimators import calibration as calibrations
from hymell.estimators.level3.system import FOLDER, fitted_systems
from hymell.hardware import find_gpu
from hymell.measure.location import VARIABLE, locate
from hymell.store import CacheInfo, package_version

#: What hymell cannot work without.
NEEDED: Final = (
    "numpy",
    "torch",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "pandas",
    "platformdirs",
    "rich",
    "typer",
)

#: What parts of it need: package to the extra that installs it.
OPTIONAL: Final = {
    "scipy": "calibrate",
    "pyarrow": "calibrate",
    "matplotlib": "plots",
    "jinja2": "html",
    "joblib": "sweep",
    "optuna": "sweep",
    "ray": "ray",
}

_SMI: Final = "nvidia-smi"
_SMI_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class Package:
    """A package with its version, "none" where it is missing; ``extra`` installs it."""

    name: str
    version: str
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU of this machine; ``sheet`` is hymell's name of it, "" where it has no data sheet."""

    name: str
    memory_mib: float
    driver: str
    sheet: str
    libraries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that a report on this machine rests on; ``problems`` say what to mend and how.

    ``calibrations`` are (GPU, library), ``systems`` (GPU, engine, version); ``data`` is the folder
    of measurements, None where there is none, which only fitting and judging need.
    """

    hymell: str
    python: str
    platform: str
    packages: tuple[Package, ...]
    cache: CacheInfo
    boards: tuple[Board, ...]
    calibrations: tuple[tuple[str, str], ...]
    systems: tuple[tuple[str, str, str], ...]
    data: Path | None
    problems: tuple[str, ...]


def inspect() -> Machine:
    """Look around; never raises for what it finds."""
    found: list[str] = []
    packages = (
        *(Package(name, package_version(name)) for name in NEEDED),
        *(Package(name, package_version(name), extra) for name, extra in OPTIONAL.items()),
    )
    missing = [p.name for p in packages if p.version == "none" and not p.extra]
    if missing:
        found.append(f"not installed: {', '.join(missing)}; run: pip install {' '.join(missing)}")
    fitted = calibrations.available()
    found += _damaged(fitted)
    boards, trouble = _boards(fitted)
    found += trouble
    found += _unwritable(store.cache_dir())
    try:
        data: Path | None = locate()
    except HymellError as error:
        data = None
        if os.environ.get(VARIABLE):
            found.append(str(error))
    return Machine(
        hymell=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=packages,
        cache=store.info(),
        boards=boards,
        calibrations=fitted,
        systems=_systems(),
        data=data,
        problems=tuple(found),
    )


def _damaged(fitted: Iterable[tuple[str, str]]) -> list[str]:
    broken = []
    for gpu, library in fitted:
        try:
            calibrations.shipped(gpu, library)
        except HymellError as error:
            broken.append(f"the calibration of {library} on {gpu} is damaged: {error}")
    return broken


def _systems() -> tuple[tuple[str, str, str], ...]:
    engines = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    return tuple(
        (gpu, engine, version)
        for engine in engines
        for gpu, version in sorted(fitted_systems(engine))
    )


def _unwritable(folder: Path) -> list[str]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return []
    return [
        f"the cache folder {folder} cannot be written, every report traces anew; "
        f"name another one in {store.CACHE_DIR_VARIABLE}"
    ]


def _boards(fitted: Iterable[tuple[str, str]]) -> tuple[tuple[Board, ...], list[str]]:
    """The GPUs that nvidia-smi lists; where it fails, why."""
    program = shutil.which(_SMI)
    if program is None:
        return (), []
    asked = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(
            [program, *asked], capture_output=True, text=True, timeout=_SMI_SECONDS, check=True
        ).stdout
        lines = [line.split(",") for line in text.splitlines() if line.strip()]
        found = [(name.strip(), float(memory), driver.strip()) for name, memory, driver in lines]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (), [f"{_SMI} does not tell the GPUs ({error}); check the driver"]
    held = list(fitted)
    return tuple(_board(*each, held) for each in found), []


def _board(name: str, memory_mib: float, driver: str, fitted: list[tuple[str, str]]) -> Board:
    try:
        sheet = find_gpu(name).name
    except HymellError:
        sheet = ""
    libraries = tuple(library for gpu, library in fitted if gpu == sheet)
    return Board(name, memory_mib, driver, sheet, libraries)
