"""A module that knows nothing of hymell: multi-query attention (Shazeer 2019, arXiv:1911.02150).
It takes ``x`` and its own keys and values, and returns them with the result.

    hymell attention examples/attention/own_multi_query.py:MultiQuery --in llama-3-8b
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiQuery(nn.Module):
    """Causal attention in which all query heads share one head of keys and values."""

    def __init__(self, config) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.width = config.hidden_size // self.heads
        self.queries = nn.Linear(config.hidden_size, self.heads * self.width, bias=False)
        self.keys_values = nn.Linear(config.hidden_size, 2 * self.width, bias=False)
        self.out = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None):
        """``(B, S, hidden)`` to the same and ``(keys, values)``, each ``(B, 1, tokens, width)``."""
        batch, tokens, _ = x.shape
        q = self.queries(x).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        k, v = self.keys_values(x).unsqueeze(1).chunk(2, dim=-1)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        return self.out(o.transpose(1, 2).flatten(-2)), (k, v)


if __name__ == "__main__":
    import hymell

    found = hymell.compare_attention(MultiQuery, "llama-3-8b")
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
