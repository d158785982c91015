"""A small package named torchvision, with the few names of the real one that models need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_INIT = """
from torchvision import models

__version__ = "0.99+standin"
"""
_MODELS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.downsample = None

    def forward(self, images):
        between = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(images + self.bn2(self.conv2(between)))


class Small(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 7, stride=4)
        self.blocks = nn.Sequential(Block(8), Block(8), Block(8), Block(8))
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, num_classes)

    def forward(self, images):
        found = self.blocks(self.first(images)).mean(dim=(2, 3))
        return self.last(self.drop(found))


def list_models(module=None):
    assert module.__name__ == "torchvision.models"
    return ["resnet18", "resnet50"]


def get_model(name, *, weights, **configuration):
    assert weights is None, "nothing may be downloaded"
    return Small(**configuration)
"""


def put_on_path(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts import the stand-in."""
    (folder / "torchvision" / "models").mkdir(parents=True)
    (folder / "torchvision" / "__init__.py").write_text(_INIT, encoding="utf-8")
    (folder / "torchvision" / "models" / "__init__.py").write_text(_MODELS, encoding="utf-8")
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        patched.delitem(sys.modules, name)
    patched.syspath_prepend(folder)
    patched.setenv("PYTHONPATH", str(folder))
