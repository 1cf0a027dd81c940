"""Retention, a fixed decay per head (Sun et al. 2023, arXiv:2307.08621)
in the place of a model's attention.

    hymell attention examples/attention/retention.py:RetentionAttention --in llama-3-8b
"""

from __future__ import annotations

import sys

import hymell
from hymell.zoo.attention import RetentionAttention

if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-8b"
    found = hymell.compare_attention(RetentionAttention, model)
    for crossover in found.crossovers:
        print(crossover.measure, crossover.cheaper, crossover.context or "everywhere")
