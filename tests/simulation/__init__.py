"""Deterministic simulation of the protocol: the project's own code on simulated servers, databases and clocks.

    python -m tests.simulation            schedules by the thousand, and every mutant
    python -m tests.simulation 4711       one schedule with a readable trace of it

See ``docs/protocol.md`` for what it covers and what it does not.
"""
