"""Loads the plugin from this checkout where it is not installed: `pytest benchmarks` runs anyway.

pytest-benchmark's commands import this file and tests/conftest.py too, outside of any session.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

_PLUGIN = "pytest_hwqueue.plugin"

# Last on the path: where a wheel is installed, that is what runs. The tests import each other's
# modules, which pytest 8.1 does not find otherwise.
sys.path.append(str(Path(__file__).parent))

# An installed plugin is found by its entry point, unless pytest is to load none by itself.
if not any(found.value == _PLUGIN for found in entry_points(group="pytest11")):
    pytest_plugins = [_PLUGIN]
