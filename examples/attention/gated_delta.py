"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464)
in the place of a model's attention.

    hymell attention examples/attention/gated_delta.py:GatedDeltaAttention --in llama-3-8b
"""

from __future__ import annotations

import sys

import hymell
from hymell.zoo.attention import GatedDeltaAttention

if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-8b"
    found = hymell.compare_attention(GatedDeltaAttention, model)
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
