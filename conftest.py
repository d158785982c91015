"""Loads the plugin from this checkout where it is not installed: `pytest benchmarks` runs anyway.

pytest-benchmark's commands import this file and tests/conftest.py too, outside of any session.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

_PLUGIN = "pytest_hwqueue.plugin"

if find_spec("pytest_hwqueue") is None:
    # Last on the path, and only here: where a wheel is installed, that is what runs.
    sys.path.append(str(Path(__file__).parent))

# An installed plugin is found by its entry point, unless pytest is to load none by itself.
if not any(found.value == _PLUGIN for found in entry_points(group="pytest11")):
    pytest_plugins = [_PLUGIN]
