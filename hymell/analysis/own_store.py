"""Own runs under a name, one JSON file each in the user's data folder.

``HYMELL_RUNS_DIR`` moves the folder. A file holds the runs themselves: offsets are fitted to them
whenever they are used, so that they always belong to the estimate that they correct. A file appears
whole or not at all, and none is ever written over.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hymell.analysis.own_runs import Configuration, OwnRun, known_run, model_key
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.offset_fit import PRIORS
from hymell.estimators.offsets import Offsets

RUNS_DIR_VARIABLE: Final = "HYMELL_RUNS_DIR"
SCHEMA_VERSION: Final = 1

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Judged:
    """One configuration of some runs, and the offsets that were fitted when they were kept."""

    configuration: Configuration
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class SavedRuns:
    """Own runs under a name."""

    name: str
    runs: tuple[OwnRun, ...]
    configurations: tuple[Judged, ...]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, as the file holds them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "runs": [run.to_dict() for run in self.runs],
            "configurations": [
                {**judged.configuration._asdict(), "offsets": asdict(judged.offsets)}
                for judged in self.configurations
            ],
        }


def runs_dir() -> Path:
    """The folder that holds named runs; it may not exist yet."""
    override = os.environ.get(RUNS_DIR_VARIABLE)
    if override:
        return Path(override).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("hymell", appauthor=False)) / "runs"


def check_name(name: str) -> str:
    """The name itself. Raises HymellError for one that is no plain file name."""
    if not _NAME.fullmatch(name):
        raise HymellError(
            f"{name!r} is no name for runs: use a to z, 0 to 9, - and _, at most 63 of them, "
            "the first a letter or a digit"
        )
    return name


def check_free(name: str) -> None:
    """Raise HymellError for a name that has runs, or is none."""
    if _file(name).exists():
        raise HymellError(_taken(name))


def saved_names() -> tuple[str, ...]:
    """The names that have runs, sorted."""
    return tuple(sorted(path.stem for path in runs_dir().glob("*.json")))


def save(saved: SavedRuns) -> Path:
    """Keep runs; returns their file. Raises HymellError for a name that has runs already."""
    file = _file(saved.name)
    text = json.dumps(saved.to_dict(), indent=1) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{saved.name}.", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            # A link, unlike a rename, never replaces what is there.
            os.link(temporary, file)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    except FileExistsError:
        raise HymellError(_taken(saved.name)) from None
    except OSError as error:
        raise HymellError(
            f"cannot keep runs in {str(file.parent)!r}: {error.strerror or error}; "
            f"set {RUNS_DIR_VARIABLE} to a folder that can be written"
        ) from None
    return file


def load(name: str) -> SavedRuns:
    """Runs by name. Raises HymellError for an unknown name and for a damaged file."""
    file = _file(name)
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}")
        runs = tuple(known_run(row) for row in content["runs"])
        if not runs:
            raise ValueError("no run")
        judged = tuple(map(_judged, content["configurations"]))
    except FileNotFoundError:
        there = ", ".join(saved_names()) or "none"
        raise HymellError(
            f"no runs are kept under {name!r}; there are: {there} (`hymell runs add` keeps some)"
        ) from None
    except (*DAMAGED, HymellError) as error:
        raise HymellError(
            f"{file} holds no runs of this version ({error}); remove it with "
            f"`hymell runs remove {name}` and add the runs anew"
        ) from None
    return SavedRuns(name, runs, judged)


def remove(name: str) -> None:
    """Forget runs. Raises HymellError for an unknown name and for a file that cannot be removed."""
    file = _file(name)
    try:
        file.unlink()
    except FileNotFoundError:
        there = ", ".join(saved_names()) or "none"
        raise HymellError(f"no runs are kept under {name!r}; there are: {there}") from None
    except OSError as error:
        raise HymellError(f"cannot remove {file}: {error.strerror or error}") from None


def configurations(runs: Sequence[OwnRun]) -> dict[Configuration, list[OwnRun]]:
    """The runs of each configuration, in the order in which they come."""
    found: dict[Configuration, list[OwnRun]] = {}
    for run in runs:
        key = run.configuration._replace(model=model_key(run.model))
        found.setdefault(key, []).append(run)
    return {mine[0].configuration: mine for mine in found.values()}


def _judged(entry: Mapping[str, Any]) -> Judged:
    configuration = Configuration(**{name: entry[name] for name in Configuration._fields})
    kept = entry["offsets"]
    offsets = Offsets(
        **{name: float(kept[name]) for name in (*PRIORS, "energy")},
        source=str(kept["source"]),
        rows=int(kept["rows"]),
        before=_errors(kept["before"]),
        after=_errors(kept["after"]),
    )
    return Judged(configuration, offsets)


def _errors(kept: Mapping[str, Any] | None) -> dict[str, float] | None:
    return None if kept is None else {str(name): float(kept[name]) for name in kept}


def _file(name: str) -> Path:
    return runs_dir() / f"{check_name(name)}.json"


def _taken(name: str) -> str:
    return (
        f"there are runs under {name!r} already; choose another name, or remove them first "
        f"with `hymell runs remove {name}`"
    )
