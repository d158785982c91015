"""Prompts from files: three forms read, what is wrong named by its line, and draws by the seed."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival, schedule
from pytest_hwqueue.engine.tenants.prompts import (
    PromptRequest,
    drawn,
    read_prompts,
    text_of,
)

OWN = st.fixed_dictionaries(
    {"prompt": st.text(min_size=1)},
    optional={"max_tokens": st.none() | st.integers(1, 10_000_000)},
)
CONVERSATION = [{"from": "human", "value": "Hi there"}, {"from": "gpt", "value": "one two three"}]
# As Mooncake's trace has them.
MOONCAKE = [
    {"timestamp": 0, "input_length": 1030, "output_length": 500, "hash_ids": [46, 47, 48]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 20, "hash_ids": [46, 47]},
]


def requests_of(file: Path) -> list[PromptRequest]:
    return read_prompts(file.name, file.parent)[1]


def write(folder: Path, lines: list[Any]) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


@given(st.lists(OWN, min_size=1, max_size=20))
def test_own_lines_are_read_as_they_are_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    file = write(tmp_path_factory.mktemp("own"), lines)
    expected = [PromptRequest(each["prompt"], 0, (), each.get("max_tokens")) for each in lines]
    assert requests_of(file) == expected
    assert [text_of(each) for each in expected] == [each["prompt"] for each in lines]


@pytest.mark.parametrize("as_list", [True, False])
def test_conversations_count_by_their_first_two_turns(tmp_path: Path, as_list: bool) -> None:
    entries = [
        {"id": "a", "conversations": [*CONVERSATION, {"from": "human", "value": "more"}]},
        {"id": "b", "conversations": CONVERSATION[:1]},
        {"id": "c", "conversations": []},
        {"conversations": [{"role": "user", "content": "x"}, {"role": "a", "content": "y"}]},
    ]
    file = write(tmp_path, entries)
    if as_list:
        file.write_text(json.dumps(entries, indent=1))
    # Three words of an answer are four tokens.
    assert requests_of(file) == [
        PromptRequest("Hi there", 0, (), 4), PromptRequest("x", 0, (), math.ceil(4 / 3)),
    ]  # fmt: skip


def test_a_trace_has_lengths_and_equal_blocks_are_equal_text(tmp_path: Path) -> None:
    first, second = requests_of(write(tmp_path, MOONCAKE))
    assert (first.max_tokens, second.max_tokens) == (500, 20)
    texts = [text_of(each).split(" ") for each in (first, second)]
    assert [len(words) for words in texts] == [1030, 1024]
    assert texts[0][:1024] == texts[1]
    other = first._replace(blocks=(46, 99, 48))
    assert text_of(other).split(" ")[:512] == texts[0][:512]
    assert text_of(other).split(" ")[512:1024] != texts[0][512:1024]


def test_what_has_no_id_is_each_requests_own_text(tmp_path: Path) -> None:
    """Text that all share would be the best case of a prefix cache."""
    without = [{"input_length": 1500}, {"input_length": 1500, "hash_ids": []}]
    file = write(tmp_path, [*without, *({**each, "input_length": 1500} for each in MOONCAKE)])
    found = requests_of(file)
    texts = [text_of(each).split(" ") for each in found]
    assert [text_of(each).split(" ") for each in found] == texts
    assert [len(words) for words in texts] == [1500] * 4
    first, second, three_ids, two_ids = texts
    assert all(first[at : at + 500] != second[at : at + 500] for at in (0, 500, 1000))
    assert three_ids[:1024] == two_ids[:1024]
    assert three_ids[1024:] != two_ids[1024:]


def test_its_timestamps_are_arrivals(tmp_path: Path) -> None:
    write(tmp_path, MOONCAKE)
    arrival = parse_arrival("trace: prompts.jsonl", tmp_path)
    assert schedule(arrival, 0, 10**10) == [0, 1_500_000_000]
    write(tmp_path, [{"timestamp": True}])
    with pytest.raises(BadInput, match=r"line 1: .* is no offset"):
        parse_arrival("trace: prompts.jsonl", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no prompt; give one in a line"),
        ('{"prompt": "a"}\n{"prompt": ""}', "line 2: prompt is ''; give text"),
        ('{"prompt": 3}', "line 1: prompt is 3; give text"),
        ('{"prompt": "a", "max_tokens": 0}', "line 1: max_tokens is 0; give a whole number from 1"),
        ('{"prompt": "a", "max_tokens": true}', "line 1: max_tokens is True"),
        ('\n{"prompt": "a"', "line 2: no line of JSON"),
        ('{"prompt": "a\u2028b\x85c"}\n1', "line 2: '1' is no table of fields"),
        ("[1]", "entry 1: '1' is no table of fields"),
        ("[", "is no list of JSON"),
        ("[" * 100_000, "is no list of JSON"),
        ('{"text": "a"}', "line 1: has neither prompt, conversations nor input_length"),
        ('{"conversations": "a"}', "line 1: conversations is 'a'; give a list of turns"),
        ('{"input_length": 1e9}', "line 1: input_length is 1000000000.0"),
        ('{"input_length": 5, "hash_ids": ["a"]}', "line 1: hash_ids is ['a']; give whole numbers"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        requests_of(file)
    assert f"{file}" in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere.jsonl cannot be read"):
        requests_of(tmp_path / "nowhere.jsonl")
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(BadInput, match="has 67,108,865 bytes, and prompts are kept in memory"):
        requests_of(large)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(BadInput, match=r"pipe.jsonl cannot be read: it is no regular file"):
        requests_of(tmp_path / "pipe.jsonl")


def test_draws_are_the_seeds_or_the_files(tmp_path: Path) -> None:
    requests = requests_of(write(tmp_path, [{"prompt": name} for name in "abcd"]))

    def taken(seed: int, count: int, *, in_order: bool = False) -> list[str]:
        return [each.text for each in islice(drawn(requests, seed, in_order=in_order), count)]

    assert taken(1, 9, in_order=True) == list("abcdabcda")
    assert taken(1, 50) == taken(1, 50) != taken(2, 50)
    # With replacement, each as often as any other: 4 standard deviations of a binomial are 350.
    counts = Counter(taken(3, 10_000))
    assert all(abs(counts[name] - 2500) < 350 for name in "abcd")


def test_a_plan_holds_which_file_it_was(tmp_path: Path) -> None:
    write(tmp_path, [{"prompt": "a"}, {"prompt": "b"}])
    before = read_prompts("prompts.jsonl", tmp_path)[0]
    assert (before.file, before.requests, len(before.sha256)) == ("prompts.jsonl", 2, 64)
    write(tmp_path, [{"prompt": "a"}, {"prompt": "c"}])
    assert read_prompts("prompts.jsonl", tmp_path)[0].sha256 != before.sha256
