"""Does this GPU, this driver, this scheduler keep my tail latency? A pytest plugin and suite."""

from __future__ import annotations

__version__ = "0.1.0"
