"""What does it cost to serve Llama 3 8B, by GPU and batch? Money per million output tokens."""

from __future__ import annotations

import hymell

PRICE_PER_HOUR = {"h100-sxm": 2.5, "a100-sxm-80gb": 1.4, "l40s": 0.9}

graph = hymell.trace("meta-llama/Meta-Llama-3-8B")
for gpu, price in PRICE_PER_HOUR.items():
    for batch in (1, 16, 64):
        report = hymell.predict(
            graph,
            hymell.Workload(batch=batch, prompt=1024, output=256),
            gpu=gpu,
            price_per_hour=price,
        )
        money = report.to_dict()["cost"]["per_million_output_tokens"]
        print(f"{gpu:15} batch {batch:3}  {report.tokens_per_s:7,.0f} tokens/s  {money:8.2f} per M")
