"""Parts of `benchmarks/blocks.py`."""
