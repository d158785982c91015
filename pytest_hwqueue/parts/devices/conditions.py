"""What a measuring process really runs with: precision, preloads, MPS, tracers, settings.

Effective values are read inside the process wherever there is a way to ask; a variable's text
stands only for what nothing else tells. `devices.fingerprint` names the fields.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import os
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pytest_hwqueue.data.records.conditions import FAMILIES, SETTINGS
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.data.records.kinds import DeviceKind
from pytest_hwqueue.parts.devices.kinds import VendorError, open_library

Readers: TypeAlias = "Mapping[str, Callable[[], Value]]"


# Where things are on this machine says nothing of how they work; nor does what torchrun sets.
_WITHOUT_EFFECT = (
    "XSCHED_ROOT", "XSCHED_CUDA_LIB", "XSCHED_HIP_LIB", "XLOG_FILE", "NCCL_DEBUG_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
_ROOT = Path("/")
_used: dict[str, str] = {}


def uses_library(name: str, version: str) -> None:
    """Make a library's version a condition of this process, which makes a model of it.

    It is none where the library is only imported, as transformers imports torchvision: other cells'
    conditions do not depend on what else is installed.
    """
    _used[name] = version


def identity(kind: DeviceKind, index: int) -> Readers:
    """Return readers of the conditions without which no two figures are of one thing."""
    readers: dict[str, Callable[[], Value]] = {
        "fp32_product": lambda: product_precision(_place(kind, index)),
        "default_dtype": lambda: str(_torch().get_default_dtype()).removeprefix("torch."),
        "preload": lambda: ", ".join(preloads().loaded) or "none",
        "tracers": lambda: ", ".join(tracers()) or NOT_WATCHED,
    }
    if not interpreter_locked():
        # Where there is a lock, as nearly everywhere, nothing is said: stored runs stay comparable.
        readers["interpreter_lock"] = lambda: "none"
    if kind != "cpu":
        place = _place(kind, index)
        readers["fp32_product_if_tf32_allowed"] = lambda: tf32_product_precision(place)
        readers["fp32_convolution"] = lambda: convolution_precision(place)
        readers["reduced_precision"] = _reduced_precision
    if kind == "cuda":
        readers["mps_client"] = lambda: mps_client(index)
        readers["module_loading"] = module_loading
    return readers


def interpreter_locked(python: object = sys) -> bool:
    """Whether threads of this Python take turns: true before 3.13, and without a free-threaded one.

    A free-threaded Python may have switched its lock on again, for an extension that needs it.

    Args:
        python: has `_is_gil_enabled`, as ``sys`` has since 3.13.

    """
    ask = getattr(python, "_is_gil_enabled", None)
    return ask is None or bool(ask())


def settings(kind: DeviceKind) -> Readers:
    """Return readers of settings and versions that may differ if the user says so."""
    readers: dict[str, Callable[[], Value]] = {
        f"environment.{name}": _reader_of(name) for name in SETTINGS[kind]
    }
    readers["torch_switches"] = _switches
    readers["transformers_version"] = lambda: _package("transformers")
    readers |= {f"{name}_version": partial(str, version) for name, version in _used.items()}
    if kind == "cpu":
        return readers
    for field, prefixes in FAMILIES.items():
        readers[field] = _family_reader(prefixes)
    readers["nccl_variables"] = _if_nccl_carries(readers["nccl_variables"])
    readers["allocator"] = lambda: str(_torch().cuda.get_allocator_backend())
    readers["triton_version"] = lambda: _package("triton")
    readers["nccl_version"] = _if_nccl_carries(lambda: _dotted(_torch().cuda.nccl.version()))
    # In torch's builds for ROCm, MIOpen stands where cuDNN stands in the others.
    readers["cudnn_version" if kind == "cuda" else "miopen_version"] = _cudnn_version
    if kind == "cuda":
        readers["cublas_version"] = _cublas_version
    return readers


def host(root: Path = _ROOT) -> Readers:
    """Return readers of what a host, with its root, gives the process; reported only."""
    return {
        "cpu_governor": lambda: _governor(root),
        "cgroup_cpu_quota": lambda: _quota(root),
        "preload_ignored": lambda: ", ".join(preloads(root).ignored) or "none",
    }


def setting(name: str) -> str:
    """Return a variable's text, or ``default``; the runtimes take an empty one as not set."""
    return os.environ.get(name) or "default"


def _reader_of(name: str) -> Callable[[], Value]:
    return lambda: setting(name)


def _family_reader(prefixes: tuple[str, ...]) -> Callable[[], Value]:
    def read() -> Value:
        pairs = sorted(os.environ.items())
        found = [f"{name}={text}" for name, text in pairs
                 if name.startswith(prefixes) and name not in _WITHOUT_EFFECT and text]  # fmt: skip
        return " ".join(found) or "default"

    return read


def _if_nccl_carries(read: Callable[[], Value]) -> Callable[[], Value]:
    """Return a reader that asks only where NCCL carries this process's collectives.

    Variables of NCCL change nothing of a cell without any, and images set some for all they run.
    """

    def asked() -> Value:
        distributed = _torch().distributed
        grouped = distributed.is_available() and distributed.is_initialized()
        carried = grouped and "nccl" in distributed.get_backend_config()
        return read() if carried else "not used"

    return asked


# --- precision ------------------------------------------------------------------------------------

# Rounding the factors to a format's mantissa gives a product a relative error of some 2**-(bits+1),
# whatever its size: float32 1e-7 with the sum's, TF32 3e-4, bfloat16 2e-3. The borders are about
# their geometric means.
_LARGEST_ERROR = (("float32", 1e-5), ("TF32", 9e-4), ("bfloat16", 7e-3))
# Large enough for every library to take its tensor cores, and 10 ms on a CPU.
_SIZE = {"cpu": 256}
_SIZE_OF_ACCELERATORS = 1024
_ROWS = 32


def _place(kind: DeviceKind, index: int) -> str:
    return "cpu" if kind == "cpu" else f"cuda:{index}"


def named_precision(error: float) -> str:
    """Return the format of which a product in float32 has this relative error."""
    for name, largest in _LARGEST_ERROR:
        if error <= largest:
            return name
    return "coarser than bfloat16"


def product_precision(place: str) -> str:
    """Return the format in which a product of float32 matrices is computed, as torch is set now."""
    return _product(place, _flags())


def tf32_product_precision(place: str) -> str:
    """Return the same if TF32 is allowed: a variable or the device may refuse it all the same."""
    torch = _torch()
    switches = torch.backends.cuda.matmul, _mkldnn_matmul()
    held = [_readable(each, ("fp32_precision",)) for each in switches]
    before = torch.get_float32_matmul_precision()
    # The older way to say it: since torch 2.9 it sets the newer switches too, so that both agree.
    torch.set_float32_matmul_precision("high")
    try:
        return _product(place, _flags())
    finally:
        torch.set_float32_matmul_precision(before)
        for switch, values in zip(switches, held, strict=True):
            for name, value in values.items():
                setattr(switch, name, value)


def convolution_precision(place: str) -> str:
    """Return the format in which a convolution of float32 images is computed."""
    return _convolution(place, _flags())


@cache
def _product(place: str, flags: str) -> str:
    """Compute a product once per setting of torch; few of its rows are computed in float64 too."""
    torch = _torch()
    size = _SIZE.get(place, _SIZE_OF_ACCELERATORS)
    with torch.inference_mode():
        a, b = (each.to(place) for each in _normal((size, size), (size, size)))
        exact = a[:_ROWS].double() @ b.double()
        return named_precision(_error((a @ b)[:_ROWS], exact))


@cache
def _convolution(place: str, flags: str) -> str:
    torch = _torch()
    # Channels in multiples of 32, as tensor cores want them.
    with torch.inference_mode():
        image, kernel = (each.to(place) for each in _normal((8, 64, 32, 32), (64, 64, 3, 3)))
        fast = torch.nn.functional.conv2d(image, kernel)
        exact = torch.nn.functional.conv2d(image[:1].double(), kernel.double())
        return named_precision(_error(fast[:1], exact))


def _normal(*shapes: tuple[int, ...]) -> list[Any]:
    torch = _torch()
    # A generator of its own: the seed of what is measured stays as it is.
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        for shape in shapes
    ]


def _error(result: Any, exact: Any) -> float:
    norm = _torch().linalg.vector_norm
    return float(norm(result.double() - exact) / norm(exact))


def _flags() -> str:
    """Return torch's switches of precision, as text: a probe holds as long as they stay."""
    torch = _torch()
    matmul, conv = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    places = (matmul, torch.backends.cudnn, conv, torch.backends.mkldnn, _mkldnn_matmul())
    read = [_readable(each, ("fp32_precision", "allow_tf32")) for each in places]
    autocast = [torch.is_autocast_enabled(each) for each in ("cpu", "cuda")]
    return f"{read} {_reduced_precision()} {autocast}"


def _mkldnn_matmul() -> Any:
    return getattr(_torch().backends.mkldnn, "matmul", None)


def _reduced_precision() -> str:
    names = (
        "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
    )  # fmt: skip
    found = _readable(_torch().backends.cuda.matmul, names)
    return " ".join(f"{name.removeprefix('allow_')}={value}" for name, value in found.items())


def _switches() -> str:
    """Return which of torch's switches between algorithms are on."""
    torch = _torch()
    found = _readable(torch.backends.cudnn, ("benchmark", "deterministic", "enabled"))
    switches = {f"cudnn.{name}": value for name, value in found.items()}
    switches["deterministic"] = torch.are_deterministic_algorithms_enabled()
    return " ".join(f"{name}={value}" for name, value in switches.items())


def _readable(place: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the attributes that a release of torch has, and lets be read where others were set."""
    found = {}
    for name in names:
        # RuntimeError: the newer of two switches was used, and the older says so.
        with suppress(AttributeError, RuntimeError):
            found[name] = getattr(place, name)
    return found


# --- libraries ------------------------------------------------------------------------------------


class Preloads(NamedTuple):
    """Libraries that the loader was told to load first, by file name and in order.

    Attributes:
        loaded: those that are mapped.
        ignored: those that are not: the loader says so on stderr and goes on.

    """

    loaded: tuple[str, ...]
    ignored: tuple[str, ...]


def preloads(root: Path = _ROOT) -> Preloads:
    """Return this process's preloads, by what it was started with and what it has mapped."""
    named = [*_started_with("LD_PRELOAD"), *_system_preloads(root)]
    return sorted_preloads(named, loaded_files())


def sorted_preloads(named: Iterable[str], mapped: Sequence[str]) -> Preloads:
    """Sort preloads by whether they are among the mapped files.

    Args:
        named: paths, names for the loader to find, or paths with its tokens, such as ``$LIB``.
        mapped: paths of mapped files, links resolved.

    """
    names = [path.rpartition("/")[2] for path in mapped]
    loaded: list[str] = []
    ignored: list[str] = []
    for each in named:
        name = each.rpartition("/")[2]
        if "/" in each and "$" not in each:
            there = os.path.realpath(each) in mapped
        else:
            # The file behind a library's name may have a longer one, with all of its version.
            there = any(other.startswith(name) for other in names)
        (loaded if there else ignored).append(name)
    return Preloads(tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(ignored)))


def loaded_files(process: str = "self") -> list[str]:
    """Return the files mapped into a process, once each, in the order of their addresses."""
    maps = Path("/proc", process, "maps")
    text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    fields = (line.split(maxsplit=5) for line in text.splitlines())
    return list(dict.fromkeys(f[5] for f in fields if len(f) == 6 and f[5].startswith("/")))


def started_with(process: Path) -> dict[str, str]:
    """Return the variables that a process was started with; what it set later is not among them.

    Args:
        process: its folder in /proc.

    Raises:
        OSError: if it has ended, or is another user's.

    """
    text = (process / "environ").read_bytes().decode(errors="surrogateescape")
    found: dict[str, str] = {}
    for name, _, value in (entry.partition("=") for entry in text.split("\0") if entry):
        # Of two of one name, getenv finds the first.
        found.setdefault(name, value)
    return found


def _started_with(variable: str) -> list[str]:
    """Return the entries of a loader's variable, which counts as it was at the start."""
    return started_with(Path("/proc/self")).get(variable, "").replace(":", " ").split()


def _system_preloads(root: Path) -> list[str]:
    try:
        text = (root / "etc/ld.so.preload").read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return []
    return text.replace(":", " ").split()


NOT_WATCHED = "none"
"""Of a process that nothing watches."""

_DEBUGGED = "a debugger"
# Libraries that CUDA, HSA and the loader load into a process to watch it.
_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "HSA_TOOLS_LIB",
             "ROCP_TOOL_LIBRARIES", "LD_AUDIT")  # fmt: skip


# Logs of every call or kernel cost each of them time. By variable, texts with which nothing is
# logged that often: HIP's levels (how-to/logging), MIOpen's (DebugAndLogging), XSched's (log.h).
_NO = ("0", "n", "no", "off", "none", "false", "disable", "disabled")
_SELDOM: Mapping[str, tuple[str, ...]] = {
    "AMD_LOG_LEVEL": ("0", "1", "2"),
    "HIP_TRACE_API": _NO,
    "MIOPEN_ENABLE_LOGGING": _NO,
    "MIOPEN_LOG_LEVEL": ("0", "1", "2", "3", "4"),
    "XLOG_LEVEL": ("erro", "warn", "info"),
}
# Of user-written shims, such as TRACE_MALLOC and TRACE_KERNEL. Of such a name anything may be the
# text: it counts where it switches something on, and nothing else of it is told.
_TRACING = re.compile(r"TRACE_[A-Z]+")
_ON = re.compile(r"[1-9]\d?|yes|true|on|enabled?", re.IGNORECASE)


def _logs() -> list[str]:
    """Return the variables by which every call of this process is logged, with their texts."""
    texts = [(name, os.environ.get(name, "")) for name in _SELDOM]
    found = [f"{name}={text}" for name, text in texts if text and text.lower() not in _SELDOM[name]]
    return found + [
        f"{name}={text}" for name, text in sorted(os.environ.items())
        if _TRACING.fullmatch(name) and _ON.fullmatch(text)
    ]  # fmt: skip


def tracers() -> list[str]:
    """Return what watches this process and thread, each by a few words."""
    found = [f"{name}={os.path.basename(text)}" for name in _INJECTED
             if (text := os.environ.get(name, ""))]  # fmt: skip
    found += _logs()
    found += python_tracers()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    tracing = next((line for line in status.splitlines() if line.startswith("TracerPid:")), "")
    if tracing.split()[1:] not in ([], ["0"]):
        found.append(_DEBUGGED)
    return found


def python_tracers() -> list[str]:
    """Return what watches by means of Python itself, in this thread or in all."""
    return [*thread_tracers(), *_interpreter_tracers()]


def thread_tracers() -> list[str]:
    """Return what watches this thread alone, and the threads that it starts."""
    hooks = {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
    }
    return [f"{name}: {_owner(hook)}" for name, hook in hooks.items() if hook is not None]


def _interpreter_tracers() -> list[str]:
    """Return what Python itself does for each object, call or collection of this process."""
    found = []
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        tools = (monitoring.get_tool(number) for number in range(6))
        found += [f"sys.monitoring: {tool}" for tool in tools if tool]
    found += [f"gc.callbacks: {_owner(each)}" for each in gc.callbacks]
    if sys.flags.dev_mode:
        found.append("Python's development mode")
    if "debug" in (allocator := _allocator_of_python()):
        found.append(f"PYTHONMALLOC={allocator}")
    if tracemalloc.is_tracing():
        found.append("tracemalloc")
    return found


def _owner(hook: Any) -> str:
    """Return the package that a hook is of: a function's, or that of a tracer written in C."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).partition(".")[0]


def _allocator_of_python() -> str:
    """Return the allocator of Python's objects, such as ``pymalloc``; by its variable elsewhere."""
    try:
        ask = ctypes.pythonapi._PyMem_GetCurrentAllocatorName
    except AttributeError:
        # No release promises it. Python reads the variable as it starts.
        return " ".join(_started_with("PYTHONMALLOC"))
    ask.restype = ctypes.c_char_p
    name: bytes | None = ask()
    return (name or b"").decode()


def watched(hard: Mapping[str, Value]) -> list[str]:
    """Return a note on what watched a measuring process, if anything did.

    Args:
        hard: fields of its fingerprint.

    """
    found = hard.get("tracers", NOT_WATCHED)
    if found == NOT_WATCHED:
        return []
    return [f"watched while it was measured, which its figures contain: {found}"]


# --- CUDA -----------------------------------------------------------------------------------------

# CUdevice_attribute and CUmoduleLoadingMode of cuda.h, CUDA 12.
_MPS_ENABLED = 133
_LOADING_MODES = {1: "eager", 2: "lazy"}


def mps_client(index: int) -> bool:
    """Whether this process's contexts on a CUDA device are shared through an MPS server.

    Raises:
        VendorError: if the driver does not tell.

    """
    device, answer = ctypes.c_int(), ctypes.c_int()
    _ask_driver("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    _ask_driver("cuDeviceGetAttribute", ctypes.byref(answer), ctypes.c_int(_MPS_ENABLED), device)
    return bool(answer.value)


def module_loading() -> str:
    """Return whether CUDA loads kernels when first used (``lazy``) or all at once (``eager``)."""
    mode = ctypes.c_int()
    _ask_driver("cuModuleGetLoadingMode", ctypes.byref(mode))
    return _LOADING_MODES[mode.value]


def _ask_driver(name: str, *arguments: object) -> None:
    # Not through the runtime, which would keep a failure as its last error, for torch to find.
    driver = open_library("libcuda.so")
    status = getattr(driver, name)(*arguments)
    if status != 0:
        raise VendorError(f"the driver's {name} failed with error {status}: it may be too old")


def _cublas_version() -> str:
    library = open_library("libcublas.so")
    parts = [ctypes.c_int() for _ in range(3)]
    # libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL.
    if any(library.cublasGetProperty(number, ctypes.byref(part))
           for number, part in enumerate(parts)):  # fmt: skip
        raise VendorError("cublasGetProperty failed")
    return ".".join(str(part.value) for part in parts)


# --- the host -------------------------------------------------------------------------------------

_GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"


def _governor(root: Path) -> str:
    return ", ".join(sorted({file.read_text().strip() for file in root.glob(_GOVERNORS)}))


def _quota(root: Path) -> str:
    """Return how many cores' time the process's control groups leave it, or ``none``."""
    own = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    folder = next((line.removeprefix("0::/") for line in own if line.startswith("0::/")), None)
    if folder is None:
        raise VendorError("the process is in no control group of version 2")
    least = None
    for place in (Path(folder), *Path(folder).parents):
        # In a container the folder may be the host's name of it: its own limits are at the top.
        with suppress(FileNotFoundError):
            quota, period = (root / "sys/fs/cgroup" / place / "cpu.max").read_text().split()
            if quota != "max":
                cores = int(quota) / int(period)
                least = cores if least is None else min(least, cores)
    return "none" if least is None else f"{least:g} cores"


def _cudnn_version() -> str:
    return str(_torch().backends.cudnn.version() or "none")


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _dotted(version: Any) -> str:
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _torch() -> Any:
    import torch

    return torch
