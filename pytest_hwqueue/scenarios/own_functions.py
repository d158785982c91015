"""Imports the functions of a scenario's tenants in a process of its own, before anything runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from pytest_hwqueue.errors import BadInput
from pytest_hwqueue.processes.reaper import kill
from pytest_hwqueue.processes.starting import start_reaped, worker_environment
from pytest_hwqueue.scenarios.file import Scenario

_IMPORTING_S = 180.0
_MOST_OUTPUT = 2000
# What it found goes to a file: the module may write to the output.
_CHECK = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_hwqueue.workloads.own_function import problem; "
    "found = problem(sys.argv[2], sys.argv[3], json.loads(sys.argv[4])); "
    "open(int(sys.argv[5]), 'w').write(found)"
)


def check_functions(scenario: Scenario, file: Path) -> None:
    """Import each function of a scenario's tenants; nothing is prepared, and no device opened.

    Raises:
        BadInput: naming file, tenant and function, with the traceback if its module raised.

    """
    checked = set()
    for variant in (None, *scenario.variants):
        for tenant in scenario.tenants_of(variant):
            if tenant.function is None:
                continue
            parameters = json.dumps(tenant.parameters, sort_keys=True)
            if (tenant.function, parameters) not in checked:
                checked.add((tenant.function, parameters))
                found = _problem(tenant.function, file.parent.absolute(), parameters)
                if found:
                    raise BadInput(f"{file}: tenant {tenant.name}: function: {found}")


def _problem(function: str, folder: Path, parameters: str) -> str:
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as answer, NamedTemporaryFile() as log:
        command = [sys.executable, "-c", _CHECK, json.dumps(sys.path), function, str(folder)]
        try:
            process = start_reaped(
                [*command, parameters, str(writer)],
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
            return f"{function}: importing its module took more than {_IMPORTING_S:g} s"
        if status == 0:
            return answer.read()
        output = log.read().decode(errors="replace")[-_MOST_OUTPUT:].rstrip()
    return f"{function}: importing its module ended the process with status {status}:\n{output}"
