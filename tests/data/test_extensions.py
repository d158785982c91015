"""Things by name: built in, or added by another package; what is wrong with one is said at once."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data import extensions
from pytest_hwqueue.data.errors import BadInput, BadOption
from pytest_hwqueue.data.extensions import Registry
from pytest_hwqueue.data.noise_names import NOISES
from pytest_hwqueue.data.records.kinds import KINDS, Capabilities, can_name_devices, capabilities_of
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise
from pytest_hwqueue.parts.devices.kinds import DeviceChoice, choose_devices, open_device
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, Declaration, StreamRange

Install = Callable[..., None]
_GROUP = "pytest_hwqueue.things"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with entry points, and a module of its name, on the path."""

    def install(package: str, group: str, points: str, module: str = "") -> None:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        (tmp_path / f"{package}.py").write_text(module)

    monkeypatch.syspath_prepend(tmp_path)
    return install


def things(built_in: dict[str, str] | None = None) -> Registry[str]:
    def adopt(point: EntryPoint, found: Any) -> str:
        return f"{point.name} is {found}"

    return Registry(_GROUP, built_in or {"ours": "our own"}, adopt)


def anew(registry: Registry[Any]) -> Registry[Any]:
    """The same things, to be looked up anew."""
    return Registry(registry.group, registry.built_in, registry._adopt)


def test_what_is_built_in_is_found_without_a_search(install: Install) -> None:
    # A search would refuse it.
    install("added_none", _GROUP, "ours = added_none:it")
    found = things()
    assert found["ours"] == "our own"
    assert "ours" in found


def test_what_a_package_adds_is_listed_behind_ours_and_imported_when_asked_for(
    install: Install,
) -> None:
    install("added_one", _GROUP, "zeta = added_one:it\nbeta = added_one:absent", "it = 'its own'")
    found = things()
    assert list(found) == ["ours", "beta", "zeta"]
    assert len(found) == 3
    assert found["zeta"] == "zeta is its own"
    assert "gamma" not in found
    assert found.get("gamma") is None


def test_a_package_that_cannot_be_imported_is_named_with_the_cause(install: Install) -> None:
    install("added_two", _GROUP, "broken = added_two:it", "raise OSError('no library')")
    with pytest.raises(
        BadInput,
        match=r"added_two 1\.0: entry point broken = added_two:it of pytest_hwqueue\.things cannot "
        r"be loaded: OSError: no library; repair that package, or uninstall it",
    ):
        things()["broken"]


def test_a_name_is_taken_once(install: Install) -> None:
    install("added_three", _GROUP, "ours = added_three:it", "it = 1")
    with pytest.raises(BadInput, match=r"added_three 1\.0: .* takes a name that is built in"):
        list(things())
    install("added_four", _GROUP, "ours = added_four:it", "it = 1")
    with pytest.raises(BadInput, match=r"takes the name of added_\w+ 1\.0"):
        list(things({"other": ""}))


_WORKLOAD = """
from pytest_hwqueue import Parameters, StreamRange, Workload

class Mine(Workload):
    name, family, mark, description = "mine", "example", "P2", "nothing"
    stream_range, units, parameter_model = StreamRange(1, 2, 3), ("nothings",), Parameters
    sizes = {"tiny": {}, "small": {}, "full": {}}

class Unmarked(Mine):
    name, mark = "unmarked", "urgent"

class Nameless(Workload):
    mark = "P2"
"""


def test_a_workload_says_of_itself_what_a_session_must_know(install: Install) -> None:
    install("workload_one", WORKLOADS.group, "mine = workload_one:Mine", _WORKLOAD)
    (name,) = anew(WORKLOADS).added
    assert anew(WORKLOADS)[name] == Declaration(
        "mine",
        "example",
        "P2",
        StreamRange(1, 2, 3),
        "workload_one:Mine",
        "nothing",
        ("nothings",),
    )


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("other = {}:Mine", "names a workload whose name is 'mine'"),
        ("unmarked = {}:Unmarked", "its mark is 'urgent', not P0, P1, P2, P3"),
        ("nameless = {}:Nameless", "names a workload without name, family, description"),
        ("mine = {}:Parameters", "which is no class of a Workload"),
        ("mine = {}:StreamRange.least", "cannot be loaded"),
    ],
)
def test_what_is_no_workload_is_refused(install: Install, point: str, said: str) -> None:
    package = f"workload_{zlib.crc32(said.encode())}"
    install(package, WORKLOADS.group, point.format(package), _WORKLOAD)
    found = anew(WORKLOADS)
    with pytest.raises(BadInput, match=said):
        found[next(iter(found.added))]


def test_a_package_that_ends_the_process_as_it_is_imported_is_named(install: Install) -> None:
    install("ends_it", WORKLOADS.group, "mine = ends_it:Mine", "import sys; sys.exit(3)")
    with pytest.raises(BadInput, match=r"ends_it .*cannot be loaded: SystemExit: 3; repair that"):
        anew(WORKLOADS)["mine"]


# Its own child ends as it asks, and the function that it keeps is the real one.
ENDS_HARD = """
import os
child = os.fork()
if child == 0:
    os._exit(7)
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
from os import _exit as kept
if {last}:
    os._exit(ended)
Mine = int
"""


def test_a_package_that_ends_the_process_at_once_is_named_too(install: Install) -> None:
    before = os._exit
    install("ends_hard", WORKLOADS.group, "mine = ends_hard:Mine", ENDS_HARD.format(last=True))
    said = r"ends_hard .*cannot be loaded: SystemExit: it called os._exit\(7\); repair that"
    with pytest.raises(BadInput, match=said):
        anew(WORKLOADS)["mine"]
    assert os._exit is before
    install("keeps_it", WORKLOADS.group, "other = keeps_it:kept", ENDS_HARD.format(last=False))
    kept = extensions.load(anew(WORKLOADS).added["other"])
    child = os.fork()
    if child == 0:
        kept(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


_DEVICE = """
from pytest_hwqueue import Capabilities

class Mine:
    kind, capabilities = "mine", Capabilities(host=True, graphs=False)
    def __init__(self, label):
        self.label = label

class Unknown:
    pass
"""


def test_a_device_can_do_what_its_class_says(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        "device_one", KINDS.group, "mine = device_one:Mine\nworse = device_one:Unknown", _DEVICE
    )
    monkeypatch.setitem(vars(KINDS), "added", anew(KINDS).added)
    assert can_name_devices("mine")
    assert can_name_devices("mine:with=this")
    assert not can_name_devices("yours")
    assert choose_devices("mine:2") == [DeviceChoice("mine:2", "mine", 0)]
    assert capabilities_of("mine:2").host
    assert open_device("mine:2").label == "mine:2"
    refused = r"names <class 'device_one.Unknown'>, which is no class of"
    with pytest.raises(BadOption, match=refused):
        choose_devices("worse")
    # It is refused by then; nobody asks it anything else.
    assert capabilities_of("worse") == Capabilities()


_NOISE = """
from pytest_hwqueue import Noise

def hum(places):
    '''Hums.

    All the time.
    '''
    return Noise("hum", ())

loud = 11
"""


def test_a_noise_opens_by_its_name(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("noise_one", NOISES.group, "hum = noise_one:hum\nloud = noise_one:loud", _NOISE)
    monkeypatch.setitem(vars(NOISES), "added", anew(NOISES).added)
    assert NOISES["hum"].help == "Hums."
    assert open_noise("hum", NoisePlaces(tmp_path)).name == "hum"
    with pytest.raises(BadInput, match="names 11, which is no function"):
        open_noise("loud", NoisePlaces(tmp_path))
    with pytest.raises(BadInput, match=r"there is no noise 'him'; there are none, .*hum, loud"):
        open_noise("him", NoisePlaces(tmp_path))
