"""The suite tries the same examples each time, `scripts/test quick` fewer; the full form (scripts/stress) new ones."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.examples import QUICK

settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("quick", parent=settings.get_profile("suite"), max_examples=10)
settings.register_profile("full", deadline=None)
settings.load_profile("full" if os.environ.get("OPTPROBE_FULL") else "quick" if QUICK else "suite")
