"""The hub: numbers, cursors, who gets what, and what happens to those who cannot keep up."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kandev.domain.constants import FRAME_BYTES
from kandev.domain.models import Event, Message, MessageId, SessionId
from kandev.errors import NotFound, Unavailable
from kandev.gateway import hub as hub_module
from kandev.gateway.hub import Hub, Since
from kandev.gateway.outbox import FRAME_TARGET_BYTES, OUTBOX_MESSAGES, TRY_AGAIN_LATER, Outbox
from kandev.gateway.ring import Ring


def event(action: str = "session.message.delta", session_id: str = "s1", task_id: str = "t1", **payload: Any) -> Event:
    return Event(action=action, session_id=session_id, task_id=task_id, payload=payload)


def snapshot(session_id: str) -> Mapping[str, Any]:
    return {"session": {"id": session_id}, "messages": []}


def since(seq: int, boot_id: str = "b1") -> Since:
    return Since(boot_id=boot_id, seq=seq)


async def taken(outbox: Outbox) -> list[dict[str, Any]]:
    """All that waits in an outbox; it is closed for it."""
    outbox.close(1000)
    found: list[dict[str, Any]] = []
    while frame := await outbox.take():
        found += [json.loads(line) for line in frame.split(b"\n")]
    return found


async def seqs(outbox: Outbox) -> list[int]:
    return [message["payload"]["seq"] for message in await taken(outbox)]


def answer(raw: msgspec.Raw) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(bytes(raw))
    return decoded


async def test_each_session_counts_its_own_events() -> None:
    """Numbers begin at 1 and have no gaps, whatever other sessions do."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.publish([event(), event(session_id="s2"), event()])
    hub.publish([event(session_id="s2"), event()])
    assert await seqs(outbox) == [1, 2, 3]
    assert (hub.seq("s1"), hub.seq("s2"), hub.seq("s3"), hub.published) == (3, 2, 0, 5)


async def test_the_event_s_own_ids_and_number_win_over_those_in_its_payload() -> None:
    """A payload that has a `seq` of its own cannot break a client's cursor."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.publish([event(seq=99, session_id_of_agent="x")])
    (message,) = await taken(outbox)
    assert message["payload"] == {"seq": 1, "session_id": "s1", "task_id": "t1", "session_id_of_agent": "x"}


async def test_an_event_without_a_session_has_no_number() -> None:
    """Events about a task alone are not counted."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe_board(outbox, None)
    hub.publish([event("task.created", session_id="")])
    (message,) = await taken(outbox)
    assert "seq" not in message["payload"]


@given(st.lists(st.sampled_from(["publish", "lose", "other"]), max_size=60))
async def test_a_client_that_comes_back_with_its_cursor_sees_every_event_once(steps: list[str]) -> None:
    """Through any number of lost connections, answer and stream together are all events, in order."""
    hub, outbox, seen = Hub("b1"), Outbox(), []
    hub.subscribe(outbox, "s1", since(0), snapshot)
    for step in [*steps, "lose"]:
        if step == "publish":
            hub.publish([event()])
        elif step == "other":
            hub.publish([event(session_id="s2")])
        else:
            seen += await seqs(outbox)
            hub.drop(outbox)
            hub.publish([event()])  # while nobody listens
            outbox = Outbox()
            missed = answer(hub.subscribe(outbox, "s1", since(seen[-1] if seen else 0), snapshot))
            seen += [message["payload"]["seq"] for message in missed["events"]]
            assert missed["seq"] == seen[-1]
    assert seen == list(range(1, hub.seq("s1") + 1))


@pytest.mark.parametrize("cursor", [None, since(1, "b0"), since(9), since(-1), since(1)])
async def test_ui_5_a_cursor_that_cannot_be_served_gives_a_gap_and_a_snapshot(cursor: Since | None) -> None:
    """No cursor, another boot, a number of the future, nonsense, or older than the buffer: all the same answer."""
    hub, outbox = Hub("b1", ring_events=2), Outbox()
    hub.publish([event()] * 5)
    assert answer(hub.subscribe(outbox, "s1", cursor, snapshot)) == {
        "boot_id": "b1",
        "seq": 5,
        "gap": True,
        "session": {"id": "s1"},
        "messages": [],
    }


@pytest.mark.parametrize(("seq", "missed"), [(3, [4, 5]), (4, [5]), (5, [])])
async def test_a_cursor_within_the_buffer_is_served_from_it(seq: int, missed: list[int]) -> None:
    """The oldest event kept is enough for the cursor just before it."""
    hub, outbox = Hub("b1", ring_events=2), Outbox()
    hub.publish([event()] * 5)
    got = answer(hub.subscribe(outbox, "s1", since(seq), snapshot))
    assert (got["gap"], [message["payload"]["seq"] for message in got["events"]]) == (False, missed)


async def test_a_snapshot_that_fails_subscribes_to_nothing() -> None:
    """An unknown session raises, and its name gets no events."""
    hub, outbox = Hub("b1"), Outbox()

    def refuse(_: str) -> Mapping[str, Any]:
        raise NotFound("There is no such session.")

    with pytest.raises(NotFound):
        hub.subscribe(outbox, "s1", None, refuse)
    hub.publish([event()])
    assert await taken(outbox) == []


async def test_a_board_gets_states_and_no_stream() -> None:
    """Subscribed to all tasks: task and state events of every task, no messages."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe_board(outbox, None)
    hub.publish(
        [event(), event("session.state_changed"), event("task.created", "", "t2"), event("session.plan_changed")]
    )
    assert [message["action"] for message in await taken(outbox)] == ["session.state_changed", "task.created"]


async def test_a_board_of_one_task_gets_that_task_only() -> None:
    """Subscribed to one task: nothing of another."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe_board(outbox, "t2")
    hub.publish([event("task.updated", "", "t1"), event("task.updated", "", "t2")])
    assert [message["payload"]["task_id"] for message in await taken(outbox)] == ["t2"]


async def test_several_subscriptions_of_one_socket_give_each_event_once() -> None:
    """Session, task and all tasks on one socket: still exactly the events with a larger number, once each."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe_board(outbox, None)
    hub.subscribe_board(outbox, "t1")
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.publish([event("session.state_changed"), event()])
    assert await seqs(outbox) == [1, 2]


async def test_unsubscribing_ends_one_subscription_and_dropping_ends_all() -> None:
    """What is left goes on; a second time is no error."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.subscribe(outbox, "s2", None, snapshot)
    hub.subscribe_board(outbox, None)
    hub.unsubscribe(outbox, "s1")
    hub.unsubscribe(outbox, "s1")
    hub.unsubscribe_board(outbox, None)
    hub.publish([event(), event("task.updated", ""), event(session_id="s2")])
    hub.drop(outbox)
    hub.drop(outbox)
    hub.publish([event(session_id="s2")])
    assert [message["payload"]["session_id"] for message in await taken(outbox)] == ["s2"]


async def test_numbers_go_on_when_buffers_are_dropped_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All buffers together are bounded: the longest unused goes first, and its session only loses its past."""
    monkeypatch.setattr(hub_module, "RINGS_TOTAL_BYTES", 10_000)
    hub, outbox = Hub("b1"), Outbox()
    hub.publish([event(session_id="old")])
    hub.publish([event(session_id="new", text="x" * 1_000)] * 20)
    assert answer(hub.subscribe(outbox, "old", since(0), snapshot))["gap"] is True
    assert answer(hub.subscribe(outbox, "old", since(1), snapshot))["gap"] is False
    hub.publish([event(session_id="old")])
    assert await seqs(outbox) == [2]


async def test_a_buffer_that_nobody_needs_is_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle session's buffer goes, one with a subscriber stays."""
    monkeypatch.setattr(hub_module, "RING_IDLE_S", 0.0)
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "watched", since(0), snapshot)
    hub.publish([event(session_id="idle"), event(session_id="watched")])
    monkeypatch.setattr(hub_module, "SWEEP_S", -1.0)
    hub.publish([event(session_id="another")])
    assert answer(hub.subscribe(Outbox(), "idle", since(0), snapshot))["gap"] is True
    assert answer(hub.subscribe(Outbox(), "watched", since(0), snapshot))["gap"] is False


def test_a_ring_is_bounded_in_bytes() -> None:
    """It keeps the newest that fit, and reports by how much it grew."""
    ring = Ring(100, 10)
    assert [ring.append(b"xxxx") for _ in range(3)] == [4, 4, 0]
    assert (ring.size, ring.last(2), ring.last(3)) == (8, [b"xxxx", b"xxxx"], None)
    assert (ring.append(b"y" * 11), ring.last(1), ring.last(0)) == (-8, None, [])


async def test_an_event_too_large_for_a_frame_is_announced_without_its_content() -> None:
    """The client learns that there is something to fetch, and its cursor goes on."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "s1", None, snapshot)
    text = "x" * FRAME_BYTES
    message = Message(
        id=MessageId("m2"), session_id=SessionId("s1"), author_type="agent", type="message", content=text,
        created_at="", updated_at="",
    )  # fmt: skip
    hub.publish([event(message_id="m1", text=text), event("session.message.updated", message=message)])
    stubs = [sent["payload"] for sent in await taken(outbox)]
    assert [(stub["message_id"], stub["seq"], stub["too_large"]) for stub in stubs] == [
        ("m1", 1, True),
        ("m2", 2, True),
    ]
    assert all(stub["bytes"] > FRAME_BYTES and stub["session_id"] == "s1" for stub in stubs)


async def test_a_snapshot_too_large_for_a_frame_loses_its_oldest_messages() -> None:
    """The newest messages are there, and the answer says that some are not."""
    messages = [{"seq": number, "content": "x" * (FRAME_BYTES // 10)} for number in range(20)]
    raw = Hub("b1").subscribe(Outbox(), "s1", None, lambda _: {"messages": messages})
    got = answer(raw)
    assert len(bytes(raw)) < FRAME_BYTES
    assert got["messages_left_out"] is True
    assert got["messages"][-1]["seq"] == 19


async def test_half_a_surrogate_pair_in_an_event_is_sent_escaped() -> None:
    """Text that UTF-8 cannot carry neither stops the publisher nor gets lost."""
    hub, outbox = Hub("b1"), Outbox()
    hub.subscribe(outbox, "s1", None, snapshot)
    hub.publish([event(text="a\ud800b", raw=msgspec.Raw(b'{"x":1}'))])
    (message,) = await taken(outbox)
    assert (message["payload"]["text"], message["payload"]["raw"]) == ("a\ud800b", {"x": 1})


async def test_a_watcher_is_told_and_cannot_break_the_publisher() -> None:
    """The one that fails is logged; the next one and the subscribers get the event."""
    hub, outbox, told = Hub("b1"), Outbox(), []
    hub.subscribe(outbox, "s1", None, snapshot)

    def fail(_: Event) -> None:
        raise ZeroDivisionError

    hub.watch("session.turn.started", fail)
    hub.watch("session.turn.started", lambda seen: told.append(seen.action))
    hub.publish([event("session.turn.started"), event("session.turn.completed")])
    assert told == ["session.turn.started"]
    assert await seqs(outbox) == [1, 2]


async def test_what_waits_goes_out_as_one_frame_and_large_amounts_as_several() -> None:
    """Lines of one frame, bounded; a message larger than the bound has a frame of its own."""
    outbox = Outbox()
    for text in (b"a", b"b", b"c"):
        outbox.push(text)
    assert await outbox.take() == b"a\nb\nc"
    half, large = b"h" * (FRAME_TARGET_BYTES // 2), b"l" * (FRAME_TARGET_BYTES + 1)
    for text in (half, half, large, b"a"):
        outbox.push(text)
    outbox.close(1000)
    assert [await outbox.take() for _ in range(4)] == [half + b"\n" + half, large, b"a", b""]


@pytest.mark.parametrize("outbox", [Outbox(max_messages=3), Outbox(max_bytes=2)], ids=["messages", "bytes"])
async def test_a_subscriber_that_cannot_keep_up_is_closed_with_1013(outbox: Outbox) -> None:
    """Beyond its bounds it loses what waits, and whatever comes later costs nothing."""
    for _ in range(4):
        outbox.push(b"x")
    assert outbox.closed_with == TRY_AGAIN_LATER
    outbox.push(b"later")
    assert await outbox.take() == b""


async def test_one_message_is_taken_whatever_its_size() -> None:
    """An answer larger than the bound is not an overflow."""
    outbox = Outbox(max_bytes=2)
    outbox.push(b"xxxx")
    assert (outbox.closed_with, await outbox.take()) == (None, b"xxxx")


async def test_a_listener_hears_from_the_moment_it_was_made() -> None:
    """Events published before it is first read are not lost; after it was left, nothing more is kept."""
    hub = Hub("b1")
    hub.publish([event(text="before")])
    async with hub.listen("s1") as events:
        hub.publish([event(text="one\u2028"), event(text="two")])
        assert (await anext(events))["payload"]["text"] == "one\u2028"
        hub.publish([event(text="three")])
        assert [(await anext(events))["payload"]["text"] for _ in range(2)] == ["two", "three"]
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_listener_that_fell_behind_is_told_that_it_lost_events() -> None:
    """Lost events are an error, never a silent gap."""
    hub = Hub("b1")
    async with hub.listen("s1") as events:
        hub.publish([event()] * (OUTBOX_MESSAGES + 1))
        with pytest.raises(Unavailable) as lost:
            await anext(events)
    assert lost.value.reason == "too_slow"
