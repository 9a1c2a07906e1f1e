"""Generated writes: the same random steps on a database with guards and on one without bloomguard, and a plain oracle.

    python -m tests.fuzz --database postgresql --steps 5000   programs with seeds 0, 1, 2 ...
    python -m tests.fuzz --seed 4711 --explain                one program again, with what each step sent
    python -m tests.fuzz --broken bulk_create_adds_nothing    how many steps it takes to notice a broken rule

A program is a seed and some hundreds of steps; a step is who, what and another seed, so any of them can be left out:
a program that fails is shrunk to the steps that it takes.
"""
