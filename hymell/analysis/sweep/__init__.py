"""Sweeps: many architectures, GPUs, engines and workloads priced, and the best of them."""
