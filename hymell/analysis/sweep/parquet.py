"""A sweep's table on disk: parts while it runs, one Parquet file at the end.

Beside ``sweep.parquet`` the folder ``sweep.parquet.parts`` holds what is done so far. Each part
appears whole (written aside, then renamed), so that a killed sweep loses no more than the seconds
since the last one; the same command goes on from there. A digest of all that the rows depend on
keeps parts of different sweeps apart.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hymell.analysis.sweep.points import Column, Outcome
from hymell.errors import HymellError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

_KEY = b"hymell.sweep"
_SUFFIX = ".parts"


@dataclass(frozen=True, slots=True)
class Done:
    """What parts, or a finished file, hold: outcomes by task number, skipped ones included."""

    outcomes: Mapping[int, Outcome]
    finished: bool


class Table:
    """The table of one sweep at ``path``; ``digest`` tells it from others."""

    def __init__(self, path: Path, digest: str, order: Sequence[str]) -> None:
        self.path = path
        self._digest = digest
        self._order = tuple(order)
        self._folder = path.with_name(path.name + _SUFFIX)
        self._next = 0

    def open(self, *, overwrite: bool = False) -> Done:
        """Make the folder of parts, or read what is there of the same sweep.

        Raises HymellError where nothing can be written, and for a file or parts of another sweep
        unless ``overwrite``, which removes them.
        """
        if find_spec("pyarrow") is None:
            raise HymellError(
                "writing Parquet needs pyarrow; install it with: pip install 'hymell[sweep]'"
            )
        if self.path.is_dir():
            raise HymellError(f"cannot write {str(self.path)!r}: it is a folder; name a file in it")
        if not self.path.absolute().parent.is_dir():
            raise HymellError(
                f"cannot write {str(self.path)!r}: its folder does not exist; make it first"
            )
        if overwrite:
            self._remove()
        elif self.path.exists():
            return Done(self._read(self.path), finished=True)
        with _written(self.path):
            self._folder.mkdir(exist_ok=True)
            probe = self._folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        outcomes: dict[int, Outcome] = {}
        for part in self._parts():
            outcomes |= self._read(part)
            self._next = int(part.stem.rpartition("-")[2]) + 1
        return Done(outcomes, finished=False)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Write a part. Raises HymellError where the disk does not take it."""
        import pyarrow.parquet  # type: ignore[import-untyped]

        name = f"part-{self._next:06d}.parquet"
        aside = self._folder / f".{name}.{os.getpid()}"
        with _written(self.path, self._kept()):
            try:
                pyarrow.parquet.write_table(self._table(outcomes), aside)
                os.replace(aside, self._folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise
        self._next += 1

    def finish(self) -> None:
        """One file of all parts, in order of the tasks; then the parts go."""
        import pyarrow.parquet

        parts = self._parts()
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        states = [self._state(pyarrow.parquet.read_schema(part)) for part in parts]
        state = {
            "digest": self._digest,
            "done": [entry for held in states for entry in held["done"]],
        }
        with _written(self.path, self._kept()):
            try:
                self._merge(parts, aside, state)
                os.replace(aside, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise
        self._remove_parts()

    @property
    def folder(self) -> Path:
        """Where parts lie."""
        return self._folder

    def _kept(self) -> str:
        return f"; what is done is kept in {self._folder}: make room and run the same command again"

    def _merge(self, parts: Sequence[Path], to: Path, state: Mapping[str, Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schemas = [pq.read_schema(part) for part in parts]
        # A part without rows has no column types; an axis may be whole numbers here, null there.
        schema = pa.unify_schemas(
            [s.remove_metadata() for s in schemas if len(s)] or [pa.schema([])],
            promote_options="permissive",
        )
        schema = schema.with_metadata({_KEY: json.dumps(state).encode()})
        with pq.ParquetWriter(to, schema) as writer:
            for part, own in zip(parts, schemas, strict=True):
                if len(own):
                    writer.write_table(pq.read_table(part).cast(schema))

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.parquet"))

    def _table(self, outcomes: Sequence[Outcome]) -> pyarrow.Table:
        import pyarrow as pa

        held = [outcome.columns for outcome in outcomes if not outcome.reason]
        arrays = [pa.array(_plain([part[name] for part in held])) for name in self._order if held]
        state = {
            "digest": self._digest,
            "done": [
                [outcome.number, 0 if outcome.reason else _rows(outcome), outcome.reason]
                for outcome in outcomes
            ],
        }
        table = pa.table(dict(zip(self._order, arrays, strict=False)))
        return table.replace_schema_metadata({_KEY: json.dumps(state).encode()})

    def _read(self, file: Path) -> dict[int, Outcome]:
        """The outcomes in a file of this sweep; raises HymellError for any other file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise HymellError(
                f"{file} is there and no Parquet file ({str(error).splitlines()[0]}); name another "
                "file or add --overwrite"
            ) from None
        state = self._state(table.schema)
        if state.get("digest") != self._digest:
            raise HymellError(
                f"{file} holds another sweep; name another file, or add --overwrite to replace it"
            )
        columns = {name: _column(table.column(name)) for name in table.column_names}
        return dict(_outcomes(state["done"], columns))

    @staticmethod
    def _state(schema: pyarrow.Schema) -> dict[str, Any]:
        held = (schema.metadata or {}).get(_KEY)
        found: dict[str, Any] = json.loads(held) if held else {}
        return found

    def _remove(self) -> None:
        with _written(self.path):
            self.path.unlink(missing_ok=True)
        self._remove_parts()

    def _remove_parts(self) -> None:
        if not self._folder.is_dir():
            return
        with _written(self.path):
            for part in (*self._parts(), *self._folder.glob(".*")):
                part.unlink(missing_ok=True)
            # Someone else's file in it is left alone, and the folder with it.
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def _rows(outcome: Outcome) -> int:
    return len(outcome.columns["architecture"])


def _plain(parts: Sequence[Column]) -> Any:
    column = np.concatenate(parts)
    # Fixed-width text of numpy and mixed values go by way of Python objects.
    return column.tolist() if column.dtype.kind in "UO" else column


def _column(column: pyarrow.ChunkedArray) -> Column:
    values = column.to_numpy()
    return values if values.dtype.kind != "O" else np.array(column.to_pylist())


def _outcomes(
    done: Sequence[Sequence[Any]], columns: Mapping[str, Column]
) -> Iterator[tuple[int, Outcome]]:
    start = 0
    for number, rows, reason in done:
        part = {name: values[start : start + rows] for name, values in columns.items()}
        yield number, Outcome(number, {} if reason else part, reason)
        start += rows


@contextlib.contextmanager
def _written(path: Path, remedy: str = "") -> Iterator[None]:
    """An OSError of what is done inside as one sentence."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error).splitlines()[0] or type(error).__name__
        raise HymellError(f"cannot write {str(path)!r}: {why}{remedy}") from None
