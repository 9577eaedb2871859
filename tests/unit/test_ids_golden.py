"""Ids and encodings never change: docs/encoding.md, held to vectors that were made once (L4)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaa import ids
from aaa.events import run_requested

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "ids.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("vector", VECTORS["canonical"], ids=lambda vector: vector["hex"][:24])
def test_data_has_one_encoding_and_reading_it_back_keeps_it(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    assert ids.canonical(vector["data"]) == raw
    assert ids.canonical(ids.decode(raw)) == raw
    backwards = dict(reversed(list(vector["data"].items())))
    assert ids.canonical(backwards) == raw


def test_ids_are_those_of_the_vectors() -> None:
    for vector in VECTORS["derived"]:
        raw = bytes.fromhex(vector["hex"])
        assert ids.derive(vector["parent"], vector["type"], raw) == vector["id"]
    for vector in VECTORS["digests"]:
        assert ids.digest_of(bytes.fromhex(vector["hex"])) == vector["digest"]
    for vector in VECTORS["fixed"]:
        request = vector["request"]
        assert ids.result_id(request) == vector["result"]
        attempts = [ids.attempt_id(request, number) for number in (1, 2, 10)]
        assert attempts == vector["attempts"]


def test_partitions_are_those_of_the_vectors() -> None:
    for vector in VECTORS["partitions"]:
        of = {str(n): ids.partition_of(vector["run_id"], n) for n in (1, 8, 64, 4096)}
        assert of == vector["of"]


def test_every_vector_has_an_id_of_its_own() -> None:
    derived = [vector["id"] for vector in VECTORS["derived"]]
    assert len(set(derived)) == len(derived)
    # The parts are length-prefixed: what moves from one to the next is another event.
    assert ids.derive("ab", "c", b"{}") != ids.derive("a", "bc", b"{}")


@pytest.mark.parametrize(
    "data",
    [
        {"x": math.nan},
        {"x": math.inf},
        {"x": 2**64},
        {"x": -(2**63) - 1},
        {"x": "\ud800"},
        {"\udfff": 1},
        {1: "x"},
        {None: "x"},
        {"x": {1, 2}},
        {"x": b"bytes"},
        {"x": object()},
    ],
    ids=lambda data: type(next(iter(data.values()))).__name__,
)
def test_what_has_no_canonical_form_is_refused(data: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match="not canonical JSON"):
        ids.canonical(data)


def test_another_process_with_another_hash_seed_makes_the_same_ids() -> None:
    program = (
        "import json, sys; from aaa.events import run_requested;"
        "print(run_requested('run-1', json.loads(sys.argv[1])).id)"
    )
    data = {"b": [1, 2.5], "a": {"ü": None, "z": True}}
    expected = run_requested("run-1", data).id
    for seed in ("0", "4242"):
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        answer = subprocess.run(
            [sys.executable, "-c", program, json.dumps(data)],
            env=env,
            capture_output=True,
            check=True,
            timeout=30,
        )
        assert answer.stdout.decode().strip() == expected


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=12,
)


@pytest.mark.guarantee("L4")
@given(_JSON)
def test_the_fast_encoder_writes_the_bytes_that_are_written_down(data: Any) -> None:
    written_down = json.dumps(
        data, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    assert ids.canonical(data) == written_down.encode()
