"""The stored values: ids, times, fingerprints, and what kinds of state there are."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from kandev.domain.models import (
    ACTIVE_STATES,
    TERMINAL_STATES,
    HoldReason,
    Message,
    MessageId,
    SessionId,
    SessionState,
    fingerprint,
    new_id,
    new_message_id,
    now,
    seconds_since,
)


def test_sec_2_ids_are_safe_wherever_they_are_put() -> None:
    """Twenty hexadecimal digits, never twice: a path, an address and a container's name can hold them."""
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{20}", one) for one in ids)


def test_ids_of_messages_grow_also_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is larger than the one before, so that a burst of them is appended to its index."""
    first = new_message_id()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    ids = [first, *(new_message_id() for _ in range(1000))]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"[0-9a-f]{20}", one) for one in ids)


def test_times_are_utc_with_milliseconds_and_sort_as_text() -> None:
    """2026-11-29T18:45:11.123Z, so that the order of texts is the order of times."""
    before, stamp, after = datetime.now(UTC) - timedelta(milliseconds=1), now(), datetime.now(UTC)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    assert before <= datetime.fromisoformat(stamp) <= after
    assert stamp <= now()


@pytest.mark.parametrize("ago", [0.0, 29.0, 86_400.0])
def test_seconds_since_reads_a_stored_time(ago: float) -> None:
    """The age of a stamp that was stored `ago` seconds before now."""
    stamp = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    assert ago <= seconds_since(stamp) < ago + 20


def test_a_row_that_was_never_seen_is_infinitely_old() -> None:
    """So no bound on its age can hold."""
    assert seconds_since("") == float("inf")


def test_tok_9_a_fingerprint_tells_tokens_apart_and_holds_none_of_them() -> None:
    """Eight digits of a hash, the same for the same token; nothing for no token."""
    token = "b8ed66c1-5d4e-457e-9670-d12177e1fbb6"
    shown = fingerprint(token)
    assert re.fullmatch(r"[0-9a-f]{8}", shown)
    assert shown == fingerprint(token) != fingerprint(token + "7")
    assert shown not in token
    assert fingerprint("") == ""


def test_a_session_is_new_or_active_or_ended() -> None:
    """The specification's two sets, and CREATED; no state is in two of them."""
    assert sorted(ACTIVE_STATES) == ["RUNNING", "STARTING", "WAITING_FOR_INPUT"]
    assert sorted(TERMINAL_STATES) == ["CANCELLED", "COMPLETED", "FAILED"]
    assert set(SessionState) - ACTIVE_STATES - TERMINAL_STATES == {SessionState.CREATED}


def test_an_open_queue_has_the_empty_reason() -> None:
    """So that `held` is true exactly where somebody has to do something."""
    assert [reason for reason in HoldReason if not reason] == [HoldReason.OPEN]


def test_values_cannot_be_changed() -> None:
    """A change is a new value; whoever holds the old one still has what he read."""
    message = Message(
        id=MessageId("m"),
        session_id=SessionId("s"),
        author_type="user",
        type="message",
        content="hello",
        created_at=now(),
        updated_at=now(),
    )
    with pytest.raises(AttributeError):
        message.content = "bye"  # type: ignore[misc]  # what the test is about
