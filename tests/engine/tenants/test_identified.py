"""A device is identified in a process of its own, whose output says why it could not be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.engine.tenants.identified import identify


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_cannot_be_opened_leaves_its_output_with_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DeviceError, match="cuda cannot be opened: "):
        identify("cuda", folder)
    assert [path.name for path in folder.iterdir()] == ["identify.log"]
