"""Calibrations: fitted level-1 estimators of one GPU and one kernel library, as files.

A calibration is a JSON file (coefficients with units, choices, ranges seen, row counts, held-out
errors, where the rows came from) and, beside it, a safetensors file with the weights of the
residual corrections. Shipped ones lie in ``hymell/hardware/calibrations/GPU/LIBRARY.json``. They
are read when first asked for, forms and weights when a kernel first needs them; nothing here
imports torch, scipy or pandas.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

import hymell.hardware
from hymell._version import __version__
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.mlp import Mlp
from hymell.hardware import gpu_names, load_gpu

SCHEMA_VERSION = 1

#: Where shipped calibrations lie.
FOLDER = Path(hymell.hardware.__file__).parent / "calibrations"

#: How far off transferred estimators are, in `FOLDER`.
TRANSFER_FILE = "transfer.json"

#: What identifies an estimator within a calibration: op, stored format of what it works on, and
#: "" or a variant of the op (the KV cache's format of an attention).
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One fitted estimator: where its rows came from, what was fitted, how far off it is.

    ``fitted`` is `Level1.to_dict`; ``errors`` the held-out errors, each with ``split``,
    ``estimator``, ``rows``, ``mape``, ``median``, ``p90``, ``max`` and ``bias`` (in %).
    """

    op: str
    dtype: str
    variant: str
    source: str
    library: str
    version: str
    kernel: str
    fitted: Mapping[str, Any]
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def key(self) -> Key:
        """Op, format, variant."""
        return self.op, self.dtype, self.variant

    @property
    def prefix(self) -> str:
        """Name of this entry's arrays in the safetensors file."""
        return "/".join(part for part in self.key if part)

    @property
    def origin(self) -> str:
        """Where the rows came from, in a word or three."""
        return f"{self.library} {self.version}"


@dataclass(frozen=True)
class Calibration:
    """Fitted estimators of ``library`` on ``gpu``, by key.

    ``data`` says which state of each source was read. ``weights(prefix)`` gives the arrays of a
    correction, None where there is none.
    """

    gpu: str
    library: str
    hymell_version: str
    data: Mapping[str, str]
    entries: Mapping[Key, Entry]
    weights: Callable[[str], Mapping[str, NDArray[np.float32]] | None] = field(
        repr=False, compare=False
    )
    _made: dict[Key, Level1] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """How reports name it."""
        return f"{self.gpu}/{self.library}"

    def estimator(self, key: Key) -> Level1 | None:
        """The fitted estimator of a key, None where there is none.

        Raises HymellError where the content does not fit its form.
        """
        if key not in self.entries:
            return None
        if key not in self._made:
            self._made[key] = self._make(self.entries[key])
        return self._made[key]

    def updated(self, newer: Calibration) -> Calibration:
        """With the entries of a newer one over these; raises HymellError for another GPU."""
        if (self.gpu, self.library) != (newer.gpu, newer.library):
            raise HymellError(f"{newer.name} cannot update the calibration of {self.name}")
        # Read now: the file that these come from is about to be replaced.
        kept = {e.prefix: self.weights(e.prefix) for e in self.entries.values()}

        def weights(prefix: str) -> Mapping[str, NDArray[np.float32]] | None:
            return newer.weights(prefix) or kept.get(prefix)

        entries = dict(sorted({**self.entries, **newer.entries}.items()))
        return Calibration(
            self.gpu, self.library, newer.hymell_version, newer.data, entries, weights
        )

    def _make(self, entry: Entry) -> Level1:
        where = f"calibration {self.name}, {entry.prefix}"
        form = catalog.find(entry.op, str(entry.fitted.get("form")))
        if form is None:
            raise HymellError(
                f"{where}: this hymell has no form {entry.fitted.get('form')!r} for {entry.op}; "
                f"it was written by hymell {self.hymell_version}: refit it with `hymell calibrate`"
            )
        device = Device.of(load_gpu(self.gpu))
        try:
            arrays = self.weights(entry.prefix) if entry.fitted["corrected"] else None
            if entry.fitted["corrected"] and not arrays:
                raise HymellError(f"{where}: the weights of its correction are missing")
            correction = None if arrays is None else Mlp.from_arrays(arrays, entry.prefix)
            made = Level1.from_dict(entry.fitted, form, device, correction)
            missing = {c.name for c in form.coefficients} - set(made.coefficients_)
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise HymellError(
                f"{where} is damaged ({type(error).__name__}: {error}); refit it with "
                "`hymell calibrate`"
            ) from None
        if missing:
            raise HymellError(
                f"{where} lacks {', '.join(sorted(missing))}, which the form {form.name} has; "
                "refit it with `hymell calibrate`"
            )
        return made


def available() -> tuple[tuple[str, str], ...]:
    """(gpu, library) of every shipped calibration, sorted; reads no file."""
    found = (path.relative_to(FOLDER) for path in FOLDER.glob("*/*.json"))
    return tuple(sorted((path.parent.name, path.stem) for path in found))


@cache
def shipped(gpu: str, library: str) -> Calibration | None:
    """The shipped calibration of a GPU and library, None where there is none."""
    path = FOLDER / gpu / f"{library}.json"
    return load(path) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class TransferError:
    """Mean absolute error in % of an op's estimators on GPUs that they were scaled to.

    ``corrected`` is with the correction of the GPU that was measured.
    """

    analytical: float
    corrected: float


@cache
def transfer_errors() -> Mapping[tuple[str, bool], TransferError]:
    """By op and whether both GPUs are of one family; empty where none was measured.

    Measured by `benchmarks/accuracy_level1.py`, holding out one calibrated GPU after the other.
    Raises HymellError for a damaged file.
    """
    file = FOLDER / TRANSFER_FILE
    if not file.is_file():
        return {}
    try:
        return {
            (str(row["op"]), bool(row["same_family"])): TransferError(
                float(row["analytical"]), float(row["corrected"])
            )
            for row in json.loads(file.read_bytes())
        }
    except (ValueError, KeyError, TypeError) as error:
        raise HymellError(f"{file} is damaged ({error}); run `make accuracy`") from None


def load(path: str | os.PathLike[str]) -> Calibration:
    """A calibration from its JSON file; the weights beside it are read when needed.

    Raises HymellError for a file that cannot be read or is no calibration of this version.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise HymellError(
            f"cannot read the calibration {str(file)!r} ({error.strerror or error}); "
            "write one with `hymell calibrate`"
        ) from None
    except (ValueError, RecursionError):
        raise HymellError(f"{file} is no calibration: not valid JSON") from None
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise HymellError(
            f"{file} is no calibration of this version (schema_version {SCHEMA_VERSION}); "
            "write one with `hymell calibrate`"
        )
    try:
        entries = [_entry(item) for item in content["entries"]]
        made = Calibration(
            gpu=str(content["gpu"]),
            library=str(content["library"]),
            hymell_version=str(content["hymell_version"]),
            data={str(k): str(v) for k, v in content["data"].items()},
            entries={entry.key: entry for entry in entries},
            weights=_weights(file.with_suffix(".safetensors")),
        )
    except DAMAGED as error:
        raise HymellError(
            f"{file} is a damaged calibration ({type(error).__name__}: {error}); "
            "refit it with `hymell calibrate`"
        ) from None
    if made.gpu not in gpu_names():
        raise HymellError(f"{file} is for {made.gpu!r}, a GPU that hymell has no data sheet of")
    return made


def _entry(item: Mapping[str, Any]) -> Entry:
    fitted = item["fitted"]
    if not isinstance(fitted, dict):
        raise TypeError("'fitted' is no object")
    texts = {
        n: str(item[n])
        for n in ("op", "dtype", "variant", "source", "library", "version", "kernel")
    }
    return Entry(**texts, fitted=fitted, errors=tuple(item["errors"]))


def _weights(file: Path) -> Callable[[str], Mapping[str, NDArray[np.float32]] | None]:
    def read(prefix: str) -> Mapping[str, NDArray[np.float32]] | None:
        if not file.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="numpy") as tensors:
                names = [name for name in list(tensors.keys()) if name.startswith(f"{prefix}.")]
                return {name: tensors.get_tensor(name).astype(np.float32) for name in names}
        except (SafetensorError, OSError) as error:
            raise HymellError(
                f"{file} is damaged ({error}); refit it with `hymell calibrate`"
            ) from None

    return read


def assemble(
    gpu: str, library: str, data: Mapping[str, str], fitted: Mapping[Key, tuple[Entry, Level1]]
) -> Calibration:
    """A calibration of freshly fitted estimators, ready for `save`."""
    ordered = dict(sorted(fitted.items()))
    arrays = {
        entry.prefix: made.correction_.to_arrays(entry.prefix)
        for entry, made in ordered.values()
        if made.correction_ is not None
    }
    return Calibration(
        gpu=gpu,
        library=library,
        hymell_version=__version__,
        data=dict(data),
        entries={key: entry for key, (entry, _) in ordered.items()},
        weights=arrays.get,
    )


def save(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write FILE.json, and FILE.safetensors where something is corrected, each in one step.

    Weights are kept in half precision: 1e-3 of a correction of at most a factor of e. Raises
    HymellError when a file cannot be written.
    """
    file = Path(path)
    arrays: dict[str, NDArray[Any]] = {}
    for entry in calibration.entries.values():
        for name, values in (calibration.weights(entry.prefix) or {}).items():
            layer = name.rpartition(".")[2][0] in "wb"
            arrays[name] = values.astype(np.float16) if layer else values
    content = {
        "schema_version": SCHEMA_VERSION,
        "gpu": calibration.gpu,
        "library": calibration.library,
        "hymell_version": calibration.hymell_version,
        "data": dict(calibration.data),
        "entries": [
            {
                "op": entry.op,
                "dtype": entry.dtype,
                "variant": entry.variant,
                "source": entry.source,
                "library": entry.library,
                "version": entry.version,
                "kernel": entry.kernel,
                "fitted": dict(entry.fitted),
                "errors": [dict(error) for error in entry.errors],
            }
            for entry in calibration.entries.values()
        ],
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Weights first: a reader that finds the new JSON then finds its weights too.
        if arrays:
            from safetensors.numpy import save as pack

            _replace(file.with_suffix(".safetensors"), lambda out: out.write(pack(arrays)))
        _replace(file, lambda out: out.write(text.encode()))
    except OSError as error:
        raise HymellError(
            f"cannot write the calibration {str(file)!r}: {error.strerror or error}"
        ) from None


def _replace(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
