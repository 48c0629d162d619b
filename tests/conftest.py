"""The suite tries the same examples each time; the full form (scripts/stress) looks for new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("full", deadline=None)
settings.load_profile("full" if os.environ.get("OPTPROBE_FULL") else "suite")
