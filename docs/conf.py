"""How Sphinx builds these pages: ``make docs``."""

import os
import sys
from pathlib import Path

import django

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "example_project"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

import bloomguard  # noqa: E402

project = "bloomguard"
author = "the bloomguard developers"
release = version = bloomguard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"bloomguard {version}"
nitpicky = False
