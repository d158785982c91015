"""pytester, for tests that run pytest inside pytest; hypothesis without a clock."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester"]

# How long an example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
