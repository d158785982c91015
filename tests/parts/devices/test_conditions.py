"""What a process runs with, read in it: precision, preloads, MPS, tracers, the host's limits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_hwqueue.data.records.conditions import (
    PRECISION,
    fields_of_variable,
    is_of_process,
)
from pytest_hwqueue.parts.devices import conditions
from pytest_hwqueue.parts.devices.conditions import (
    Preloads,
    interpreter_locked,
    named_precision,
    sorted_preloads,
)
from pytest_hwqueue.parts.devices.fingerprint import fingerprint

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def compiled(library: Path, source: str = "int tiny_library(void) { return 1; }") -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def printed(code: str, **variables: str) -> str:
    """What a fresh process prints that has imported the module as ``conditions``."""
    command = [sys.executable, "-c", f"from pytest_hwqueue.parts.devices import conditions\n{code}"]
    ran = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Values with so many bits of mantissa, to the nearest."""
    dropped = 23 - bits
    whole = values.view(torch.int32) + (1 << (dropped - 1))
    return (whole & ~((1 << dropped) - 1)).view(torch.float32)


@pytest.mark.parametrize("size", [64, 1024])
@pytest.mark.parametrize(
    ("bits", "named"), [(23, "float32"), (10, "TF32"), (7, "bfloat16"), (4, "coarser")]
)
def test_a_products_error_tells_its_format(size: int, bits: int, named: str) -> None:
    generator = torch.Generator().manual_seed(size)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    if bits < 23:
        a, b = rounded(a, bits), rounded(b, bits)
    error = float(torch.linalg.vector_norm((a @ b).double() - exact) / exact.norm())
    assert named_precision(error).startswith(named)
    assert named_precision(float("nan")) == "coarser than bfloat16"


def test_precision_is_what_the_process_computes_in_now_and_reading_it_changes_nothing() -> None:
    torch.manual_seed(7)
    switch = torch.backends.cuda.matmul

    def switches() -> list[str]:
        backends: Any = torch.backends
        places = (switch, backends.cudnn.conv, backends.mkldnn.matmul)
        return [torch.get_float32_matmul_precision(), *(each.fp32_precision for each in places)]

    before = torch.get_rng_state(), switches()
    assert conditions.product_precision("cpu") == "float32"
    assert conditions.convolution_precision("cpu") == "float32"
    # On a CPU the switch does nothing, as on a device under NVIDIA_TF32_OVERRIDE=0.
    assert conditions.tf32_product_precision("cpu") == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fingerprint("cpu").hard["fp32_product"] == "bfloat16"
    assert fingerprint("cpu").hard["fp32_product"] == "float32"
    assert torch.equal(torch.get_rng_state(), before[0])
    assert switches() == before[1]
    assert switch.allow_tf32 is False


class Tf32Where(TorchDispatchMode):
    """A device that computes products in TF32 where torch allows it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        allowed = torch.get_float32_matmul_precision() == "high"
        if func is torch.ops.aten.matmul.default and args[0].dtype == torch.float32 and allowed:
            args = tuple(rounded(each, 10) for each in args)
        return func(*args, **(kwargs or {}))


def test_tf32_is_tried_where_a_workload_would_switch_it_on() -> None:
    # A name of the CPU's by which nothing else asks: what a place computes in is kept.
    with Tf32Where():
        assert conditions.product_precision("cpu:0") == "float32"
        assert conditions.tf32_product_precision("cpu:0") == "TF32"
        assert conditions.product_precision("cpu:0") == "float32"


def test_default_type_is_a_condition() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        read = fingerprint("cpu").hard
    finally:
        torch.set_default_dtype(torch.float32)
    # What is probed is float32 all the same.
    assert (read["default_dtype"], read["fp32_product"]) == ("float64", "float32")


def test_preloads_are_those_that_are_mapped(tmp_path: Path) -> None:
    library = tmp_path / "libreal.so.2.1"
    library.touch()
    (tmp_path / "liblink.so").symlink_to(library)
    mapped = [str(library), "/usr/lib/libjemalloc.so.2", "/lib/libc.so.6"]
    link = str(tmp_path / "liblink.so")
    named = [link, "libjemalloc.so", "$LIB/libjemalloc.so.2", "/a/libc.so.6", "libjemalloc.so"]
    assert sorted_preloads(named, mapped) == Preloads(
        ("liblink.so", "libjemalloc.so", "libjemalloc.so.2"), ("libc.so.6",)
    )
    assert sorted_preloads([], mapped) == Preloads((), ())


@needs_compiler
def test_preloads_of_a_real_process(tmp_path: Path) -> None:
    tiny, other = compiled(tmp_path / "libtiny.so"), compiled(tmp_path / "b" / "libother.so")
    named = f"{tiny}:{other} {tmp_path}/libgone.so"
    assert printed("print(*conditions.preloads())", LD_PRELOAD=named) == (
        "('libtiny.so', 'libother.so') ('libgone.so',)"
    )
    assert printed("print(*conditions.preloads())", LD_PRELOAD="") == "() ()"
    # Set later, it does nothing; taken away later, it is still loaded.
    code = "import os; os.environ['LD_PRELOAD'] = '/x/y.so'; print(*conditions.preloads())"
    assert printed(code, LD_PRELOAD=str(tiny)) == "('libtiny.so',) ()"


def test_preloads_of_the_whole_system(tmp_path: Path) -> None:
    own = conditions.preloads(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ld.so.preload").write_text("/lib/liba.so:/lib/libb.so\n/lib/libd.so\n")
    assert conditions.preloads(tmp_path) == Preloads(
        own.loaded, (*own.ignored, "liba.so", "libb.so", "libd.so")
    )


def test_what_watches_the_process_is_named() -> None:
    code = "print(*conditions.tracers(), sep='; ')"
    assert printed(code) == ""
    watched = "import sys; sys.settrace(print); sys.setprofile(lambda *_: None)\n"
    watched += "found = conditions.tracers(); sys.settrace(None); sys.setprofile(None)\n"
    watched = watched.replace("settrace(print)", "settrace(lambda *_: None)")
    assert printed(watched + "print(*found, sep='; ')", CUDA_INJECTION64_PATH="/x/libnsys.so") == (
        "CUDA_INJECTION64_PATH=libnsys.so; sys.settrace: __main__; sys.setprofile: __main__"
    )


@pytest.mark.parametrize(
    ("name", "seldom", "each_call"),
    [
        ("AMD_LOG_LEVEL", "2", "3"),
        ("HIP_TRACE_API", "0", "1"),
        ("MIOPEN_ENABLE_LOGGING", "Disabled", "yes"),
        ("MIOPEN_LOG_LEVEL", "4", "6"),
        ("XLOG_LEVEL", "INFO", "DEBG"),
        ("TRACE_KERNEL", "0", "1"),
        ("TRACE_MALLOC", "off", "on"),
        # What switches nothing is somebody else's, and none of ours to tell.
        ("TRACE_TOKEN", "s3cret", "1"),
    ],
)
def test_a_log_of_each_call_is_named(name: str, seldom: str, each_call: str) -> None:
    code = "print(*conditions.tracers(), sep='; ')"
    assert printed(code, **{name: seldom}) == printed(code, **{name: ""}) == ""
    assert printed(code, **{name: each_call}) == f"{name}={each_call}"


@pytest.mark.parametrize(
    ("code", "variables", "expected"),
    [
        ("threading.settrace(print)", {}, "threading.settrace: builtins"),
        ("threading.setprofile(print)", {}, "threading.setprofile: builtins"),
        ("import json; gc.callbacks.append(json.dumps)", {}, "gc.callbacks: json"),
        ("tracemalloc.start()", {}, "tracemalloc"),
        ("", {"PYTHONMALLOC": "debug"}, "PYTHONMALLOC=pymalloc_debug"),
        ("", {"PYTHONMALLOC": "malloc_debug"}, "PYTHONMALLOC=malloc_debug"),
        ("", {"PYTHONMALLOC": "malloc"}, ""),
        (
            "", {"PYTHONDEVMODE": "1"},
            "Python's development mode; PYTHONMALLOC=pymalloc_debug",
        ),
    ],
)  # fmt: skip
def test_what_python_does_besides_is_named(
    code: str, variables: dict[str, str], expected: str
) -> None:
    text = f"import gc, sys, threading, tracemalloc\n{code}\n"
    text += "found = conditions.python_tracers(); gc.callbacks.clear(); threading.settrace(None)\n"
    assert printed(text + "print(*found, sep='; ')", **variables) == expected


def test_the_allocator_is_told_by_its_variable_where_python_does_not() -> None:
    code = "import ctypes; ctypes.pythonapi = None; print(conditions.python_tracers())"
    # Python itself would say pymalloc_debug.
    assert printed(code, PYTHONMALLOC="debug") == "['PYTHONMALLOC=debug']"


def test_a_watched_process_says_so() -> None:
    assert conditions.watched({}) == conditions.watched({"tracers": "none"}) == []
    (note,) = conditions.watched({"tracers": "rank 0: none; rank 1: tracemalloc"})
    assert note.endswith("contain: rank 0: none; rank 1: tracemalloc")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has sys.monitoring")
def test_a_monitoring_tool_is_named() -> None:
    code = "import sys; sys.monitoring.use_tool_id(1, 'coverage'); print(conditions.tracers())"
    assert printed(code) == "['sys.monitoring: coverage']"


_DRIVER = """
int cuDeviceGet(int *device, int index) { *device = 40 + index; return index > 1 ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute != 133) return 1;
    *value = device == 41;
    return 0;
}
int cuModuleGetLoadingMode(int *mode) { *mode = 2; return 0; }
"""


@needs_compiler
def test_the_driver_is_asked_whether_the_process_is_an_mps_client(tmp_path: Path) -> None:
    driver = compiled(tmp_path / "libcuda.so.580.1", _DRIVER)
    code = f"import ctypes; ctypes.CDLL({str(driver)!r})\n"
    code += "print(conditions.mps_client(0), conditions.mps_client(1), conditions.module_loading())"
    assert printed(code) == "False True lazy"
    code = code.replace("mps_client(0)", "identity('cuda', 2)['mps_client']()")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(code)
    assert "cuDeviceGet failed with error 101" in failed.value.stderr


@pytest.mark.parametrize("locked", [True, False])
def test_threads_take_turns_unless_python_says_otherwise(locked: bool) -> None:
    assert interpreter_locked(SimpleNamespace(_is_gil_enabled=lambda: locked)) == locked
    assert interpreter_locked(SimpleNamespace())


def test_a_lock_of_the_interpreter_is_a_condition_where_there_is_none() -> None:
    """Runs stored before it was one had a lock, and stay comparable."""
    assert ("interpreter_lock" in conditions.identity("cpu", 0)) == (not interpreter_locked())
    assert fields_of_variable("PYTHON_GIL")[1:] == ("interpreter_lock",)
    assert is_of_process("interpreter_lock")


def test_variables_and_what_they_do() -> None:
    assert fields_of_variable("NVIDIA_TF32_OVERRIDE") == (
        "environment.NVIDIA_TF32_OVERRIDE", *PRECISION,
    )  # fmt: skip
    assert fields_of_variable("NCCL_ALGO")[1:] == ("nccl_variables",)
    assert fields_of_variable("LD_PRELOAD")[1:] == ("preload",)
    assert fields_of_variable("OTHER") == ("environment.OTHER",)


def test_variables_of_a_family_are_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("NCCL_", "TORCH_NCCL_")):
            monkeypatch.delenv(name)
    configured = "cpu:gloo,cuda:nccl"
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_backend_config=lambda: configured,
    )
    monkeypatch.setattr(torch, "distributed", group)
    read = conditions.settings("cuda")["nccl_variables"]
    assert read() == "default"
    for name, value in (("NCCL_PROTO", "LL"), ("TORCH_NCCL_BLOCKING_WAIT", "1"), ("NCCL_ALGO", ""),
                        ("NCCL_DEBUG_FILE", "/x")):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert read() == "NCCL_PROTO=LL TORCH_NCCL_BLOCKING_WAIT=1"
    configured = "cpu:gloo,cuda:gloo"
    assert read() == "not used"


def test_variables_of_nccl_are_no_condition_without_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    readers = conditions.settings("cuda")
    assert readers["nccl_variables"]() == readers["nccl_version"]() == "not used"


def test_the_hosts_limits(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("proc/self/cgroup", "0::/user/session\n")
    write("sys/fs/cgroup/user/session/cpu.max", "max 100000\n")
    readers = conditions.host(tmp_path)
    assert readers["cgroup_cpu_quota"]() == "none"
    write("sys/fs/cgroup/user/cpu.max", "150000 100000\n")
    write("sys/fs/cgroup/cpu.max", "400000 100000\n")
    assert readers["cgroup_cpu_quota"]() == "1.5 cores"
    assert readers["cpu_governor"]() == ""
    for core, governor in enumerate(("performance", "powersave", "performance")):
        write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", f"{governor}\n")
    assert readers["cpu_governor"]() == "performance, powersave"
