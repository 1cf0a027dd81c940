"""What is fitted from the tables: for each op, where its rows, sizes, hold-outs and forms are.

To add an op, give it a module in `hymell.measure.splits` with ``dims(table)`` (sizes as the form
names them) and ``splits(table)``, forms in `hymell.estimators.level1.catalog`, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1 import catalog, row_ops
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import Array, Dims, Form
from hymell.estimators.level1.kernel_energy import FIT, energy_op
from hymell.hardware import load_gpu
from hymell.measure.judging import ROOFLINE_LAUNCH_S, Recipe, Split
from hymell.measure.readers import read
from hymell.measure.splits.energy import SHAPES, data_sheet_j, energy_j, labelled
from hymell.measure.table import Table

#: Fewest rows that an estimator is fitted on.
FEWEST_ROWS: Final = 40

#: A kernel that the data sheet gives less time lasts as long as its launch.
_SMALL_S: Final = 2e-6

#: Fewest shapes of which some can be held out and the rest still fitted.
_FEWEST_GROUPS: Final = 4

#: Whose norms, activations and embeddings stand for a serving engine's, best first: they are the
#: same few CUDA kernels everywhere.
PLAIN: Final = ("vidur", "vllm", "llmservingsim")

#: Latent attention is FlashMLA's or FlashInfer's kernel under every engine.
ANY_ENGINE: Final = ("sglang", "trtllm", "vllm")


@dataclass(frozen=True, slots=True)
class Operator:
    """One op of calibrations.

    ``table``: the op of the tables it is read from, of which ``rows`` are taken; ``module``: its
    hold-outs in `hymell.measure.splits`; ``forms``: names in the catalog, ``{dtype}`` filled in,
    the default first, then baselines; ``shapes``: the sizes that make one kernel's shape, coarse
    to fine, whole ones of which a correction is tried on; ``variant``: the label that tells
    estimators of one format apart; ``borrowed``: whose rows stand for a library that has none of
    its own, ``lent``: for formats that it has none of; ``host_s``: a table whose smallest kernels
    take longer timed the host that launches, and counts as none; ``joules``: its quantity is the
    energy of rows that `splits.energy` finds usable, not their time.
    """

    op: str
    table: str
    module: str
    forms: tuple[str, ...]
    shapes: tuple[tuple[str, ...], ...] = ()
    variant: str = ""
    rows: Mapping[str, object] = field(default_factory=dict)
    borrowed: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()
    host_s: float = np.inf
    recipe: Recipe = field(default_factory=Recipe)
    joules: bool = False

    def function(self, name: str) -> Callable[[Table], Any]:
        """A function of the op's module in `hymell.measure.splits`."""
        module = import_module(f"hymell.measure.splits.{self.module}")
        found: Callable[[Table], Any] = getattr(module, name)
        return found


_ROWS: Final = Recipe(**row_ops.FIT)

#: Some libraries switch to kernels that are many times slower, where no form has a step.
_SWITCHING: Final = Recipe(bound=2.0)

#: Tables of collectives have some sixty rows.
_LINES: Final = Recipe(corrected=False)

_HEADS: Final = (("heads", "kv_heads", "head_dim"), ("heads",))
_WIDTH: Final = (("cols",),)
_FAMILY: Final = ("hidden", "intermediate", "experts", "top_k")

OPERATORS: Final = (
    Operator(
        "gemm",
        "gemm",
        "gemm",
        ("tile-{dtype}",),
        (("n", "k"),),
        borrowed=("vidur", "llmservingsim"),
        lent=ANY_ENGINE,
        host_s=25e-6,
        recipe=Recipe(bound=2.0, f_scale=0.05),
    ),
    Operator(
        "attention_prefill",
        "attention_prefill",
        "attention",
        ("flash-tiles",),
        _HEADS,
        "kv_dtype",
        recipe=_SWITCHING,
    ),
    Operator(
        "attention_decode",
        "attention_decode",
        "attention",
        ("split-keys",),
        _HEADS,
        "kv_dtype",
        recipe=_SWITCHING,
    ),
    Operator(
        "encoder_attention",
        "encoder_attention",
        "attention",
        ("flash-tiles",),
        _HEADS,
        "kv_dtype",
        recipe=_SWITCHING,
    ),
    Operator(
        "rms_norm",
        "rms_norm",
        "row_ops",
        ("row-wave", "three-regime"),
        _WIDTH,
        "kernel",
        borrowed=PLAIN,
        recipe=_ROWS,
    ),
    Operator(
        "layer_norm", "layer_norm", "row_ops", ("row-wave",), _WIDTH, borrowed=PLAIN, recipe=_ROWS
    ),
    Operator(
        "softmax",
        "softmax",
        "row_ops",
        ("softmax-wave", "three-regime"),
        _WIDTH,
        recipe=_ROWS,
    ),
    Operator(
        "pointwise",
        "pointwise",
        "pointwise",
        ("elementwise",),
        (),
        "kernel",
        borrowed=PLAIN,
        recipe=_ROWS,
    ),
    Operator(
        "embedding", "embedding", "pointwise", ("row-wave",), _WIDTH, borrowed=PLAIN, recipe=_ROWS
    ),
    Operator("rope", "rope", "pointwise", ("row-wave",), _WIDTH, borrowed=PLAIN, recipe=_ROWS),
    Operator(
        "mla_prefill",
        "mla_prefill",
        "mla",
        ("flash-tiles",),
        _HEADS[1:],
        "kv_dtype",
        borrowed=ANY_ENGINE,
    ),
    Operator(
        "mla_decode",
        "mla_decode",
        "mla",
        ("absorbed",),
        _HEADS[1:],
        "kv_dtype",
        borrowed=ANY_ENGINE,
    ),
    Operator(
        "moe",
        "moe",
        "moe",
        ("moe-tile-{dtype}",),
        (_FAMILY, (*_FAMILY, "tp", "ep")),
        "kernel",
        recipe=Recipe(bound=0.7),
    ),
    *(
        Operator(op, op, "scan", (f"scan-{form}",), (("heads",),), "phase", rows={"phase": phase})
        for op in ("gdn", "kda", "mamba2")
        for phase, form in (("context", "chunked"), ("generation", "recurrent"))
    ),
    *(
        Operator(
            "conv1d",
            "conv1d",
            "scan",
            ("causal-conv1d",),
            (("channels",),),
            "phase",
            rows={"phase": phase, "family": "gdn"},
        )
        for phase in ("context", "generation")
    ),
    *(
        Operator(op, op, "collective", ("three-lines",), borrowed=("nccl",), recipe=_LINES)
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    ),
    Operator(
        "custom_all_reduce",
        "custom_all_reduce",
        "collective",
        ("three-lines",),
        (),
        "kernel",
        recipe=_LINES,
    ),
    *(
        Operator(
            energy_op(op), op, "energy", ("power",), (shape,), recipe=Recipe(**FIT), joules=True
        )
        for op, shape in SHAPES.items()
    ),
)


@dataclass(frozen=True)
class Rows:
    """The rows of one estimator: of one op, library, version, format and variant."""

    operator: Operator
    dtype: str
    variant: str
    table: Table

    @property
    def library(self) -> str:
        """Whose kernels they are."""
        return str(self.table["library"][0])

    @property
    def version(self) -> str:
        """Of the library."""
        return str(self.table["version"][0])

    @property
    def source(self) -> str:
        """Who measured."""
        return str(self.table["source"][0])

    @property
    def kernel(self) -> str:
        """The kernel's upstream name, "" where the rows have several."""
        names = np.unique(self.table["kernel"].astype(str))
        return str(names[0]) if len(names) == 1 else ""

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The default form, then baselines."""
        found = []
        for template in self.operator.forms:
            form = catalog.find(self.operator.op, template.format(dtype=self.dtype))
            if form is not None:
                found.append(form)
        return tuple(found)

    @cached_property
    def dims(self) -> Dims:
        """The sizes of the rows, as the forms name them."""
        return self.operator.function("dims")(self.table)  # type: ignore[no-any-return]

    @cached_property
    def measured(self) -> Array:
        """What is predicted of each row: s, or J where the op is an energy."""
        if self.operator.joules:
            return energy_j(self.table)
        seconds: Array = self.table["time_s"]
        return seconds

    def data_sheet(self, device: Device) -> Array:
        """What the data sheet alone says of each row: roofline time, or energy at measured time."""
        if self.operator.joules:
            return data_sheet_j(self.table)
        return self.forms[0].floor_s(self.dims, device) + ROOFLINE_LAUNCH_S

    def splits(self) -> list[Split]:
        """What is held out."""
        return self.operator.function("splits")(self.table)  # type: ignore[no-any-return]

    def groups(self) -> NDArray[np.int64]:
        """The group of each row: a correction has to earn its place on whole ones.

        Shapes as coarse as leave enough of them, else rows of equal sizes.
        """
        for names in (*self.operator.shapes, tuple(self.dims)):
            sizes = [self.dims[n] if n in self.dims else self.table[n] for n in names]
            distinct, index = np.unique(np.stack(sizes), axis=1, return_inverse=True)
            if distinct.shape[1] >= _FEWEST_GROUPS:
                break
        return index.reshape(-1)


def rows_of(operator: Operator, gpu: str, library: str, root: Path | None = None) -> Iterator[Rows]:
    """The rows that an op is fitted on: the newest version measured in bursts, per format.

    A version with only long runs stands in where there is no other; power was sampled in long runs
    alone. Nothing for an op without rows on this GPU.
    """
    found: list[Rows] = []
    for name in dict.fromkeys((library, *operator.borrowed)):
        found = list(_of_library(operator, gpu, name, root))
        if found:
            break
    yield from found
    for name in operator.lent if found else ():
        formats = {rows.dtype for rows in found}
        lent = [r for r in _of_library(operator, gpu, name, root) if r.dtype not in formats]
        yield from lent
        found += lent


def _of_library(operator: Operator, gpu: str, name: str, root: Path | None) -> Iterator[Rows]:
    try:
        table = read(operator.table, gpu, name, root=root)
    except HymellError:
        return
    table = table.where(**operator.rows)
    yield from _newest(operator, labelled(table) if operator.joules else table)


def _newest(operator: Operator, table: Table) -> Iterator[Rows]:
    for dtype in np.unique(table["dtype"].astype(str)):
        mine = table.where(dtype=dtype)
        bursts = {
            str(v): not mine["sustained"][mine["version"] == v].all()
            for v in np.unique(mine["version"].astype(str))
            if not _timed_host(operator, str(dtype), mine.where(version=v))
        }
        if not bursts:
            continue
        chosen = mine.where(version=max(bursts, key=lambda v: (bursts[v], _natural(v))))
        for variant, part in _variants(operator, chosen):
            rows = Rows(operator, str(dtype), variant, part)
            if len(part) >= FEWEST_ROWS and rows.forms:
                yield rows


def _timed_host(operator: Operator, dtype: str, table: Table) -> bool:
    """Whether 19 of 20 kernels that the data sheet gives under `_SMALL_S` show the host instead.

    A board without a data sheet is taken at its word.
    """
    rows = Rows(operator, dtype, "", table)
    if operator.host_s == np.inf or not rows.forms:
        return False
    try:
        device = Device.of(load_gpu(str(table["gpu"][0])))
    except HymellError:
        return False
    small = rows.measured[rows.forms[0].floor_s(rows.dims, device) < _SMALL_S]
    return len(small) >= FEWEST_ROWS and bool(np.quantile(small, 0.05) > operator.host_s)


def _variants(operator: Operator, table: Table) -> Iterator[tuple[str, Table]]:
    """Rows by label; of several kernels for one thing the one with most rows is "" (the usual)."""
    if not operator.variant:
        yield "", table
        return
    names, counts = np.unique(table[operator.variant].astype(str), return_counts=True)
    usual = str(names[counts.argmax()]) if operator.variant == "kernel" else None
    for name in names:
        part = table.where(**{operator.variant: name})
        yield "" if name == usual else str(name), part


def _natural(version: str) -> tuple[tuple[int, str], ...]:
    """Order of versions: numbers by value."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for character in f"{version}.":
        if character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((int(digits), ""))
        digits = ""
        if character.isalpha():
            parts.append((-1, character))
    return tuple(parts)
