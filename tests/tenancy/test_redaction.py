"""Secrets of servers, and what is left of them in records."""

from __future__ import annotations

import pytest

from pytest_hwqueue.redaction import redacted
from pytest_hwqueue.servers.spec import ServerSpec
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec


@pytest.mark.parametrize(
    "text",
    [
        "http://me:hidden@h:8000/v1",
        "https://h/v1?model=m&access_token=hidden&n=1",
        "Authorization: Bearer hidden",
        "serve --api-key hidden --port 1",
        "serve --api-key=hidden",
        '{"api_key": "hidden"}',
    ],
)
def test_a_secret_is_left_out_and_the_rest_stays(text: str) -> None:
    shown = redacted(text)
    assert "hidden" not in shown
    assert "<redacted>" in shown
    assert redacted(shown.replace("<redacted>", "x")).count("<redacted>") == 1


def test_what_is_no_secret_stays() -> None:
    for text in ("http://127.0.0.1:8000/v1", "--max-tokens 8", "max_tokens=8", '{"tokens": "8"}'):
        assert redacted(text) == text


def test_a_plan_as_records_hold_it_has_no_secret() -> None:
    server = ServerSpec(
        "http://me:hidden@h/", ("serve", "--token", "hidden"), headers={"X-Mine": "hidden"},
        body='{"password": "hidden"}', ready="http://me:hidden@h/up",
    )  # fmt: skip
    plan = Colocation("mine", (TenantSpec("high", server=server),))
    assert "hidden" not in str(plan.to_json())
    assert plan.tenants[0].server == server
