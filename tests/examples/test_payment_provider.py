"""The payment provider of the refund example: what a demonstration is judged by must be right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "refund"
sys.path.insert(0, str(EXAMPLE))

from service import Provider, running_provider  # noqa: E402 - found through the line above

REFUND = {"order_id": "A-100", "amount": 19_900}


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with running_provider(tmp_path / "payments.db") as running:
        yield running


def post(provider: Provider, key: str | None, **body: object) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return httpx2.post(f"{provider.url}/refunds", json=body, headers=headers, timeout=5)


def test_the_same_key_makes_one_refund_and_returns_it_again(provider: Provider) -> None:
    first, second = post(provider, "k", **REFUND), post(provider, "k", **REFUND)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    ledger = provider.ledger()
    assert len(ledger["refunds"]) == 1
    assert [request["answer"] for request in ledger["requests"]] == ["made", "same"]


def test_a_key_used_for_another_refund_is_refused_and_moves_nothing(provider: Provider) -> None:
    post(provider, "k", **REFUND)
    assert post(provider, "k", order_id="A-100", amount=1).status_code == 422
    assert [refund["amount"] for refund in provider.ledger()["refunds"]] == [19_900]


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (None, REFUND),
        ("k", {"order_id": "A-100"}),
        ("k", {"order_id": "A-100", "amount": -1}),
        ("k", {"order_id": 7, "amount": 1}),
    ],
)
def test_a_refund_without_key_order_or_amount_is_refused_and_noted(
    provider: Provider, key: str | None, body: dict[str, object]
) -> None:
    assert post(provider, key, **body).status_code == 400
    ledger = provider.ledger()
    assert (len(ledger["requests"]), ledger["refunds"]) == (1, [])


def test_two_keys_for_one_order_are_two_refunds_for_the_ledger_to_show(provider: Provider) -> None:
    post(provider, "k1", **REFUND)
    post(provider, "k2", **REFUND)
    found = httpx2.get(f"{provider.url}/refunds", params={"order_id": "A-100"}, timeout=5).json()
    other = httpx2.get(f"{provider.url}/refunds", params={"order_id": "B-200"}, timeout=5).json()
    assert [refund["key"] for refund in found["refunds"]] == ["k1", "k2"]
    assert other["refunds"] == []


def test_the_ledger_survives_a_restart_of_the_provider(tmp_path: Path) -> None:
    with running_provider(tmp_path / "payments.db") as before:
        post(before, "k", **REFUND)
    with running_provider(tmp_path / "payments.db") as after:
        assert post(after, "k", **REFUND).status_code == 200
        assert len(after.ledger()["refunds"]) == 1


def test_a_hanging_provider_has_made_the_refund_and_answers_a_repeat(tmp_path: Path) -> None:
    with running_provider(tmp_path / "payments.db", hang_after_effect_s=300) as hanging:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(
                f"{hanging.url}/refunds", json=REFUND, headers={"Idempotency-Key": "k"}, timeout=0.5
            )
        assert len(hanging.ledger()["refunds"]) == 1
        assert post(hanging, "k", **REFUND).status_code == 200


def test_the_provider_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys\n"
        "from service import running_provider\n"
        "with running_provider(pathlib.Path(sys.argv[1])) as provider:\n"
        "    print(provider.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "payments.db")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(EXAMPLE)},
    )
    with starter:
        assert starter.stdout is not None
        running = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
        starter.wait(10)
        _, alive = psutil.wait_procs([running], timeout=10)
    assert alive == []
