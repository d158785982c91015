"""A small library, built here, that stands for a scheduler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "schedulers"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lib") / "libtiny.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(path), str(EXAMPLES / "tiny.c")]
    subprocess.run(command, check=True)
    return path
