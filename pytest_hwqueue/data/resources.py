"""What of a device, and of the host that launches, tenants share."""

from __future__ import annotations

from typing import Literal, get_args

Resource = Literal["multiprocessors", "blocks", "l2", "memory", "copies", "launches"]
"""multiprocessors: what kernels compute on; blocks: how fast blocks of kernels start; l2: the cache
that all multiprocessors have in common; memory: the bandwidth of the device's memory; copies:
between host and device; launches: of kernels, by the host."""

RESOURCES: tuple[Resource, ...] = get_args(Resource)
