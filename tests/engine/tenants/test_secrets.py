"""Variables of the environment in a server's fields, and what is secret about them."""

from __future__ import annotations

import base64
import html
import json
from dataclasses import replace
from urllib.parse import quote_plus, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.redaction import REDACTED, redacted
from pytest_hwqueue.engine.tenants.server_variables import expand, expand_url
from pytest_hwqueue.engine.tenants.servers import for_records, secrets_of, unset_variable

SPEC = Server("http://h/")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "h1dden/t&k n@")
    monkeypatch.setenv("PLACE", "10.0.0.1:80")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)


def test_a_reference_is_filled_in_and_two_dollars_are_one() -> None:
    assert expand("Bearer ${TOKEN}.") == "Bearer h1dden/t&k n@."
    assert expand("$${TOKEN} $TOKEN {TOKEN} ${TOKEN:-x} ${a b}") == (
        "${TOKEN} $TOKEN {TOKEN} ${TOKEN:-x} ${a b}"
    )
    for name, how in (("UNSET", "UNSET is not set"), ("EMPTY", "EMPTY is empty")):
        with pytest.raises(HwqError, match=how):
            expand(f"${{{name}}}")


def test_in_a_url_a_value_is_what_its_part_is() -> None:
    url = expand_url("http://${TOKEN}:${TOKEN}@${PLACE}/v1?token=${TOKEN}&n=1")
    parts = urlsplit(url)
    assert (parts.hostname, parts.port, parts.path) == ("10.0.0.1", 80, "/v1")
    assert unquote(parts.username or "") == unquote(parts.password or "") == "h1dden/t&k n@"
    assert parts.query == "token=h1dden%2Ft%26k%20n%40&n=1"
    assert expand_url("/up?token=${TOKEN}") == "/up?token=h1dden%2Ft%26k%20n%40"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(SPEC, headers={"Authorization": "Bearer ${UNSET}"}), "headers.Authorization: "),
        (replace(SPEC, url="http://h/?token=${UNSET}"), "url: "),
        (replace(SPEC, ready="/up?token=${UNSET}"), "ready: "),
        (replace(SPEC, command=("serve", "--token", "${UNSET}")), "command: "),
    ],
)
def test_the_field_whose_variable_is_not_set_is_named(spec: Server, said: str) -> None:
    what = "the environment variable UNSET is not set: give it a value, or write $${UNSET} for "
    assert unset_variable(spec) == f"{said}{what}the text ${{UNSET}}"
    assert unset_variable(replace(SPEC, headers={"A": "${TOKEN} $${UNSET}"})) is None
    # What else is secret can be told even so.
    assert secrets_of(spec) == frozenset()


@pytest.mark.parametrize(
    ("spec", "secrets"),
    [
        (replace(SPEC, headers={"X-Mine": "hidden"}), ["hidden"]),
        (replace(SPEC, headers={"Authorization": "Bearer hidden"}), ["Bearer hidden", "hidden"]),
        (replace(SPEC, headers={"Cookie": "a=hidden; b=h1dden"}), ["hidden", "h1dden"]),
        (replace(SPEC, headers={"X-A": "Key ${TOKEN}"}), ["h1dden/t&k n@"]),
        (replace(SPEC, command=("${TOKEN}",)), ["h1dden/t&k n@"]),
        (replace(SPEC, command=("serve", "--token", "hidden")), ["hidden"]),
        (replace(SPEC, url="http://me:hid%3Aden@h/?sig=h1dden"), ["h1dden", "hid:den"]),
        (replace(SPEC, headers={"X-A": 'Digest a="hidden", b=h1dden'}), ["hidden", "h1dden"]),
        (replace(SPEC, ready="http://me:hidden@h/up"), [base64.b64encode(b"me:hidden").decode()]),
        # As aiohttp sends a user without a password, and one in Latin-1.
        (replace(SPEC, url="http://hidden@h/"), [base64.b64encode(b"hidden:").decode()]),
        (
            replace(SPEC, url="http://me:hidd%C3%A4n@h/"),
            [base64.b64encode("me:hiddän".encode("latin-1")).decode()],
        ),
        (replace(SPEC, body='{"password": "hidden"}'), ["hidden"]),
    ],
)  # fmt: skip
def test_what_is_secret_is_known_in_each_form(spec: Server, secrets: list[str]) -> None:
    known = secrets_of(spec)
    assert known.issuperset(secrets)
    for secret in secrets:
        assert redacted(f"it said {secret}.", known) == f"it said {REDACTED}."


def test_what_every_answer_says_is_no_secret() -> None:
    headers = {"Content-Type": "application/json", "accept": "text/html", "X-Mine": "abc"}
    assert secrets_of(replace(SPEC, headers=headers, command=("serve", "--tokens", "512"))) == set()


def test_a_plan_as_records_hold_it_has_no_secret_and_keeps_references() -> None:
    server = Server(
        "http://me:hidden@h/?key=hidden&token=${TOKEN}",
        ("serve", "--token", "hid den", "--key-of", "hidden", "--password=${TOKEN}"),
        headers={"X-Mine": "hidden", "X-Other": "${TOKEN}", "Authorization": "Bearer ${TOKEN}"},
        body='{"password": "hidden"}', ready="http://me:hidden@h/up",
    )  # fmt: skip
    plan = Colocation("mine", (Tenant("high", server=server),))
    stored = for_records(plan).tenants[0].server
    assert stored is not None
    assert stored.url == f"http://{REDACTED}@h/?key={REDACTED}&token=${{TOKEN}}"
    assert stored.ready == f"http://{REDACTED}@h/up"
    assert stored.command == (
        "serve", "--token", REDACTED, "--key-of", REDACTED, "--password=${TOKEN}"
    )  # fmt: skip
    assert stored.headers == {
        "X-Mine": REDACTED, "X-Other": "${TOKEN}", "Authorization": "Bearer ${TOKEN}"
    }  # fmt: skip
    assert stored.body == f'{{"password": "{REDACTED}"}}'
    assert plan.tenants[0].server == server
    assert "X-Mine" not in repr(server)


# No surrogates: nothing in an environment of UTF-8 is one.
_VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4, max_size=20)


@given(_VALUES)
def test_whatever_a_variable_holds_is_known(value: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TOKEN", value)
        known = secrets_of(replace(SPEC, url="http://h/?token=${TOKEN}"))
        sent = URL(expand_url("http://${TOKEN}@h/?x=${TOKEN}"))
        texts = [value, sent.raw_query_string[2:], sent.raw_user or "", quote_plus(value)]
        as_go_does = json.dumps(value).replace("&", r"\u0026")[1:-1]
        for text in (*texts, html.escape(value), json.dumps(value)[1:-1], as_go_does):
            # The last point of a URL may be the sentence's.
            shown = redacted(f"it said {text}", known).rstrip(".,;:)]'\"")
            assert shown == f"it said {REDACTED}"
