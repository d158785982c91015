"""Runs in each Python process of a side before anything else; see ``answers/versions/imports.py``.

The folder is on the side's PYTHONPATH. The module is loaded by its path and not by its name: which
files the name ``pytest_hwqueue`` stands for is one of the things that it decides.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = "hwq_side_imports"


def _load() -> None:
    file = os.path.join(os.path.dirname(_HERE), "imports.py")
    spec = importlib.util.spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def _run_the_hidden_one() -> None:
    """Run the sitecustomize of the interpreter or of the user, which this one hides."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


# Nobody else imports from here, nor is the folder to be taken for one of the working folder's.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
if _NAME not in sys.modules:
    # In a comparison that a side of another one makes, that one's folder is on the path, too.
    _load()
_run_the_hidden_one()
