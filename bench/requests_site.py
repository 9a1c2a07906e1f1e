"""The site of ``bench.requests`` as a server loads it; ``BENCH_SITE`` says which mode and which data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .requests import GUARDED, STARTPROJECT, opened, set_up

_given: dict[str, Any] = json.loads(os.environ["BENCH_SITE"])
set_up(
    Path(_given["folder"]), _given["database"], MIDDLEWARE=STARTPROJECT if _given["mode"] == "unguarded" else GUARDED
)

from django.core.wsgi import get_wsgi_application  # noqa: E402

from bloomguard.wsgi import shield  # noqa: E402

application = get_wsgi_application()
if _given["mode"] == "door":
    application = opened(shield, application)
