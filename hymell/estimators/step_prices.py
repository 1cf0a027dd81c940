"""What one step of a serving engine takes: decode of some sequences beside chunks of prompts.

Kernels that work on tokens, whoever they belong to (products, norms, exchanges), are priced once
for all tokens of the step, the head for the tokens that are sampled, and what mixes the tokens of a
sequence (attention, scans) apart for decode and for each chunk. Replicas that share experts step
together: the fullest sets the pace, and the experts work on the tokens of all. A chunk of n tokens
behind h that are in the cache costs what the mixer of h + n tokens costs more than that of h, and
no less than one new token that reads them all. Everything is priced on a grid once and read off by
linear interpolation, so that thousands of steps take no time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment
from hymell.estimators.level3.groups import group_of
from hymell.estimators.rollup import (
    Steps,
    host_step_s,
    in_blocks,
    outside_s,
    split_by_region,
    system_s,
)
from hymell.graph import Phase
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import Attention, Conv1d, Scan

_MIXERS = (Attention, Conv1d, Scan)

#: Tokens up to which decode replays captured graphs together with chunks (vLLM's
#: max_cudagraph_capture_size); above it the host launches every kernel of a step with a chunk.
GRAPH_TOKENS = 512

#: How far a batch of sequences of unequal lengths is from the time at their mean to that at their
#: longest. LLMServingSim's profiles of vLLM 0.19 on RTX PRO 6000 have an alpha_default of 0.054 to
#: 0.075 (meta.yaml); that it means this is our reading, taken because it fits the runs of
#: docs/accuracy_serving.md.
UNEVEN = 0.06

#: (new tokens, tokens of the same prompt that are in the cache already)
Chunk = tuple[int, int]


@dataclass(frozen=True)
class Curve:
    """A value over whole numbers, linear between points."""

    at: list[float]
    values: list[float]

    def __call__(self, x: float) -> float:
        """The value at ``x``, of the nearest end beyond them."""
        at, values = self.at, self.values
        if x <= at[0]:
            return values[0]
        if x >= at[-1]:
            return values[-1]
        right = bisect_right(at, x)
        share = (x - at[right - 1]) / (at[right] - at[right - 1])
        return values[right - 1] + share * (values[right] - values[right - 1])


@dataclass(frozen=True)
class Surface:
    """A value over two numbers, linear between the points of a grid."""

    rows: list[float]
    curves: list[Curve]

    def __call__(self, row: float, column: float) -> float:
        """The value at a point, of the nearest edge beyond the grid."""
        rows, curves = self.rows, self.curves
        if row <= rows[0]:
            return curves[0](column)
        if row >= rows[-1]:
            return curves[-1](column)
        right = bisect_right(rows, row)
        share = (row - rows[right - 1]) / (rows[right] - rows[right - 1])
        low, high = curves[right - 1](column), curves[right](column)
        return low + share * (high - low)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one replica does in a step: ``sequences`` decode a token each, with ``context`` tokens
    in the cache on average and ``longest`` at most, beside ``chunks`` of prompts.
    """

    sequences: int
    context: float
    longest: float
    chunks: Sequence[Chunk]

    @property
    def tokens(self) -> int:
        """Tokens that go through the layers."""
        return self.sequences + sum(new for new, _ in self.chunks)


@dataclass(frozen=True)
class StepPrices:
    """Seconds of steps; `price_steps` makes one.

    Curves are over the tokens of all replicas, were they as full as the fullest:
    ``decode_tokens_s`` and ``prefill_tokens_s`` of kernels on tokens by the multipliers of each
    phase, ``decode_experts_s`` and ``prefill_experts_s`` of experts, ``head_s`` over sampled
    tokens. ``decode_s`` is over sequences and mean context, ``prompt_s`` over the tokens of one
    prompt. ``host_s`` and ``replay_s``: what the host needs at least for a step whose kernels it
    launches one by one, and for one that replays a graph.
    """

    decode_tokens_s: Curve
    prefill_tokens_s: Curve
    decode_experts_s: Curve
    prefill_experts_s: Curve
    head_s: Curve
    decode_s: Surface
    prompt_s: Curve
    launch_s: float
    host_s: float
    replay_s: float
    step_s: float
    sequence_s: float
    replicas: int

    def step(self, batches: Sequence[Batch]) -> float:
        """Seconds of one step of all replicas together; one of them at least has tokens."""
        tokens = [batch.tokens for batch in batches]
        fullest = max(batches, key=lambda batch: batch.tokens)
        widest, every = max(tokens), sum(tokens)
        share = 1 - fullest.sequences / widest
        routed = 1 - sum(batch.sequences for batch in batches) / every
        sampled = max(batch.sequences + len(batch.chunks) for batch in batches) * self.replicas
        device_s = _mixed(
            self.decode_tokens_s, self.prefill_tokens_s, share, widest * self.replicas
        )
        device_s += _mixed(self.decode_experts_s, self.prefill_experts_s, routed, every)
        device_s += max(map(self._mixer_s, batches)) + self.head_s(sampled) + self.launch_s
        launched = share and widest > GRAPH_TOKENS
        device_s = max(device_s, self.host_s if launched else self.replay_s)
        return device_s + self.step_s + self.sequence_s * sampled / self.replicas

    def _mixer_s(self, batch: Batch) -> float:
        decode_s = 0.0
        if batch.sequences:
            n = batch.sequences * self.replicas
            even_s = self.decode_s(n, batch.context)
            decode_s = even_s + UNEVEN * (self.decode_s(n, batch.longest) - even_s)
        return decode_s + sum(map(self._chunk_s, batch.chunks))

    def _chunk_s(self, chunk: Chunk) -> float:
        new, held = chunk
        more_s = self.prompt_s(held + new) - (self.prompt_s(held) if held else 0.0)
        return max(more_s, self.decode_s(self.replicas, held + new)) if held else more_s


def _mixed(decode_s: Curve, prefill_s: Curve, share: float, tokens: float) -> float:
    """Seconds of ``tokens`` of which a share are of prompts."""
    found = share * prefill_s(tokens) if share else 0.0
    return found + (1 - share) * decode_s(tokens) if share < 1 else found


def price_steps(
    model: Deployment,
    most_tokens: int,
    most_sequences: int,
    longest: int,
    exchanges: float = 1.0,
) -> StepPrices:
    """Prices of steps of up to ``most_tokens`` tokens and ``most_sequences`` sequences of all
    replicas, none longer than ``longest``.

    ``exchanges`` multiplies what exchanges between GPUs take. Raises HymellError for a model that
    does not generate, one that encodes a prompt apart, stages of layers, and lengths that no traced
    region holds.
    """
    name = model.graph.facts.name
    if "decode" not in model.graph.phases():
        raise HymellError(f"{name} does not generate tokens: there is nothing to serve")
    if model.encoder_decoder:
        raise HymellError(f"{name} encodes its prompt apart; serving it is not simulated")
    if model.parallel.pp > 1:
        raise HymellError("serving over stages of layers (--pp) is not simulated")
    parts = model.parallel.batch_parts
    tokens = _grid(most_tokens + most_sequences, parts)
    sequences = _grid(most_sequences, parts)[:: 2 if most_sequences > 64 else 1]
    if sequences[-1] < most_sequences:
        sequences = np.append(sequences, most_sequences)
    lengths = np.unique(np.round(np.geomspace(16, max(longest, 32), 28)))
    one = np.ones_like(tokens)

    def mixes(kernel: Kernel) -> bool:
        return isinstance(kernel.primitive, _MIXERS)

    def expert(kernel: Kernel) -> bool:
        return group_of(kernel.primitive) == "experts"

    def dense(kernel: Kernel) -> bool:
        return not (mixes(kernel) or expert(kernel) or kernel.block == "head")

    at = Steps(tokens, one, 64 * one, 64 * one)

    def between(kernel: Kernel) -> bool:
        return group_of(kernel.primitive) == "comm"

    def by_tokens(wanted: Callable[[Kernel], bool], phase: Phase) -> Curve:
        found = _seconds(model, "decode", at, wanted, phase)
        if exchanges != 1:
            messages_s = _seconds(model, "decode", at, lambda k: wanted(k) and between(k), phase)
            found = found + (exchanges - 1) * messages_s
        return Curve(tokens.tolist(), found.tolist())

    d, c = (grid.reshape(-1) for grid in np.meshgrid(sequences, lengths, indexing="ij"))
    mixed = _seconds(model, "decode", Steps(d, np.ones_like(d), c, c), mixes, "decode")
    mixed = mixed.reshape(len(sequences), len(lengths))
    prompts = np.unique(np.round(np.geomspace(1, max(longest, 2), 40)))
    none = np.zeros_like(prompts)
    # A replica has whole prompts, as many as there are parts of the batch.
    prompt = _seconds(
        model,
        "prefill",
        Steps(parts * np.ones_like(prompts), prompts, none, none),
        mixes,
        "prefill",
    )
    index = model.region_index("decode", parts, 1, 64)
    kernels = model.lowered(index).kernels
    launches = sum(kernel.repeat * kernel.launches for kernel in kernels)
    overheads, system = model.engine.overheads, model.system
    if system is None:
        step_s, sequence_s, launch_s = overheads.step_s, 0.0, launches * overheads.gap_s
    else:
        step_s, sequence_s = outside_s(system, model, kernels, "decode")
        launch_s = 0.0
    return StepPrices(
        decode_tokens_s=by_tokens(dense, "decode"),
        prefill_tokens_s=by_tokens(dense, "prefill"),
        decode_experts_s=by_tokens(expert, "decode"),
        prefill_experts_s=by_tokens(expert, "prefill"),
        head_s=by_tokens(lambda kernel: kernel.block == "head", "decode"),
        decode_s=Surface(
            sequences.tolist(), [Curve(lengths.tolist(), row.tolist()) for row in mixed]
        ),
        prompt_s=Curve(prompts.tolist(), prompt.tolist()),
        launch_s=launch_s,
        host_s=host_step_s(model, "prefill", launches),
        replay_s=host_step_s(model, "decode", launches),
        step_s=step_s,
        sequence_s=sequence_s,
        replicas=parts,
    )


def _grid(most: int, parts: int) -> Array:
    """Whole numbers up to ``most``, each a multiple of ``parts``: fine where tiles end."""
    fine = [*range(1, 16), *range(16, 256, 8), *range(256, 2048, 64), *range(2048, most, 512)]
    found = {parts * max(1, round(n / parts)) for n in fine if n < most}
    return np.array(sorted({*found, parts * max(1, -(-most // parts))}), dtype=np.float64)


def _seconds(
    model: Deployment, phase: Phase, steps: Steps, wanted: Callable[[Kernel], bool], as_in: Phase
) -> Array:
    """Seconds of the wanted kernels of single steps, by the system's multipliers of ``as_in``."""
    found = np.zeros(len(steps.B))
    for index, rows, part in split_by_region(model, phase, steps):
        kernels = model.lowered(index).kernels
        for kernel, (_, sums) in zip(kernels, in_blocks(kernels, model, phase, part), strict=True):
            if wanted(kernel):
                found[rows] += system_s(kernel, model, as_in, part, sums.time_s)
    return found
