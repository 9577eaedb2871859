"""Replaying histories: sound ones break nothing, and each break is named by its statement."""

from __future__ import annotations

import asyncio

import pytest

from aaa.check import CHECKERS, Terms, check_run
from unit.check_breaks import BREAKS, Break, policies
from unit.check_histories import SCENARIOS, Made, make_all

#: What this machine cannot see in a log is not in the table; what can be seen is.
EXPECTED = {
    *("readable", "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L11", "L12", "L13", "L14"),
    *("G2", "G3", "G4", "G5", "G6", "G7", "G9", "G13", "G15", "G16", "G18", "G19", "G20", "G21"),
    *("G22", "G24"),
}


@pytest.fixture(scope="module")
def histories() -> dict[str, Made]:
    return asyncio.run(make_all())


def found(made: Made) -> set[str]:
    return {each.statement for each in check_run(made.events, made.info, terms=made.terms)}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_history_of_the_engine_breaks_nothing(scenario: str, histories: dict[str, Made]) -> None:
    made = histories[scenario]
    assert made.events
    assert check_run(made.events, made.info, terms=made.terms) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_prefix_of_a_sound_history_is_sound_but_for_its_index(
    scenario: str, histories: dict[str, Made]
) -> None:
    made = histories[scenario]
    for length in range(len(made.events) + 1):
        broken = check_run(made.events[:length], terms=made.terms)
        # A decision and its causes are one append: these may be cut in their middle here.
        assert {each.statement for each in broken} <= {"L7", "L13", "G19", "G21"}, broken
        assert length != len(made.events) or not broken


@pytest.mark.parametrize(
    "broken", BREAKS, ids=lambda each: f"{each.statement}-{each.scenario}-{each.how}"
)
def test_a_broken_history_is_found_by_the_checker_of_the_statement_that_it_breaks(
    broken: Break, histories: dict[str, Made]
) -> None:
    made = broken.change(histories[broken.scenario])
    assert broken.statement in found(made)


@pytest.mark.parametrize("statement", sorted(EXPECTED))
def test_each_checkable_statement_has_a_checker_and_a_history_that_breaks_it(
    statement: str,
) -> None:
    assert statement in CHECKERS
    assert any(broken.statement == statement for broken in BREAKS)


def test_nothing_is_checked_that_is_not_in_the_table() -> None:
    assert set(CHECKERS) == EXPECTED


def test_without_the_terms_behind_a_policy_hash_nothing_is_guessed(
    histories: dict[str, Made],
) -> None:
    made = histories["takeover"]
    (policy,) = made.terms
    assert check_run(made.events, made.info) == []
    once = {policy: Terms(delivery="at_most_once")}
    assert "G4" in {each.statement for each in check_run(made.events, made.info, terms=once)}


def test_a_call_that_began_with_a_record_keeps_it_where_a_later_policy_wants_none(
    histories: dict[str, Made],
) -> None:
    """Sound: it goes on as it began (G18, G22). Broken: it began without a guard, and has one."""
    later = policies(Terms(), Terms(enabled=False))(histories["takeover"])
    assert found(later) == set()
    first = policies(Terms(enabled=False), Terms())(histories["takeover"])
    assert found(first) == {"G18"}


def test_a_violation_names_statement_run_and_seq_in_one_sentence(
    histories: dict[str, Made],
) -> None:
    made = histories["one_call"]
    (violation,) = check_run([*made.events[:4], *made.events[5:]], None)[:1]
    assert str(violation) == "L3 run-1#6: seq 5 was to be here, not 6"


def test_an_empty_history_and_one_of_rubbish_are_judged_without_raising(
    histories: dict[str, Made],
) -> None:
    assert check_run([]) == []
    for made in histories.values():
        for at in range(len(made.events)):
            check_run(list(reversed(made.events))[at:], made.info, terms=made.terms)
