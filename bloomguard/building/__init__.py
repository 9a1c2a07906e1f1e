"""The way of a rebuild: what :mod:`bloomguard.rebuild` does it with, and what is done to a filter that is there."""
