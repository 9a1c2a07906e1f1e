"""Figures on their way: counted in the process, brought to the stores. :mod:`bloomguard.figures` reads them."""
