"""What the plugin keeps in pytest's config, by typed keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.options import Settings

if TYPE_CHECKING:
    from pytest_hwqueue.measurement import Sink

# The key in pytest's `workerinput` that says a config is a worker's.
WORKER_KEY = "hwqueue"

SETTINGS = pytest.StashKey[Settings]()
SINK: pytest.StashKey[Sink] = pytest.StashKey()
# Why a test cannot be measured with its parameters.
REFUSED = pytest.StashKey[str]()

# What the worker's session has to say in each record.
NOTES = pytest.StashKey[tuple[str, ...]]()

# Number of the run, from 1, where cells are measured in several fresh processes.
RUN = pytest.StashKey[int]()
