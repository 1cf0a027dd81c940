"""Primitives: the kinds of kernel that estimators price, as frozen dataclasses of sizes.

Sizes are ints or polynomials until `at` puts a workload in; then they are numbers or numpy arrays
(one entry per workload), and so are the costs. Every primitive has

``flops``          multiply-adds times two of matrix-like work, full S^2 (what PyTorch's counter
                   counts); element-wise work is ``vector_flops``
``flops_causal``   the same with causality and windows applied: what a flash kernel computes
``bytes_read``     bytes that must be read once, ``weight_bytes`` of them weights
``bytes_written``  bytes that must be written once
``math``           data-sheet row of the arithmetic ("bf16", "fp8", "fp32", ...)
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from hymell.dims import Dim
from hymell.dtypes import bytes_per_element

#: An int or `Dim` before evaluation, a number or an array after.
Value: TypeAlias = Any

_P = TypeVar("_P")


def at(primitive: _P, B: Value = 1, S: Value = 1, L: Value = 0) -> _P:
    """The primitive with every size evaluated at a workload (numbers or numpy arrays)."""
    changes: dict[str, Any] = {}
    for f in fields(primitive):  # type: ignore[arg-type]
        value = getattr(primitive, f.name)
        if isinstance(value, Dim):
            changes[f.name] = value(B, S, L)
        elif isinstance(value, Preparation):
            changes[f.name] = at(value, B, S, L)
    return replace(primitive, **changes) if changes else primitive  # type: ignore[type-var]


def sizes(primitive: Any) -> dict[str, Value]:
    """The fields of a primitive by name, as shown in kernel tables."""
    return {f.name: getattr(primitive, f.name) for f in fields(primitive) if f.repr}


def depends_on(primitive: Any, variable: str) -> bool:
    """True when some size of the primitive changes with ``variable``."""
    return any(
        isinstance(value, Dim) and value.degree(variable) > 0 for value in sizes(primitive).values()
    )


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` products of (m, k) by (k, n); ``shared_b`` False when B differs per batch entry.

    ``a_dtype``, ``b_dtype``, ``out_dtype`` are stored formats; ``b_is_weight`` says that B is a
    parameter, so that its bytes are weight bytes.
    """

    kind: ClassVar[str] = "gemm"
    vector_flops: ClassVar[int] = 0
    m: Value
    n: Value
    k: Value
    batch: Value = 1
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    math: str = "bf16"
    b_is_weight: bool = True
    bias: bool = False

    @property
    def flops(self) -> Value:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def flops_causal(self) -> Value:
        return self.flops

    @property
    def _b_bytes(self) -> Value:
        return self.batch * self.n * self.k * bytes_per_element(self.b_dtype)

    @property
    def weight_bytes(self) -> Value:
        bias = self.n * bytes_per_element(self.out_dtype) if self.bias else 0
        return (self._b_bytes if self.b_is_weight else 0) + bias

    @property
    def bytes_read(self) -> Value:
        a = self.batch * self.m * self.k * bytes_per_element(self.a_dtype)
        return a + self.weight_bytes + (0 if self.b_is_weight else self._b_bytes)

    @property
    def bytes_written(self) -> Value:
        return self.batch * self.m * self.n * bytes_per_element(self.out_dtype)


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one MoE layer: up (and gate), activation, down, weighted sum.

    ``tokens`` T are routed to ``top_k`` of ``experts`` E; ``skew`` is the Zipf exponent of the
    experts' popularity (0: uniform). Weight bytes are those of the experts that get a token.
    ``ranks``: the experts are spread over that many GPUs, and costs are one GPU's mean share.
    """

    kind: ClassVar[str] = "experts"
    tokens: Value
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    gated: bool = True
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    math: str = "bf16"
    skew: float = 0.0
    bias: bool = False
    ranks: int = field(default=1, repr=False)

    @property
    def pairs(self) -> Value:
        """(token, expert) pairs that one GPU serves: T * k, where it has all experts."""
        pairs = self.tokens * self.top_k
        return pairs if self.ranks == 1 else pairs / self.ranks

    @property
    def tokens_per_expert(self) -> Value:
        """Mean tokens that an expert gets: T * k / E."""
        return self.tokens * self.top_k / self.experts

    @property
    def active_experts(self) -> Value:
        """Expected number of experts that get at least one token, on all GPUs together.

        E (1 - (1 - k/E)^T) under uniform routing; with a skew, the sum over experts of
        1 - (1 - p_e)^T where p_e is the chance that a token picks expert e.
        """
        tokens = np.asarray(self.tokens, dtype=np.float64)
        chances = selection_chances(self.experts, self.top_k, self.skew)
        if self.skew == 0:
            return self.experts * -np.expm1(tokens * _log_miss(float(chances[0])))
        miss = np.array([_log_miss(float(p)) for p in chances])
        return -np.expm1(tokens[..., None] * miss).sum(-1)

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def flops(self) -> Value:
        return 2 * self.pairs * self._matrices * self.hidden * self.intermediate

    @property
    def flops_causal(self) -> Value:
        return self.flops

    @property
    def vector_flops(self) -> Value:
        return self.pairs * self.intermediate * 8

    @property
    def expert_bytes(self) -> float:
        """Stored bytes of one expert."""
        weights = self._matrices * self.hidden * self.intermediate * bytes_per_element(self.b_dtype)
        biases = (self._matrices - 1) * self.intermediate + self.hidden if self.bias else 0
        return weights + biases * bytes_per_element(self.out_dtype)

    @property
    def weight_bytes(self) -> Value:
        active = self.active_experts
        return (active if self.ranks == 1 else active / self.ranks) * self.expert_bytes

    @property
    def _activation_bytes(self) -> Value:
        """Read or written once: routed rows into both GEMMs and out of them."""
        gate = 2 if self.gated else 1
        return (
            self.pairs * (self.hidden + gate * self.intermediate) * bytes_per_element(self.a_dtype)
        )

    @property
    def bytes_read(self) -> Value:
        return (
            self.weight_bytes
            + self._activation_bytes
            + self.tokens * self.hidden * bytes_per_element(self.a_dtype)
        )

    @property
    def bytes_written(self) -> Value:
        return self._activation_bytes + self.tokens * self.hidden * bytes_per_element(
            self.out_dtype
        )


def _log_miss(chance: float) -> float:
    return float(np.log1p(-min(chance, 1 - 1e-12)))


def selection_chances(experts: int, top_k: int, skew: float) -> np.ndarray:
    """Chance of each expert to be among a token's ``top_k``, popularity ~ rank^-skew.

    The chances sum to ``top_k``; no chance exceeds 1 (the excess goes to the others in
    proportion), which is what distinct experts per token require.
    """
    if top_k >= experts:
        return np.ones(experts)
    popularity = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    chances = np.zeros(experts)
    full = np.zeros(experts, dtype=bool)
    while True:
        left = top_k - full.sum()
        chances = np.where(full, 1.0, left * popularity / popularity[~full].sum())
        over = (chances > 1) & ~full
        if not over.any():
            return np.asarray(chances)
        full |= over


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One GEMM per group over ``m`` rows in total, uniform routing over ``groups``."""

    kind: ClassVar[str] = "grouped_gemm"
    vector_flops: ClassVar[int] = 0
    m: Value
    n: Value
    k: Value
    groups: int
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    math: str = "bf16"

    @property
    def flops(self) -> Value:
        return 2 * self.m * self.n * self.k

    @property
    def flops_causal(self) -> Value:
        return self.flops

    @property
    def active_groups(self) -> Value:
        """Expected groups with at least one row, each row choosing a group at random."""
        if self.groups == 1:
            return 1
        return self.groups * -np.expm1(
            np.asarray(self.m, dtype=np.float64) * np.log1p(-1 / self.groups)
        )

    @property
    def weight_bytes(self) -> Value:
        return self.active_groups * self.n * self.k * bytes_per_element(self.b_dtype)

    @property
    def bytes_read(self) -> Value:
        return self.weight_bytes + self.m * self.k * bytes_per_element(self.a_dtype)

    @property
    def bytes_written(self) -> Value:
        return self.m * self.n * bytes_per_element(self.out_dtype)


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention of ``q_len`` new queries over ``kv_len`` keys (the new ones included).

    ``window``: keys each query sees at most, itself included. ``latent``: MLA's absorbed form, in
    which the value is the first ``v_dim`` of the key, so that the cache is read once.
    """

    kind: ClassVar[str] = "attention"
    weight_bytes: ClassVar[int] = 0
    batch: Value
    q_len: Value
    kv_len: Value
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool = True
    window: int | None = None
    latent: bool = False
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    math: str = "bf16"

    @property
    def _per_pair(self) -> int:
        return 2 * self.heads * (self.qk_dim + self.v_dim)

    @property
    def flops(self) -> Value:
        return self.batch * self.q_len * self.kv_len * self._per_pair

    @property
    def pairs(self) -> Value:
        """(query, key) pairs of one sequence that the mask lets through."""
        return attention_pairs(self.q_len, self.kv_len, self.causal, self.window)

    @property
    def flops_causal(self) -> Value:
        return self.batch * self.pairs * self._per_pair

    @property
    def vector_flops(self) -> Value:
        """Softmax: about 5 operations per score."""
        return 5 * self.batch * self.heads * self.pairs

    @property
    def kv_read(self) -> Value:
        """Keys that some query of the sequence sees."""
        if self.window is None:
            return self.kv_len
        reach = self.window + self.q_len - 1 if self.causal else 2 * self.window + self.q_len
        return np.minimum(self.kv_len, reach)

    @property
    def kv_bytes(self) -> Value:
        width = self.qk_dim if self.latent else self.qk_dim + self.v_dim
        return self.batch * self.kv_read * self.kv_heads * width * bytes_per_element(self.kv_dtype)

    @property
    def bytes_read(self) -> Value:
        query = self.batch * self.q_len * self.heads * self.qk_dim * bytes_per_element(self.dtype)
        return query + self.kv_bytes

    @property
    def bytes_written(self) -> Value:
        return self.batch * self.q_len * self.heads * self.v_dim * bytes_per_element(self.dtype)


def attention_pairs(q_len: Value, kv_len: Value, causal: bool, window: int | None) -> Value:
    """(query, key) pairs through a causal and/or sliding-window mask, numbers or arrays.

    The queries are the last ``q_len`` of ``kv_len`` positions; query i sees at most ``window``
    keys up to itself. A window without causality sees that many on either side.
    """
    if not causal:
        return q_len * (kv_len if window is None else np.minimum(kv_len, 2 * window + 1))
    offset = kv_len - q_len
    if window is None:
        return q_len * offset + q_len * (q_len + 1) / 2
    growing = np.clip(window - offset, 0, q_len)
    return growing * offset + growing * (growing + 1) / 2 + (q_len - growing) * window


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a kernel does for a later one, whose measurements may count it in.

    ``kernel``: the product whose operand it quantises or the attention whose cache it appends to,
    None where there is no such attention; only its formats and widths count, it is not evaluated.
    ``rows``: tokens that it works on; ``copied_bytes``: bytes, of those read and written, of keys
    and values that go to the cache as they are.
    """

    kernel: Gemm | Attention | None
    rows: Value
    copied_bytes: Value = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """A kernel bound by the bytes it moves: element-wise, copy, gather, append, cast, fill.

    ``role`` names what it does ("activation", "residual_add", "rope_kv_append", "copy", ...);
    ``prepares`` is set for appends to the KV cache and for quantisations.
    """

    kind: ClassVar[str] = "pointwise"
    flops: ClassVar[int] = 0
    flops_causal: ClassVar[int] = 0
    role: str
    elements: Value
    bytes_read: Value
    bytes_written: Value
    weight_bytes: Value = 0
    vector_flops: Value = 0
    math: str = "fp32"
    prepares: Preparation | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RowReduce:
    """A reduction over ``cols`` for each of ``rows``: RMSNorm, LayerNorm, softmax, top-k, sum.

    ``role``: "rms_norm", "layer_norm", "softmax", "topk", "reduce"; a fused residual add shows in
    the bytes.
    """

    kind: ClassVar[str] = "row_reduce"
    flops: ClassVar[int] = 0
    flops_causal: ClassVar[int] = 0
    role: str
    rows: Value
    cols: Value
    bytes_read: Value
    bytes_written: Value
    weight_bytes: Value = 0
    vector_flops: Value = 0
    math: str = "fp32"


@dataclass(frozen=True, slots=True)
class Gather:
    """``rows`` rows of ``cols`` read from a table (an embedding, an index) and written out."""

    kind: ClassVar[str] = "gather"
    flops: ClassVar[int] = 0
    flops_causal: ClassVar[int] = 0
    vector_flops: ClassVar[int] = 0
    rows: Value
    cols: Value
    dtype: str = "bfloat16"
    from_weight: bool = True
    math: str = "fp32"

    @property
    def _payload(self) -> Value:
        return self.rows * self.cols * bytes_per_element(self.dtype)

    @property
    def weight_bytes(self) -> Value:
        return self._payload if self.from_weight else 0

    @property
    def bytes_read(self) -> Value:
        return self._payload + self.rows * bytes_per_element("int64")

    @property
    def bytes_written(self) -> Value:
        return self._payload


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution as the GEMM it is: ``m`` positions, ``n`` channels out, ``k`` taps in."""

    kind: ClassVar[str] = "conv"
    vector_flops: ClassVar[int] = 0
    m: Value
    n: Value
    k: Value
    groups: int
    input_bytes: Value
    dtype: str = "bfloat16"
    math: str = "bf16"

    @property
    def flops(self) -> Value:
        return 2 * self.m * self.n * self.k

    @property
    def flops_causal(self) -> Value:
        return self.flops

    @property
    def weight_bytes(self) -> Value:
        return self.n * self.k * bytes_per_element(self.dtype)

    @property
    def bytes_read(self) -> Value:
        return self.input_bytes + self.weight_bytes

    @property
    def bytes_written(self) -> Value:
        return self.m * self.n * bytes_per_element(self.dtype)


@dataclass(frozen=True, slots=True)
class Conv1d:
    """A short causal convolution: each channel on its own, over its last ``width`` tokens.

    ``step``: one new token per sequence (decode); the tokens before it are in a state. The taps
    are multiplied on the vector units, in fp32.
    """

    kind: ClassVar[str] = "conv1d"
    vector_flops: ClassVar[int] = 0
    batch: Value
    length: Value
    channels: int
    width: int
    bytes_read: Value
    bytes_written: Value
    step: bool = False
    dtype: str = "bfloat16"
    math: str = "fp32"
    weight_bytes: Value = 0

    @property
    def flops(self) -> Value:
        return 2 * self.batch * self.length * self.channels * self.width

    @property
    def flops_causal(self) -> Value:
        return self.flops


@dataclass(frozen=True, slots=True)
class Scan:
    """A linear recurrence over ``length`` tokens: SSM, gated delta rule, linear attention.

    The state of each of ``heads`` is ``key_dim`` x ``value_dim``. A chunked kernel works in chunks
    of ``chunk`` tokens (``recurrent`` in decode: one token, the state read and written).
    """

    kind: ClassVar[str] = "scan"
    vector_flops: ClassVar[int] = 0
    variant: str
    batch: Value
    length: Value
    heads: int
    key_dim: int
    value_dim: int
    chunk: int
    bytes_read: Value
    bytes_written: Value
    dtype: str = "bfloat16"
    math: str = "bf16"
    weight_bytes: Value = 0

    @property
    def flops(self) -> Value:
        """State update and read per token, plus the intra-chunk products of the chunked form.

        Per head and token: 4 dk dv for the state, and 2 C (dk + dv) within a chunk of C tokens
        (the two C x C products of chunked linear attention, GLA, arXiv 2312.06635); a chunk is
        never longer than the sequence.
        """
        state = 4 * self.key_dim * self.value_dim
        if isinstance(self.length, Dim):
            span: Value = self.chunk
        else:
            span = np.minimum(self.chunk, self.length)
        inside = 2 * span * (self.key_dim + self.value_dim) if self.chunk > 1 else 0
        return self.batch * self.length * self.heads * (state + inside)

    @property
    def flops_causal(self) -> Value:
        return self.flops


@dataclass(frozen=True, slots=True)
class Collective:
    """A message that ``n_gpus`` exchange; ``op``: a collective of `level1.collective` or send_recv.

    ``message_bytes`` is the size in the meaning of nccl-tests: the buffer that an all-reduce
    reduces, the whole output of an all-gather, the whole input of an all-to-all.
    """

    kind: ClassVar[str] = "collective"
    flops: ClassVar[int] = 0
    flops_causal: ClassVar[int] = 0
    vector_flops: ClassVar[int] = 0
    weight_bytes: ClassVar[int] = 0
    op: str
    message_bytes: Value
    n_gpus: int
    dtype: str = "bfloat16"
    math: str = "fp32"

    @property
    def bytes_read(self) -> Value:
        return self.message_bytes

    @property
    def bytes_written(self) -> Value:
        return self.message_bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """An op nobody registered: its bytes are known from its tensors, its FLOPs are not."""

    kind: ClassVar[str] = "unknown"
    flops: ClassVar[int] = 0
    flops_causal: ClassVar[int] = 0
    vector_flops: ClassVar[int] = 0
    name: str
    bytes_read: Value
    bytes_written: Value
    weight_bytes: Value = 0
    math: str = "fp32"


Primitive: TypeAlias = (
    Gemm
    | Experts
    | GroupedGemm
    | Attention
    | Memory
    | RowReduce
    | Gather
    | Conv
    | Conv1d
    | Scan
    | Collective
    | Unknown
)
