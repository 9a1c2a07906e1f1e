"""Generated writes: the same random steps on a database with guards and on one without bloomguard, and a plain oracle.

    python -m tests.fuzz                                   10,000 steps, on SQLite and PostgreSQL
    python -m tests.fuzz --database sqlite --seed 4711     one program again, with what each step did
    python -m tests.fuzz --broken                          each rule that is broken on purpose is noticed

A program is a seed and some hundreds of steps; a step is who, what and another seed, so any of them can be left out:
a program that fails is shrunk to the steps that it takes.
"""
