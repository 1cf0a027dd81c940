"""The parts of benchmarks/intervals.py."""
