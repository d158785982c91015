"""Imports what others wrote for a scenario's tenants, in processes of their own, before all else.

That is users' functions, and models of torchvision by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.engine.scenarios.file import Scenario
from pytest_hwqueue.parts.processes.reaper import kill
from pytest_hwqueue.parts.processes.starting import start_reaped, worker_environment
from pytest_hwqueue.parts.workloads.tenants.shapes import TORCHVISION, missing_package

_IMPORTING_S = 180.0
_MOST_OUTPUT = 2000
# What it found goes to a file: the module may write to the output.
_BEGIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
_END = "open(int(sys.argv[-1]), 'w').write(found)"
_OF_FUNCTION = (
    "from pytest_hwqueue.parts.workloads.own_function import problem; "
    "found = problem(sys.argv[2], sys.argv[3], json.loads(sys.argv[4])); "
)
_OF_MODEL = (
    "from pytest_hwqueue.parts.workloads.tenants.models import problem; "
    "found = problem(sys.argv[2]); "
)


def check_functions(scenario: Scenario, file: Path) -> None:
    """Import each function of a scenario's tenants; nothing is prepared, and no device opened.

    Likewise each model of torchvision, unless torchvision is missing: who runs them says that.

    Raises:
        BadInput: naming file, tenant and function or model, with the traceback if its module
            raised.

    """
    checked: set[object] = set()
    for variant in (None, *scenario.variants):
        for tenant in scenario.tenants_of(variant):
            model = tenant.model or ""
            if model.startswith(TORCHVISION) and model not in checked:
                checked.add(model)
                if missing_package([model]) is None and (found := _said(model, _OF_MODEL, [])):
                    raise BadInput(f"{file}: tenant {tenant.name}: model: {found}")
            if tenant.function is None:
                continue
            parameters = json.dumps(tenant.parameters, sort_keys=True)
            if (tenant.function, parameters) not in checked:
                checked.add((tenant.function, parameters))
                found = _problem(tenant.function, file.parent.absolute(), parameters)
                if found:
                    raise BadInput(f"{file}: tenant {tenant.name}: function: {found}")


def _problem(function: str, folder: Path, parameters: str) -> str:
    return _said(function, _OF_FUNCTION, [str(folder), parameters])


def _said(name: str, code: str, arguments: Sequence[str]) -> str:
    """Return why code that imports what has this name finds it unusable, or an empty text."""
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as answer, NamedTemporaryFile() as log:
        program = f"{_BEGIN}{code}{_END}"
        command = [sys.executable, "-c", program, json.dumps(sys.path), name, *arguments]
        try:
            process = start_reaped(
                [*command, str(writer)],
                worker_environment(os.environ),
                Path(log.name),
                [writer],
            )
        finally:
            os.close(writer)
        try:
            status = process.wait(_IMPORTING_S)
        except subprocess.TimeoutExpired:
            kill(process.pid)
            process.wait()
            return f"{name}: importing its module took more than {_IMPORTING_S:g} s"
        if status == 0:
            return answer.read()
        output = log.read().decode(errors="replace")[-_MOST_OUTPUT:].rstrip()
    return f"{name}: importing its module ended the process with status {status}:\n{output}"
