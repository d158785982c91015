"""torch's settings of a process, and the precision of its products in float32.

Settings are what torch can be asked for without an argument, not a list of names: each version of
torch has more of them, and any may change a figure.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from itertools import product
from typing import Any, TypeAlias

Setting: TypeAlias = "bool | int | float | str | tuple[Setting, ...] | None"

# Counters and last errors are read by the same kind of function; they change without being set.
_NO_SETTINGS = ("stats", "caught", "sdp_priority_order")
# Backends and operations of torch's newer interface to float32; not each pair exists.
_FP32 = tuple(product(("generic", "cuda", "mkldnn"), ("all", "matmul", "conv", "rnn")))
_VARIABLE = (bool, int, float, str, type(None))
_SHOWN = 3


class _NotASetting(Exception):
    """A value that says nothing: a tensor, a module, a table."""


def torch_settings() -> dict[str, Setting]:
    """Return the settings of torch in this process and thread, by name; none if it is not loaded.

    It takes 0.2 ms, and the first time 2 ms.
    """
    if "torch" not in sys.modules:
        return {}
    # Some readers are deprecated, and warn.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: _read(reader) for name, reader in _readers().items()}


def changed_settings(before: Mapping[str, Setting], after: Mapping[str, Setting]) -> list[str]:
    """Return what differs, such as ``cudnn_benchmark False -> True``.

    What only one of them has is no change: torch was imported in between.
    """
    return [
        f"{name} {before[name]} -> {after[name]}"
        for name in before
        if name in after and before[name] != after[name]
    ]


def changes_in_words(changes: list[str]) -> str:
    """Return the first few changes: one switch shows under several names."""
    more = len(changes) - _SHOWN
    return ", ".join(changes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read(reader: Callable[[], object]) -> Setting:
    try:
        return _plain(reader())
    except Exception as error:  # torch refuses to tell where two of its interfaces were mixed
        return f"({type(error).__name__})"


def _plain(value: object) -> Setting:
    torch = sys.modules["torch"]
    if isinstance(value, _VARIABLE):
        return value
    if isinstance(value, (torch.dtype, torch.device, Enum)):
        return str(value)
    # Enumerations of pybind11.
    if hasattr(type(value), "__members__"):
        return str(value)
    if isinstance(value, (tuple, list)) and all(isinstance(one, (bool, int)) for one in value):
        return tuple(value)
    raise _NotASetting


@cache
def _readers() -> dict[str, Callable[[], object]]:
    """Find what can be read without an argument, by a name without ``get``."""
    import torch

    found: dict[str, Callable[[], object]] = {}
    for place in (torch, torch._C):
        for name in dir(place):
            bare = name.lstrip("_")
            if bare.startswith(("get_", "is_", "are_")):
                found.setdefault(bare.removeprefix("get_"), getattr(place, name))
    found |= _of_backends()
    if (precision := getattr(torch._C, "_get_fp32_precision_getter", None)) is not None:
        for backend, operation in _FP32:
            found[f"fp32_precision of {backend} {operation}"] = partial(
                precision, backend, operation
            )
    return {name: reader for name, reader in found.items() if _is_setting(name, reader)}


def _of_backends() -> dict[str, Callable[[], object]]:
    """Find the properties, switches and variables of ``torch.backends``."""
    found: dict[str, Callable[[], object]] = {}
    for path, module in sorted(sys.modules.items()):
        if not path.startswith("torch.backends."):
            continue
        prefix = path.removeprefix("torch.backends.").replace(".", "_")
        # Modules with properties are objects around the real one.
        inner = inspect.getattr_static(module, "m", module)
        for kind in type(module).__mro__:
            for name, each in vars(kind).items():
                if not kind.__module__.startswith("torch.") or name.startswith("_"):
                    continue
                if hasattr(type(each), "__set__") or isinstance(each, _VARIABLE):
                    found[f"{prefix}_{name}"] = partial(getattr, module, name)
        for name, each in vars(inner).items():
            if name.startswith("_") or inspect.isclass(each):
                continue
            if inspect.isroutine(each):
                if name.endswith("enabled"):
                    found[f"{prefix}_{name.removeprefix('get_')}"] = each
            elif isinstance(each, _VARIABLE):
                found[f"{prefix}_{name}"] = partial(getattr, module, name)
    return found


def _is_setting(name: str, reader: Callable[[], object]) -> bool:
    if inspect.isclass(reader) or any(part in name for part in _NO_SETTINGS):
        return False
    try:
        _plain(reader())
    except (TypeError, _NotASetting):
        return False
    except Exception as error:
        # One that torch refuses to tell now may be told later; a pair that does not exist, never.
        return "Invalid" not in str(error)
    return True


@dataclass(frozen=True)
class Float32Precision:
    """How torch computes products and convolutions in float32, as it can be put back.

    torch has an older and a newer interface to it, and refuses to tell the older one's settings
    where the newer one's contradict them; those are None.
    """

    matmul: str | None
    cudnn: bool | None
    by_operation: Mapping[tuple[str, str], str]

    @classmethod
    def now(cls) -> Float32Precision:
        """Return what holds now."""
        import torch

        matmul = cudnn = None
        with suppress(RuntimeError):
            matmul = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            cudnn = torch.backends.cudnn.allow_tf32
        return cls(matmul, cudnn, _by_operation())

    def restore(self) -> None:
        """Set it again."""
        import torch

        if self.matmul is not None:
            torch.set_float32_matmul_precision(self.matmul)
        if self.cudnn is not None:
            torch.backends.cudnn.allow_tf32 = self.cudnn
        now = _by_operation()
        for (backend, operation), precision in self.by_operation.items():
            if now[backend, operation] != precision:
                _of_torch("_set_fp32_precision_setter")(backend, operation, precision)


def set_float32_precision(*, tf32: bool) -> None:
    """Allow TF32 in products and convolutions of float32, or forbid it; for the process."""
    import torch

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    # Convolutions have a switch of their own, which torch leaves on.
    torch.backends.cudnn.allow_tf32 = tf32


@contextmanager
def float32_precision_kept() -> Iterator[None]:
    """Put back at the end how torch computes in float32."""
    before = Float32Precision.now()
    try:
        yield
    finally:
        before.restore()


def tf32_allowed() -> bool:
    """Whether an accelerator's products in float32 may use TF32."""
    import torch

    # The newer interface tells whichever of the two was used.
    if (getter := _of_torch("_get_fp32_precision_getter")) is not None:
        return bool(getter("cuda", "matmul") == "tf32")
    return torch.get_float32_matmul_precision() != "highest"


def _by_operation() -> dict[tuple[str, str], str]:
    """Return what torch's newer interface (since 2.9) tells; empty without it."""
    getter, found = _of_torch("_get_fp32_precision_getter"), {}
    if getter is not None:
        for pair in _FP32:
            with suppress(RuntimeError):  # there is no such pair
                found[pair] = str(getter(*pair))
    return found


def _of_torch(name: str) -> Any:
    import torch

    return getattr(torch._C, name, None)
