"""A process's rank, from the variables that launchers set."""

from __future__ import annotations

import pytest

from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.parts.processes.launched import LaunchedRank, launched_rank, place_on_this_host

BY_TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchrun() -> None:
    assert launched_rank(BY_TORCHRUN) == LaunchedRank(
        5, 8, 1, 4, "node-a", 29500, store_exists=True
    )


def test_another_launcher_keeps_no_store_and_names_no_local_rank() -> None:
    given = {name: BY_TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    found = launched_rank({**given, "MASTER_PORT": "1"})
    assert found == LaunchedRank(5, 8, 5, 8, "node-a", 1, store_exists=False)


@pytest.mark.parametrize("absent", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_whoever_was_not_started_together_with_others_is_alone(absent: str) -> None:
    assert launched_rank({n: v for n, v in BY_TORCHRUN.items() if n != absent}) is None


def test_one_rank_is_alone() -> None:
    assert launched_rank({**BY_TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_what_is_no_number_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadOption, match=f"environment variable {name}: 'x'"):
        launched_rank({**BY_TORCHRUN, name: "x"})


def test_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(BadOption, match="RANK: '8' is not valid; WORLD_SIZE is 8"):
        launched_rank({**BY_TORCHRUN, "RANK": "8"})


def test_a_place_on_this_host_is_a_launched_rank_on_loopback_unless_the_user_says_otherwise() -> (
    None
):
    place = place_on_this_host(1, 2, 29500, {"GLOO_SOCKET_IFNAME": "eth1"})
    assert launched_rank(place) == LaunchedRank(1, 2, 1, 2, "127.0.0.1", 29500, store_exists=True)
    assert (place["GLOO_SOCKET_IFNAME"], place["NCCL_SOCKET_IFNAME"]) == ("eth1", "lo")
