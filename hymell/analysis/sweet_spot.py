"""Where a model is cheapest per output token: a grid of lengths priced from one traced graph.

After SweetSpot (arXiv 2602.05695): a short answer to a long prompt pays for the prompt, a long
answer for its cache; in between the energy per output token has a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell.analysis.length_form import Array, LengthForm, fit_length_form
from hymell.analysis.traffic import Request
from hymell.errors import HymellError
from hymell.estimators.base import Deployment, Estimator
from hymell.estimators.memory import fits
from hymell.estimators.offsets import Offsets
from hymell.estimators.predict import deploy, predict_graph, price
from hymell.graph import OpGraph
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.workload import SINGLE, Parallel, Precision, Workload

SCHEMA_VERSION = 1

#: The lengths that SweetSpot measured: 64 to 4096 tokens.
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)

#: The most pairs of lengths that are priced; above it a list of lengths is taken for a mistake.
MAX_CELLS = 100_000

ENERGY, LATENCY = "energy", "latency"

_Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cell:
    """Sequences of ``input`` prompt and ``output`` generated tokens, and what they cost.

    Energy is that of all GPUs, per output token of the batch; latency is the run's divided by the
    output tokens of one sequence, its prefill included. ``fits`` says whether the batch fits the
    GPU's memory, ``in_context`` whether the model was made for such lengths; only cells with both
    take part in the minimum and the region.
    """

    input: int
    output: int
    energy_per_output_token_j: float
    latency_per_output_token_s: float
    fits: bool
    in_context: bool
    in_region: bool


@dataclass(frozen=True, slots=True)
class BestOutput:
    """The cheapest output length of the grid for one prompt length, and the form's own.

    ``form_output`` is None where the form has no minimum: the longer, the cheaper.
    """

    input: int
    output: int
    form_output: float | None
    energy_per_output_token_j: float
    latency_per_output_token_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """Traffic moved to other lengths, as many output tokens as before; savings are shares."""

    to: str
    energy_per_output_token_j: float
    latency_per_output_token_s: float
    energy_saved: float
    latency_saved: float


@dataclass(frozen=True, slots=True)
class TrafficCost:
    """What traffic costs per output token, as it is and moved.

    ``in_region`` is the share of its output tokens that cost no more than the region's,
    ``impossible`` that of requests which do not fit the GPU or the model; they are priced as if.
    """

    requests: float
    pairs: int
    mean_input: float
    mean_output: float
    energy_per_output_token_j: float
    latency_per_output_token_s: float
    in_region: float
    impossible: float
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class SweetSpot:
    """The grid, its minimum of ``by``, the region within a share ``within`` of it, the forms.

    See `hymell.sweet_spot`. ``cells`` are in order of input, then output.
    """

    model: str
    gpu: str
    engine: str
    dtype: str
    batch: int
    parallel: Mapping[str, int]
    by: str
    within: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cells: tuple[Cell, ...]
    minimum: Cell
    best_outputs: tuple[BestOutput, ...]
    energy_form: LengthForm
    latency_form: LengthForm
    energy_calibrated: bool
    assumptions: Mapping[str, Any]
    traffic: TrafficCost | None = None
    warnings: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, ready for JSON."""
        return asdict(self)

    def grid(self, name: str) -> NDArray[Any]:
        """A field of the cells as an array of inputs x outputs."""
        values = np.array([getattr(cell, name) for cell in self.cells])
        return values.reshape(len(self.inputs), len(self.outputs))


@dataclass(frozen=True, slots=True)
class _Costs:
    """Energy and latency per output token, and where lengths are possible; arrays of one shape."""

    energy_j: Array
    latency_s: Array
    fits: _Mask
    in_context: _Mask

    @property
    def possible(self) -> _Mask:
        return self.fits & self.in_context

    def of(self, by: str) -> Array:
        return self.energy_j if by == ENERGY else self.latency_s


def find_sweet_spot(
    graph: OpGraph,
    *,
    gpu: Gpu,
    engine: Engine,
    batch: int = 1,
    inputs: Sequence[int] = LENGTHS,
    outputs: Sequence[int] = LENGTHS,
    by: str = ENERGY,
    within: float = 0.1,
    traffic: Sequence[Request] = (),
    precision: Precision | None = None,
    skew: float = 0.0,
    kv_pool_bytes: float | None = None,
    estimator: Estimator | None = None,
    parallel: Parallel = SINGLE,
    offsets: Offsets | None = None,
) -> SweetSpot:
    """The sweet spot of a traced model; arguments as `hymell.sweet_spot` explains them.

    Raises HymellError for lengths that make no sense, for a model that does not generate, and where
    no pair of lengths fits the GPU and the model.
    """
    columns, rows = check_lengths("inputs", inputs), check_lengths("outputs", outputs)
    if len(columns) * len(rows) > MAX_CELLS:
        raise HymellError(
            f"{len(columns) * len(rows):,} pairs of lengths: give {MAX_CELLS:,} at most"
        )
    check_choice(by, within)
    if "decode" not in graph.phases():
        raise HymellError(
            f"{graph.facts.name} does not generate tokens: it has no energy per output token"
        )
    parallel.check_batch(batch)
    setup: dict[str, Any] = {
        "gpu": gpu,
        "engine": engine,
        "precision": precision,
        "skew": skew,
        "estimator": estimator,
        "parallel": parallel,
        "offsets": offsets,
    }
    model = deploy(graph, **setup)

    def costs(i: Array, o: Array) -> _Costs:
        priced = price(graph, batch, i, o, **setup)
        return _Costs(
            priced["energy_per_output_token_j"],
            priced["latency_s"] / o,
            fits(model, batch, i, o, kv_pool_bytes),
            _in_context(model, i, o),
        )

    grid_i, grid_o = np.meshgrid(np.array(columns, float), np.array(rows, float), indexing="ij")
    grid = costs(grid_i, grid_o)
    best = _minimum(grid, by, grid_i, grid_o, model, batch)
    limit = (1 + within) * grid.of(by)[best]
    region = grid.possible & (grid.of(by) <= limit)
    cells = _cells(grid_i, grid_o, grid, region)
    minimum = cells[int(np.ravel_multi_index(best, grid_i.shape))]
    possible = grid.possible
    forms = {
        name: fit_length_form(grid_i[possible], grid_o[possible], grid.of(name)[possible])
        for name in (ENERGY, LATENCY)
    }
    report = predict_graph(
        graph,
        Workload(batch, minimum.input, minimum.output),
        kv_pool_bytes=kv_pool_bytes,
        **setup,
    )
    return SweetSpot(
        model=report.model,
        gpu=report.gpu,
        engine=report.engine,
        dtype=report.dtype,
        batch=batch,
        parallel=report.parallel,
        by=by,
        within=within,
        inputs=columns,
        outputs=rows,
        cells=cells,
        minimum=minimum,
        best_outputs=_best_outputs(cells, forms[by], by),
        energy_form=forms[ENERGY],
        latency_form=forms[LATENCY],
        energy_calibrated=report.energy_calibrated,
        assumptions={
            name: text
            for name, text in report.assumptions.items()
            if name not in ("prompt", "output", "cost")
        },
        traffic=_moved(traffic, costs, cells, minimum, by, limit) if traffic else None,
        warnings=(*_left_out(grid), *report.warnings),
        not_understood=tuple(op for op, _, _ in report.coverage.unknown),
    )


def check_lengths(name: str, lengths: Iterable[int]) -> tuple[int, ...]:
    """Distinct lengths in order. Raises HymellError for none, or one that no workload can have."""
    found = sorted(set(lengths))
    if not found:
        raise HymellError(f"{name}: give at least one length")
    for length in (found[0], found[-1]):
        try:
            Workload(1, length, length)
        except HymellError as error:
            raise HymellError(f"{name}: {str(error).removeprefix('prompt ')}") from None
    return tuple(found)


def check_choice(by: str, within: float) -> None:
    """Raise HymellError for something else than energy and latency, or a margin that is none."""
    if by not in (ENERGY, LATENCY):
        raise HymellError(f"the sweet spot is by energy or by latency, not by {by!r}")
    if not 0 <= within <= 10:
        raise HymellError(f"the region is within 0 to 1000% of the minimum, not {100 * within:g}%")


def _in_context(model: Deployment, i: Array, o: Array) -> _Mask:
    longest = model.graph.facts.max_context
    if longest is None:
        return np.ones(i.shape, dtype=bool)
    return np.asarray((o if model.encoder_decoder else i + o) <= longest)


def _minimum(
    grid: _Costs, by: str, i: Array, o: Array, model: Deployment, batch: int
) -> tuple[np.intp, ...]:
    if not grid.possible.any():
        name = model.graph.facts.name
        if grid.in_context.any():
            raise HymellError(
                f"no pair of lengths of {name} fits on {model.gpu.name} at batch {batch}: "
                "give shorter lengths, a smaller batch, a larger GPU or --tp"
            )
        raise HymellError(
            f"{name} was made for {model.graph.facts.max_context} tokens, fewer than the shortest "
            f"pair of lengths, {i.min():.0f} + {o.min():.0f}: give shorter ones"
        )
    where = np.where(grid.possible, grid.of(by), np.inf)
    return np.unravel_index(np.argmin(where), where.shape)


def _cells(i: Array, o: Array, grid: _Costs, region: _Mask) -> tuple[Cell, ...]:
    columns = (i.astype(int), o.astype(int), grid.energy_j, grid.latency_s)
    masks = (grid.fits, grid.in_context, region)
    rows = zip(*(values.reshape(-1).tolist() for values in (*columns, *masks)), strict=True)
    return tuple(Cell(*row) for row in rows)


def _cost(cell: Cell, by: str) -> float:
    return cell.energy_per_output_token_j if by == ENERGY else cell.latency_per_output_token_s


def _best_outputs(cells: Sequence[Cell], form: LengthForm, by: str) -> tuple[BestOutput, ...]:
    best: dict[int, Cell] = {}
    for cell in cells:
        held = best.get(cell.input)
        if cell.fits and cell.in_context and (held is None or _cost(cell, by) < _cost(held, by)):
            best[cell.input] = cell
    found = []
    for input_, cell in best.items():
        own = float(form.best_output(input_))
        found.append(
            BestOutput(
                input_,
                cell.output,
                own if np.isfinite(own) else None,
                cell.energy_per_output_token_j,
                cell.latency_per_output_token_s,
            )
        )
    return tuple(found)


def _moved(
    traffic: Sequence[Request],
    costs: Callable[[Array, Array], _Costs],
    cells: Sequence[Cell],
    minimum: Cell,
    by: str,
    limit: float,
) -> TrafficCost:
    """Traffic as it is, and with its output tokens made at better lengths.

    Means are weighted by output tokens. A request moves only where that makes its tokens cheaper.
    """
    i, o, weight = np.array([(r.input, r.output, r.weight) for r in traffic], dtype=np.float64).T
    now = costs(i, o)
    share = weight * o / (weight * o).sum()
    energy_j, latency_s = (float(share @ v) for v in (now.energy_j, now.latency_s))
    inside = now.possible & (now.of(by) <= limit)
    region = [cell for cell in cells if cell.in_region]
    nearest = [region[k] for k in _nearest(i, o, region)]
    outputs = np.array(sorted({cell.output for cell in cells}), dtype=np.float64)
    prompts, row = np.unique(i, return_inverse=True)
    same = costs(*np.broadcast_arrays(prompts[:, None], outputs))
    best = np.where(same.possible, same.of(by), np.inf)
    at = row, best.argmin(axis=1)[row]
    moves = {
        "the best output length of its prompt": (
            same.energy_j[at],
            same.latency_s[at],
            best[at] < now.of(by),
        ),
        "the nearest lengths in the region": (
            np.array([cell.energy_per_output_token_j for cell in nearest]),
            np.array([cell.latency_per_output_token_s for cell in nearest]),
            ~inside,
        ),
        "the minimum": (
            np.full(len(i), minimum.energy_per_output_token_j),
            np.full(len(i), minimum.latency_per_output_token_s),
            now.of(by) > _cost(minimum, by),
        ),
    }
    found = []
    for to, (joules, seconds, moved) in moves.items():
        energy = float(share @ np.where(moved, joules, now.energy_j))
        latency = float(share @ np.where(moved, seconds, now.latency_s))
        found.append(Move(to, energy, latency, 1 - energy / energy_j, 1 - latency / latency_s))
    return TrafficCost(
        requests=float(weight.sum()),
        pairs=len(i),
        mean_input=float(weight @ i / weight.sum()),
        mean_output=float(weight @ o / weight.sum()),
        energy_per_output_token_j=energy_j,
        latency_per_output_token_s=latency_s,
        in_region=float(share @ inside),
        impossible=float(share @ ~now.possible),
        moves=tuple(found),
    )


def _nearest(i: Array, o: Array, region: Sequence[Cell]) -> NDArray[np.intp]:
    """Index of the cell whose lengths differ by the smallest factors."""
    cell_i, cell_o = np.log2([(c.input, c.output) for c in region]).T
    far = (np.log2(i)[:, None] - cell_i) ** 2 + (np.log2(o)[:, None] - cell_o) ** 2
    return np.asarray(far.argmin(axis=1))


def _left_out(grid: _Costs) -> Iterable[str]:
    full, long = int((~grid.fits).sum()), int((~grid.in_context).sum())
    if full:
        yield f"{full} of {grid.fits.size} pairs of lengths do not fit the GPU and take no part"
    if long:
        yield (
            f"{long} of {grid.fits.size} pairs of lengths are longer than the model was made for "
            "and take no part"
        )
