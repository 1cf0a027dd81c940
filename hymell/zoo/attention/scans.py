"""The recurrences of the linear-attention variants, each in chunked parallel form.

Layout everywhere: ``q``, ``k`` are ``(B, H, S, dk)``, ``v`` is ``(B, H, S, dv)``, the state is
``(B, H, dk, dv)`` and None means zeros. The result is ``(o, state)``: ``o`` like ``v``, the state
after the last token in fp32 (fp64 for fp64 inputs). Arithmetic inside is in the state's precision.

The sequence is cut in chunks of ``chunk_size`` tokens (a power of two, 64 by default). Inside a
chunk every pair of tokens is computed at once with matrix products; the state is carried from one
chunk to the next. Work per head: O(S * chunk_size * (dk + dv) + S * dk * dv). A call with S = 1 is
one step of the recurrence, so prefill and decode share one function.

Decays are given as logarithms, at most 0, and only differences that are at most 0 are ever
exponentiated, so nothing overflows however strong the decay.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hymell.errors import HymellError
from hymell.zoo.attention.scan_marker import scan

CHUNK_SIZE = 64


@scan(kind="linear_attention")
def chunk_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, chunk_size: int = CHUNK_SIZE
) -> tuple[Tensor, Tensor]:
    """Causal linear attention without normaliser: S_t = S_{t-1} + k_t v_t^T, o_t = S_t^T q_t.

    ``q`` and ``k`` are already mapped by the kernel's feature map.
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.3 (arXiv:2006.16236).
    """
    no_decay = k.new_zeros(1, 1, k.shape[-2])
    return _scalar_decay_scan(q, k, v, no_decay, state, chunk_size)


@scan(kind="retention")
def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Retention: S_t = exp(g_h) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t.

    ``g``: ``(H,)``, the logarithm of each head's fixed decay.
    Source: Sun et al. 2023, "Retentive Network", section 2.1 (arXiv:2307.08621).
    """
    log_decay = g.reshape(1, -1, 1).expand(1, -1, k.shape[-2])
    return _scalar_decay_scan(q, k, v, log_decay, state, chunk_size)


@scan(kind="gated_linear_attention")
def chunk_gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Gated linear attention: S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t.

    ``g``: ``(B, H, S, dk)``, the logarithm of each key channel's gate.
    Source: Yang et al. 2023, "Gated Linear Attention Transformers", section 4
    (arXiv:2312.06635); the pairwise products are built by halving, see `_gated_scores`.
    """
    dtype, start = _start(q, k, v, state)
    size = _chunk(k.shape[-2], chunk_size)
    q_c, k_c, v_c, g_c = (_split(x.to(dtype), size) for x in (q, k, v, g))
    total = g_c.cumsum(-2)
    last = total[..., -1:, :]
    o, end = _carry(
        read=q_c * total.exp(),
        scores=_gated_scores(q_c, k_c, total),
        write=k_c * (last - total).exp(),
        keep=last.exp().mT,
        values=v_c,
        state=start,
    )
    return o[..., : v.shape[-2], :].to(v.dtype), end


@scan(kind="gated_delta_rule")
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Gated delta rule: S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T.

    The output is o_t = S_t^T q_t. ``g``: ``(B, H, S)``, the logarithm of each token's decay;
    ``beta``: ``(B, H, S)``, the writing strength; ``k`` should have unit length.

    With G the cumulative decay within a chunk, S_t = G_t S_0 + sum_{j<=t} (G_t / G_j) k_j u_j^T,
    where u solves the unit lower triangular system
    u_t = beta_t (v_t - G_t S_0^T k_t - sum_{j<t} (G_t / G_j) (k_t . k_j) u_j): the part without
    S_0 is solved for all chunks at once.
    Source: Yang et al. 2024, "Gated Delta Networks", section 3 (arXiv:2412.06464).
    """
    dtype, start = _start(q, k, v, state)
    size = _chunk(k.shape[-2], chunk_size)
    q_c, k_c, v_c = (_split(x.to(dtype), size) for x in (q, k, v))
    g_c, beta_c = (_split(x.to(dtype).unsqueeze(-1), size) for x in (g, beta))
    total = g_c.cumsum(-2)
    last = total[..., -1:, :]
    ratio = _decay_ratios(total)
    system = (beta_c * ratio * (k_c @ k_c.mT)).tril(-1)
    sides = torch.cat((beta_c * v_c, beta_c * total.exp() * k_c), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    o, end = _carry(
        read=q_c * total.exp(),
        scores=ratio * (q_c @ k_c.mT),
        write=k_c * (last - total).exp(),
        keep=last.exp(),
        values=solved[..., : v.shape[-1]],
        state=start,
        erase=solved[..., v.shape[-1] :],
    )
    return o[..., : v.shape[-2], :].to(v.dtype), end


def _scalar_decay_scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """A scan with one decay per head and token: ``log_decay`` broadcasts to ``(B, H, S)``."""
    dtype, start = _start(q, k, v, state)
    size = _chunk(k.shape[-2], chunk_size)
    q_c, k_c, v_c = (_split(x.to(dtype), size) for x in (q, k, v))
    total = _split(log_decay.to(dtype).unsqueeze(-1), size).cumsum(-2)
    last = total[..., -1:, :]
    o, end = _carry(
        read=q_c * total.exp(),
        scores=_decay_ratios(total) * (q_c @ k_c.mT),
        write=k_c * (last - total).exp(),
        keep=last.exp(),
        values=v_c,
        state=start,
    )
    return o[..., : v.shape[-2], :].to(v.dtype), end


def _carry(
    *,
    read: Tensor,
    scores: Tensor,
    write: Tensor,
    keep: Tensor,
    values: Tensor,
    state: Tensor,
    erase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Carry the state over the chunks: the only sequential part of a scan.

    Shapes, with N chunks of C tokens: read, write, erase ``(B, H, N, C, dk)``, scores
    ``(B, H, N, C, C)`` (lower triangular), values ``(B, H, N, C, dv)``, keep broadcasts to
    ``(B, H, N, dk, dv)``. Returns the outputs ``(B, H, N * C, dv)`` and the final state.
    """
    outputs = []
    for n in range(values.shape[2]):
        value = values[:, :, n]
        if erase is not None:
            value = value - erase[:, :, n] @ state
        outputs.append(read[:, :, n] @ state + scores[:, :, n] @ value)
        state = keep[:, :, n] * state + write[:, :, n].mT @ value
    return torch.cat(outputs, dim=-2), state


def _decay_ratios(total: Tensor) -> Tensor:
    """exp(total_i - total_j) for j <= i, else 0: ``(..., C, 1)`` to ``(..., C, C)``."""
    size = total.shape[-2]
    future = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    # Masked before exp: a future difference may be large and positive.
    return (total - total.mT).masked_fill(future, float("-inf")).exp()


def _gated_scores(q: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """sum_d q_id k_jd exp(total_id - total_jd) for j <= i, else 0: ``(..., C, C)``.

    exp(total_i) / exp(total_j) as two factors would overflow. The chunk is halved instead: for a
    query in the second half and a key in the first, both factors relative to the middle token are
    at most 1. The two halves on the diagonal are the same problem at half the size.
    """
    size = q.shape[-2]
    if size == 1:
        return (q * k).sum(-1, keepdim=True)
    half = size // 2
    middle = total[..., half - 1 : half, :]
    late = q[..., half:, :] * (total[..., half:, :] - middle).exp()
    early = k[..., :half, :] * (middle - total[..., :half, :]).exp()
    cross = late @ early.mT
    diagonal = _gated_scores(*(_split(x, half) for x in (q, k, total)))
    first, second = diagonal.unbind(-3)
    return torch.cat(
        (torch.cat((first, torch.zeros_like(cross)), -1), torch.cat((cross, second), -1)), -2
    )


def _split(x: Tensor, size: int) -> Tensor:
    """``(..., S, d)`` to ``(..., N, size, d)``, padded at the end with zeros.

    A padded token has k = v = beta = 0 and log decay 0: it leaves the state as it is.
    """
    missing = -x.shape[-2] % size
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])


def _chunk(tokens: int, chunk_size: int) -> int:
    """The chunk size for a sequence: never more than the next power of two above its length."""
    if chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise HymellError(f"chunk_size must be a power of two such as 64, not {chunk_size}.")
    return min(chunk_size, 1 << (tokens - 1).bit_length())


def _start(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[torch.dtype, Tensor]:
    """The dtype to compute in and the state to start from, after checking the shapes."""
    if not q.shape == k.shape or not k.shape[:-1] == v.shape[:-1] or q.dim() != 4 or not q.shape[2]:
        raise HymellError(
            "A scan needs q and k of shape (B, H, S, dk) and v of shape (B, H, S, dv) with S >= 1, "
            f"not q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}."
        )
    dtype = torch.promote_types(v.dtype, torch.float32)
    expected = (*k.shape[:2], k.shape[-1], v.shape[-1])
    if state is None:
        return dtype, v.new_zeros(expected, dtype=dtype)
    if state.shape != expected:
        raise HymellError(
            f"The state must have shape (B, H, dk, dv) = {expected}, not {tuple(state.shape)}."
        )
    return dtype, state.to(dtype)
