"""Builds of torch for other devices than this machine's."""

from __future__ import annotations

import pytest
import torch


def built_for(
    monkeypatch: pytest.MonkeyPatch, *, cuda: str | None = None, hip: str | None = None
) -> None:
    """Let torch be built for this release of CUDA or HIP, or for the CPU alone."""
    for name, version in (("cuda", cuda), ("hip", hip)):
        monkeypatch.setattr(torch.version, name, version)
