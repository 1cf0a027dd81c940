"""The parts of benchmarks/energy.py."""
