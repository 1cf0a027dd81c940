"""The parts of benchmarks/own_runs.py."""
