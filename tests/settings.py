"""The example project's settings, with what a test needs changed."""

from config.settings import *  # noqa: F403
