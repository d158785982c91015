"""Secrets of servers and commands, and what is left of them in what is written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_hwqueue.data import redaction
from pytest_hwqueue.data.redaction import (
    NOTHING,
    REDACTED,
    known_forms,
    redacted,
    redacted_arguments,
    redacted_command,
    secrets_among,
    without_begun,
)

# As users and generators of passwords make them, for every reader of shells, URLs and JSON.
_PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
SECRETS = st.text(_PRINTABLE, min_size=1, max_size=20)
NAMES = st.sampled_from(
    ["token", "api-key", "HF_TOKEN", "client_secret", "password", "AWS_SECRET_ACCESS_KEY"]
)
HEADERS = st.sampled_from(
    ["Authorization", "Proxy-Authorization", "X-Api-Key", "Cookie", "X-Auth-Token"]
)


def secret_alone(secret: str) -> bool:
    """Whether a text is no reference, no long option, no word for none, and not what hides it."""
    option = secret.startswith("--")
    bare = secret.strip("'\": ,;)]}").lower()
    return not (option or "${" in secret or bare in ("", *NOTHING) or REDACTED in secret)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hidden@h:8000/v1", "http://<redacted>@h:8000/v1"),
        ("http://hidden@h/", "http://<redacted>@h/"),
        ("https://h/v1?model=m&access_token=hidden&n=1", "https://h/v1?model=m&access_token=<redacted>&n=1"),
        ("http://h/?sig=hidden&key=hidden#x", "http://h/?sig=<redacted>&key=<redacted>#x"),
        ("http://h/?key=hidden: refused", "http://h/?key=<redacted>: refused"),
        ('["http://h/?token=hidden", 1]', '["http://h/?token=<redacted>", 1]'),
        ("Authorization: Bearer hidden", "Authorization: <redacted>"),
        ("Authorization: hidden", "Authorization: <redacted>"),
        ("Cookie: a=hidden; b=hidden\nHost: h", "Cookie: <redacted>\nHost: h"),
        ("curl -H 'Authorization: token hidden' http://h/", "curl -H 'Authorization: <redacted>' http://h/"),
        ('curl -H "X-Api-Key: hidden" http://h/', 'curl -H "X-Api-Key: <redacted>" http://h/'),
        ("X-Api-Key: hidden", "X-Api-Key: <redacted>"),
        ("sent Bearer hidden, and got 401", "sent Bearer <redacted>, and got 401"),
        ("serve --api-key hidden --port 1", "serve --api-key <redacted> --port 1"),
        ("serve --api-key=hidden", "serve --api-key=<redacted>"),
        ("serve --token -hidden", "serve --token <redacted>"),
        ("serve --token 'hidden' --port 1", "serve --token <redacted> --port 1"),
        ("TOKEN='hidden hidden' serve", "TOKEN=<redacted> serve"),
        ("env 'TOKEN=hidden hidden' serve", "env 'TOKEN=<redacted>' serve"),
        ("password: hidden at line 3", "password: <redacted> at line 3"),
        ("token: hidden", "token: <redacted>"),
        ('{"api_key": "hidden", "n": 1}', '{"api_key": "<redacted>", "n": 1}'),
        ('{"password": 1234, "n": 1}', '{"password": "<redacted>", "n": 1}'),
        ("{'token': -1.5e3}", "{'token': '<redacted>'}"),
        (r'{"text": "{\"password\": 1234}"}', r'{"text": "{\"password\": \"<redacted>\"}"}'),
        ('{"Cookie":["a b","c"],"n":["d"]}', '{"Cookie":["<redacted>","<redacted>"],"n":["d"]}'),
        ("['serve', '--api-key', 'hidden']", "['serve', '--api-key', '<redacted>']"),
        ('["serve","--api-key","hidden"]', '["serve","--api-key","<redacted>"]'),
        ("- --api-key\n- hidden\n- --port", "- --api-key\n- <redacted>\n- --port"),
        ('  - "--api-key"\n  - "hidden"\n', '  - "--api-key"\n  - "<redacted>"\n'),
        ("[serve, --token, hidden, --port]", "[serve, --token, <redacted>, --port]"),
        ("aws_secret_key = hidden\nregion = x", "aws_secret_key = <redacted>\nregion = x"),
        ("'api_key = hidden'", "'api_key =<redacted>'"),
        ("--token= hidden --port 1", "--token= <redacted> --port 1"),
        ("--token==hidden", "--token=<redacted>"),
        ("token=--hidden", "token=<redacted>"),
        ("password : hidden", "password : <redacted>"),
        ("token := hidden\nregion = x", "token := <redacted>\nregion = x"),
        ("TOKEN:=hidden", "TOKEN:=<redacted>"),
        ("api_key => hidden, n => 1", "api_key => <redacted> n => 1"),
        (":token=>'hidden hidden'", ":token=><redacted>"),
        ("'token' => 'hidden'", "'token' => '<redacted>'"),
        ('{"password" => 1234}', '{"password" => "<redacted>"}'),
        ('password := "hidden hidden"', "password := <redacted>"),
        ("'password := hidden hidden'", "'password :=<redacted>'"),
        ('"password => hidden hidden"', '"password =<redacted>"'),
        ("Authorization := Bearer hidden", "Authorization := <redacted>"),
        ("Authorization => Bearer hidden", "Authorization => <redacted>"),
        ("Authorization:= hidden", "Authorization:= <redacted>"),
        ("--token := hidden --port 1", "--token := <redacted> --port 1"),
        (r'{"text": "{\"api_key\": \"hidden\"}"}', r'{"text": "{\"api_key\": \"<redacted>\"}"}'),
        ("{'Authorization': 'token hidden', 'n': 1}", "{'Authorization': '<redacted>', 'n': 1}"),
        ("[(b'authorization', b'hidden')]", "[(b'authorization', b'<redacted>')]"),
    ],
)  # fmt: skip
def test_a_secret_is_left_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1?model=m&n=1",
        "--tokens 512 --max-tokens 8",
        "max_tokens=8",
        '{"tokens": "8", "max_tokens": 8}',
        "tiny_kernel_stress with key=value, rounds=2",
        "serve --use-token --port 8000",
        "serve --token= --port 8000",
        "if token == other and max_tokens == 8",
        "max_tokens := 8 and n => 2, token := none",
        '{"first_token": 12.5, "max_tokens": 8, "usage": {"tokens": [1, 2]}}',
        "first token: 12.3 ms",
        "time_to_first_token=12.5 ms, inter_token=3.1 ms",
        "--max-token 512 --hwq-param=eos_token=2",
        '{"eos_token": "stop", "pad_token": "<pad>"}',
        "serve --token none --api-key=null",
        "status 404, not 200: no such model",
        "python -m pytest 'tests/test_mine.py::test_it[a-b]' --hwq-device=cpu -k 'not slow'",
        "Bearer ${TOKEN}",
        "http://${ME}:${PASSWORD}@h/?token=${TOKEN}&n=1",
        "serve --token ${TOKEN} --api-key=${KEY}",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert redacted_command(shlex.split(text)) == shlex.join(shlex.split(text))


def test_in_a_list_of_yaml_the_next_item_may_be_another_option() -> None:
    text = "- --use-token\n- --port\n- x"
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text",
    ["authorization=Bearer s3cr3t-1", "--authorization Bearer s3cr3t-1",
     "proxy_authorization=Basic s3cr3t-1", "hf_token=s3cr3t-1"],
)  # fmt: skip
def test_a_scheme_in_front_hides_no_secret(text: str) -> None:
    assert "s3cr3t" not in redacted(text)


def test_only_the_reference_stays_of_a_value_that_holds_one() -> None:
    assert (
        redacted("http://h/?token=hid${PART}den") == "http://h/?token=<redacted>${PART}<redacted>"
    )


@given(SECRETS, NAMES)
@example("a'b c", "token")
@example("-x", "token")
def test_no_command_shows_a_secret(secret: str, name: str) -> None:
    assume(secret_alone(secret))
    arguments = [
        "serve", f"--{name}", secret, f"--{name}={secret}", f"{name}={secret}", "--port", "8000",
    ]  # fmt: skip
    expected = ["serve", f"--{name}", REDACTED, f"--{name}={REDACTED}", f"{name}={REDACTED}"]
    assert redacted_arguments(arguments) == [*expected, "--port", "8000"]
    # A command that is a text already, such as one that a server prints.
    line = redacted(shlex.join(arguments))
    assert [each for each in shlex.split(line) if each not in ("--port", "8000")] == expected


def test_each_value_of_an_option_that_takes_several_is_left_out() -> None:
    values = ["k3y-one", "k3y-two-is-a-long-one", "3f2.Zm9v.YmFyYmF6"]
    arguments = ["serve", "--api-key", *values, "--port", "8000"]
    assert redacted_arguments(arguments) == [
        "serve", "--api-key", *[REDACTED] * 3, "--port", "8000"
    ]  # fmt: skip
    assert [*secrets_among(arguments)] == values
    # What is plainly another argument stays: what is repeated is to be found by it.
    for other in ("main", "serve.py", "tests/test_a1.py::test_x", "org/Model-8B", "8000"):
        assert redacted_arguments(["--token", "k3y", other]) == ["--token", REDACTED, other]
    assert redacted_arguments(["--token=", "k3y", "x"]) == ["--token=", REDACTED, "x"]
    # Or it is a model, whose name a server prints.
    assert [*secrets_among(["serve", "--token", "k3y", "llama3-8b"])] == ["k3y"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"token": ["a\\"bcd", "c"], "n": 1}', {"token": [REDACTED, REDACTED], "n": 1}),
        ('{"X-Api-Key": ["ab]cd9", "zzz1"]}', {"X-Api-Key": [REDACTED, REDACTED]}),
        ('{"token": [123456, 99]}', {"token": [REDACTED, REDACTED]}),
        ('{"output_token": 3.2}', {"output_token": 3.2}),
    ],
)
def test_a_list_under_a_secret_key_stays_json(text: str, left: object) -> None:
    assert json.loads(redacted(text)) == left


def test_a_switch_in_a_list_of_yaml_has_no_value() -> None:
    assert redacted("[--use-token, --api-key, abc9]") == f"[--use-token, --api-key, {REDACTED}]"


@given(SECRETS, HEADERS)
@example("token a'b", "Authorization")
def test_no_header_shows_a_secret(secret: str, name: str) -> None:
    assume(secret_alone(secret))
    assert redacted(f"{name}: {secret.strip()}\nHost: h") == f"{name}: {REDACTED}\nHost: h"
    command = ["curl", "-H", f"{name}: {secret.strip()}", "http://h/"]
    shown = ["curl", "-H", f"{name}: {REDACTED}", "http://h/"]
    assert redacted_arguments(command) == shown
    assert shlex.split(redacted(shlex.join(command))) == shown
    for written in (json.dumps({name: secret, "n": 1}), json.dumps({"n": 1, name: secret})):
        assert json.loads(redacted(written)) == {name: REDACTED, "n": 1}


@given(SECRETS, st.sampled_from([str, lambda text: quote(text, safe="'")]))
def test_no_url_shows_a_secret(secret: str, encoded: Callable[[str], str]) -> None:
    # What stands unencoded in a URL is what may.
    secret = quote(secret, safe="'!*(),;:.") if encoded is str else encoded(secret)
    assume(secret_alone(secret) and secret[-1] not in "'),;:.")
    url = f"http://me:{secret}@h:80/v1?key={secret}&access_token={secret}&n=1"
    shown = f"http://{REDACTED}@h:80/v1?key={REDACTED}&access_token={REDACTED}&n=1"
    assert redacted(url) == shown
    assert shlex.split(redacted(shlex.join(["serve", "--url", url]))) == ["serve", "--url", shown]


@given(st.text(_PRINTABLE, min_size=4, max_size=20), SECRETS)
def test_a_known_value_is_nowhere_in_any_form(secret: str, around: str) -> None:
    assume(secret.strip() == secret and secret not in REDACTED)
    known = known_forms([secret])
    for form in (secret, quote(secret, safe=""), json.dumps(secret), shlex.join([secret, "x"])):
        assert secret not in redacted(f"{around} {form} {around}", known).replace(REDACTED, "")


def test_short_values_are_looked_for_by_name_alone() -> None:
    known = known_forms(["abc", "abcd"])
    assert redacted("abc, abcd, --token abc", known) == "abc, <redacted>, --token <redacted>"


@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 12))
@example([b"ab", b"cd"], 1)
def test_a_file_is_rewritten_without_known_values(between: list[bytes], block: int) -> None:
    known = ("secret", "secret-of-more", "et-of")
    content = b"secret-of-more".join(between) + b"secret"
    expected = b"<redacted>".join(between) + b"<redacted>"
    assume(not any(value.encode() in each for value in known for each in between))
    blocks = [content[at : at + block] for at in range(0, len(content), block)]
    assert b"".join(redaction.blocks_without(blocks, known)) == expected
    with TemporaryDirectory() as folder:
        file = Path(folder) / "server.log"
        file.write_bytes(content)
        redaction.remove_known(file, known)
        assert file.read_bytes() == expected
        assert [*file.parent.iterdir()] == [file]


def test_what_was_cut_off_has_no_beginning_of_a_known_value() -> None:
    known = ("hidden-value",)
    assert without_begun("it said hidden-va", known) == "it said <redacted>"
    assert without_begun("it said hid", known) == "it said hid"
    assert without_begun("it said", known) == "it said"
