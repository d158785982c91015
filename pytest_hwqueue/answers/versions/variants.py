"""Variants of one measurement, and environments of two versions."""

from __future__ import annotations

import json
import os
import re
import shlex
import site
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_hwqueue.answers.versions.imports import SIDE, Tree
from pytest_hwqueue.data.errors import BadOption, HwqError
from pytest_hwqueue.data.records.conditions import fields_of_variable
from pytest_hwqueue.data.redaction import redacted
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.options import suite
from pytest_hwqueue.options.options import OPTIONS
from pytest_hwqueue.parts.devices.connections import CONNECTIONS
from pytest_hwqueue.parts.processes.reaper import last_lines, run

OF_THE_COMPARISON = frozenset(
    {
        "runs", "dir", "json", "profile", "profile-dir", "scaling", "causes", "save",
        "save-records", "compare", "against", "pairs", "baselines", "fail-on", "rate", "min-effect",
        "detect", "tau", "sentinel", "setup",
        "allow-env", "on", "markdown", "report", "budget",
    }
)  # fmt: skip
"""Options that a side cannot have for itself; all others say how it is measured."""

_TABLE = {option.name: option for option in OPTIONS}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# The worker processes that measure do not get it (see plugin.worker), so it would do nothing.
_NOT_PASSED_ON = "PYTEST_ADDOPTS"

# Git gives them to its hooks alone.
_OF_HOOKS = frozenset({"GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_QUARANTINE_PATH"})
# Its sitecustomize runs in each process of a side.
_STARTUP = Path(__file__).resolve().parent / "startup"

# How the variables begin that drivers, runtimes and libraries of the vendors read.
_OF_RUNTIMES = (
    "CUDA_", "NVIDIA_", "CUBLAS", "CUDNN_", "NCCL_", "CUFFT_",
    "HIP_", "HSA_", "ROC", "AMD_", "GPU_", "DEBUG_CLR_", "DEBUG_HIP_", "MIOPEN_", "RCCL_",
    "PYTORCH_CUDA_", "PYTORCH_HIP_", "PYTORCH_ALLOC_CONF", "TORCH_NCCL_", "TORCH_CUDNN_",
)  # fmt: skip

# The fields of a cell's conditions that an option sets. Those of --param and of environment
# variables depend on the name that was given.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "streams": ("cell.streams",),
    "scheduler": ("cell.scheduler",),
    "dispatch": ("cell.dispatch",),
    "sync-mode": ("cell.sync_mode",),
    "cache": ("cell.cache",),
    "size": ("cell.size", "cell.variant", "parameter.*"),
    "sim-noise": ("noise",),
}


@dataclass(frozen=True)
class SideVariant:
    """How one side is measured.

    Attributes:
        options: the plugin's, by name without ``hwq-``; a repeatable one has several values.
        environment: variables for its processes.
        words: arguments for pytest itself.

    """

    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    def over(self, common: SideVariant) -> SideVariant:
        """Return this variant merged over what both sides share; its own values win."""
        options = dict(common.options)
        for name, values in self.options.items():
            more = options.get(name, ()) if _TABLE[name].repeatable else ()
            options[name] = (*more, *values)
        return SideVariant(
            options, {**common.environment, **self.environment}, (*common.words, *self.words)
        )

    def arguments(self) -> list[str]:
        """Return the options as pytest takes them."""
        return [
            f"--hwq-{name}={value}" for name, values in self.options.items() for value in values
        ]


def read_variant(source: str, text: str) -> SideVariant:
    """Read a variant as a shell would: ``NAME=VALUE`` words, then options and pytest's arguments.

    Args:
        source: of the text, for errors, such as ``--a``.
        text: such as ``CUDA_DEVICE_MAX_CONNECTIONS=8 --scheduler native``. The plugin's options
            may be written with or without ``hwq-``; all others are pytest's.

    Raises:
        BadOption: naming the source, the word, and what is valid.

    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadOption(source, text, f"write it as in a shell ({error})") from None
    options: dict[str, tuple[str, ...]] = {}
    environment: dict[str, str] = {}
    rest: list[str] = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        if name == _NOT_PASSED_ON:
            raise BadOption(source, name, "it does not reach the processes that measure")
        if name in _BY_VARIABLE:
            _take(source, options, _BY_VARIABLE[name].name, value)
        else:
            _refuse_wrong_number(source, name, value)
            environment[name] = value
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--hwq-").removeprefix("--").partition("=")
        if not word.startswith("--") or name not in _TABLE:
            rest.append(word)
            continue
        if not equals and not _TABLE[name].flag:
            if not words:
                raise BadOption(source, word, f"give it a value: {word} {_TABLE[name].metavar}")
            value = words.pop(0)
        _take(source, options, name, value)
    return SideVariant(options, environment, tuple(rest))


def varied_fields(a: SideVariant, b: SideVariant) -> frozenset[str]:
    """Return the conditions in which the cells of two sides may differ at the user's request.

    Names are those of `condition_differences`; ``parameter.*`` stands for every parameter.

    Raises:
        BadOption: if the sides would be measured on different devices.

    """
    fields: set[str] = set()
    for name in a.options.keys() | b.options.keys():
        ours, theirs = a.options.get(name, ()), b.options.get(name, ())
        if ours == theirs:
            continue
        if name == "device":
            listed = " and ".join(" ".join(each) or "the default" for each in (ours, theirs))
            raise BadOption("--device", listed, "one device measures both sides")
        fields.update(_FIELDS.get(name, ()))
        if name == "param":
            one, other = _parameters(ours), _parameters(theirs)
            different = {each for each in one | other if one.get(each) != other.get(each)}
            # OWNER.NAME is the parameter NAME of one workload.
            fields.update(f"parameter.{each.rpartition('.')[2]}" for each in different)
            fields.add("cell.variant")
    for name in a.environment.keys() | b.environment.keys():
        if a.environment.get(name) != b.environment.get(name):
            fields.update(fields_of_variable(name))
    return frozenset(fields)


def refuse_unmodelled(device: str, a: SideVariant, b: SideVariant) -> None:
    """Refuse to vary what a simulated device does not model: both sides would be measured alike.

    Args:
        device: the measured one, as `--hwq-device` takes it.
        a: what side A has for itself.
        b: what side B has for itself.

    Raises:
        BadOption: naming the side, the variable, and what can be varied there.

    """
    # It imports pydantic, which help pages do without.
    from pytest_hwqueue.parts.devices.simulated.profile import modelled_variable

    modelled = modelled_variable(device)
    if modelled is None:
        return
    for source, own, other in (("--a", a, b), ("--b", b, a)):
        for name, value in own.environment.items():
            if name == modelled or other.environment.get(name) == value:
                continue
            if name.startswith(_OF_RUNTIMES):
                raise BadOption(
                    source, f"{name}={value}",
                    f"{device} does not model it, so both sides would be the same: measure on a "
                    f"GPU; of the runtime's variables a simulated device models {modelled}",
                )  # fmt: skip


def _refuse_wrong_number(source: str, name: str, value: str) -> None:
    for each in CONNECTIONS.values():
        if name == each.variable and (wrong := each.problem(value)):
            raise BadOption(source, f"{name}={value}", wrong)


def _take(source: str, options: dict[str, tuple[str, ...]], name: str, value: str) -> None:
    option = _TABLE[name]
    if name in OF_THE_COMPARISON:
        raise BadOption(source, f"--{name}", "it is for the comparison as a whole, not for a side")
    option.parse(f"{source}: --{name}", value)
    options[name] = (*options.get(name, ()), value) if option.repeatable else (value,)


def _parameters(values: Sequence[str]) -> dict[str, str]:
    pairs = (value.partition("=") for value in values)
    return {name.strip(): text.strip() for name, _, text in pairs}


def side_environment(
    variant: SideVariant, folder: Path, venv: Path | None, tree: Tree | None = None
) -> dict[str, str]:
    """Return the environment of a side's processes.

    Args:
        variant: the side's; its variables are added.
        folder: the side's; its code comes first, unless ``venv`` is given.
        venv: a virtual environment with the side's code installed.
        tree: the folder's, and those that no code may come from; by default no others are known.

    """
    environment = _outside_of_hooks(suite.pytest_environment())
    # A summary for each of the runs would bury that of the comparison.
    environment.pop("GITHUB_STEP_SUMMARY", None)
    environment |= {k: v for k, v in variant.environment.items() if k != "PYTHONPATH"}
    tree = tree or Tree(str(folder), str(folder), set_up=venv is not None)
    environment[SIDE] = json.dumps(tree._asdict())
    paths = [str(_STARTUP), variant.environment.get("PYTHONPATH", "")]
    if venv is None:
        paths = [str(_STARTUP), *_roots(folder), *paths[1:], environment.get("PYTHONPATH", "")]
    else:
        environment["VIRTUAL_ENV"] = str(venv)
        environment["PATH"] = os.pathsep.join([str(venv / "bin"), environment.get("PATH", "")])
        environment.pop("PYTHONHOME", None)
    # In a virtual environment the caller's own paths come last (see set_up), not first.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _roots(folder: Path) -> list[str]:
    """Return the folders of a side's code where nothing of it is installed."""
    return [str(each) for each in (folder, folder / "src") if each.is_dir()]


def _outside_of_hooks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git finds the repository of the folder it is called in.

    A hook's variables name the hook's repository, index and configuration. Outside of one, git's
    variables are the user's own, such as the key with which submodules are fetched.
    """
    in_hook = not _OF_HOOKS.isdisjoint(environment)
    return {k: v for k, v in environment.items() if not (in_hook and k.startswith("GIT_"))}


def set_up(folder: Path, venv: Path, environment: Mapping[str, str], setup: str, log: Path) -> str:
    """Create a side's virtual environment, run a command in it, and return its python.

    Args:
        folder: in which the command runs.
        venv: to be made; in it, the packages of the running interpreter are there too.
        environment: of the command; see `side_environment`.
        setup: shell command.
        log: receives the output.

    Raises:
        HwqError: if the environment cannot be made, or the command fails.

    """
    made = run(
        [sys.executable, "-m", "venv", "--system-site-packages", str(venv)], folder,
        suite.pytest_environment(), log,
    )  # fmt: skip
    if made != 0:
        raise HwqError(
            f"no virtual environment could be made (python -m venv ended with status {made}):\n"
            f"{last_lines(log)}"
        )
    # --system-site-packages leads to the packages of the base interpreter only. Those of the
    # running one, which may be a virtual environment itself, follow behind the side's own, as does
    # the side's code that the command does not install.
    behind = _roots(folder)
    behind += [f"import site; site.addsitedir({path!r})" for path in _site_packages()]
    behind += [str(Path(path).resolve())
               for path in suite.pytest_environment().get("PYTHONPATH", "").split(os.pathsep)
               if path]  # fmt: skip
    (packages,) = venv.glob("lib/python*/site-packages")
    write_text(packages / "hwq_behind.pth", "\n".join(behind) + "\n")
    status = run(["/bin/sh", "-c", setup], folder, environment, log)
    if status != 0:
        raise HwqError(
            f"--setup ended with status {status} in {folder}:\n"
            f"{redacted(last_lines(log))}\n"
            f"all of it: {log}"
        )
    return str(venv / "bin" / "python")


def _site_packages() -> list[str]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in (*site.getsitepackages(), *user) if Path(path).is_dir()]
