"""bloomguard: answers requests for IDs that do not exist before any cache or database look-up.

The request's way is ``middleware -> routes -> guards -> live -> stores -> filters``; the write's way is
``sync -> guards -> live -> stores -> filters``; the rebuild's way is ``management -> rebuild -> sources + stores``.
This module imports nothing of Django, so ``bloomguard.filters`` works without it.
"""

__version__ = "0.1.0"
