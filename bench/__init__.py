"""Benchmarks: ``make bench-filters``, or ``python -m bench.filters``. Each writes its rows to ``bench/results``."""
