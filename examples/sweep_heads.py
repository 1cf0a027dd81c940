"""What do twice the attention heads cost, and which number of them costs least energy?"""

from __future__ import annotations

import hymell

found = hymell.sweep(
    "meta-llama/Meta-Llama-3-8B", {"num_attention_heads": [16, 32, 64]}, batch=[1, 64]
)
rows = list(found.rows())
for row in rows:
    heads, batch = row["num_attention_heads"], row["batch"]
    per_token_j = row["energy_per_output_token_j"]
    print(f"{heads:3} heads, batch {batch:2}: {1e3 * row['tpot_s']:.2f} ms, {per_token_j:.3f} J")
least = min(rows, key=lambda row: row["energy_per_output_token_j"])
print("least energy per token:", least["num_attention_heads"], "heads at batch", least["batch"])
