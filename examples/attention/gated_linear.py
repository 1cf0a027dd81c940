"""Gated linear attention (Yang et al. 2023, arXiv:2312.06635)
in the place of a model's attention.

    hymell attention examples/attention/gated_linear.py:GatedLinearAttention --in llama-3-8b
"""

from __future__ import annotations

import sys

import hymell
from hymell.zoo.attention import GatedLinearAttention

if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-8b"
    found = hymell.compare_attention(GatedLinearAttention, model)
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
