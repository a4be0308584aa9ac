"""The resend buffer: whatever is sent, lost and made durable, what is left are the right records in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.client.buffer import BATCH, Buffer, size_of
from headgate.core.frames import Message

LIMIT = 1000
records = st.lists(st.integers(0, 400), max_size=60)


def message(id: int, size: int = 0) -> Message:
    return Message(id, None, b"k" * (size % 7), b"x" * size)


def filled(sizes: list[int], limit_bytes: int = LIMIT) -> Buffer:
    buffer = Buffer()
    for id, size in enumerate(sizes):
        record = message(id, size)
        buffer.add(record, size_of(record), limit_bytes)
    return buffer


def held(buffer: Buffer) -> list[int]:
    return [record.id for batch in (*buffer.sent, *buffer.waiting) for record in batch.messages]


def test_a_batch_is_full_with_its_last_record() -> None:
    buffer = Buffer()
    full = [buffer.add(message(id), 0, LIMIT) for id in range(2 * BATCH + 1)]
    assert [id for id, is_full in enumerate(full) if is_full] == [BATCH - 1, 2 * BATCH - 1]
    assert [len(batch.messages) for batch in buffer.waiting] == [BATCH, BATCH, 1]


def test_a_batch_is_full_when_the_next_record_does_not_fit() -> None:
    buffer = Buffer()
    assert [buffer.add(message(id), 400, LIMIT) for id in range(5)] == [False, False, True, False, True]
    assert [len(batch.messages) for batch in buffer.waiting] == [2, 2, 1]


def test_a_record_that_is_larger_than_the_limit_goes_alone() -> None:
    buffer = filled([0, 2000, 0])
    assert [[record.id for record in buffer.take(10, LIMIT)] for _ in range(3)] == [[0], [1], [2]]


@given(records, st.lists(st.tuples(st.integers(1, 5), st.integers(50, LIMIT))))
def test_what_is_taken_keeps_to_both_limits_and_to_the_order(sizes: list[int], takes: list[tuple[int, int]]) -> None:
    buffer = filled(sizes)
    taken: list[int] = []
    for count, limit_bytes in takes:
        if not buffer.waiting:
            break
        batch = buffer.take(count, limit_bytes)
        assert 1 <= len(batch) <= count
        assert len(batch) == 1 or sum(map(size_of, batch)) <= limit_bytes
        taken += [record.id for record in batch]
    assert taken == list(range(len(taken)))
    assert held(buffer) == list(range(len(sizes)))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 400)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("trim"), st.integers(0, 60)),
        st.tuples(st.just("rewind"), st.just(0)),
    ),
    max_size=80,
)


@given(steps)
def test_nothing_is_lost_repeated_or_out_of_order_whatever_happens(steps: list[tuple[str, int]]) -> None:
    """Beside a list of ids that wait and one of ids that were sent."""
    buffer = Buffer()
    waiting: list[int] = []
    sent: list[int] = []
    next_id = 0
    for kind, number in steps:
        match kind:
            case "add":
                record = message(next_id, number)
                buffer.add(record, size_of(record), LIMIT)
                waiting.append(next_id)
                next_id += 1
            case "take" if waiting:
                ids = [record.id for record in buffer.take(number, LIMIT)]
                assert ids == waiting[: len(ids)]
                sent, waiting = sent + ids, waiting[len(ids) :]
            case "trim":
                before = len(sent) + len(waiting)
                sent = [id for id in sent if id > number]
                waiting = [id for id in waiting if id > number]
                assert buffer.trim(number) == before - len(sent) - len(waiting)
            case "rewind":
                buffer.rewind()
                sent, waiting = [], sent + waiting
        assert held(buffer) == sent + waiting
        assert buffer.records == len(sent) + len(waiting)
        assert buffer.first_id == next(iter(sent + waiting), None)
        assert bool(buffer.waiting) == bool(waiting)
        for batch in (*buffer.sent, *buffer.waiting):
            assert batch.size_bytes == sum(map(size_of, batch.messages))


def test_nothing_is_durable_at_nothing_yet() -> None:
    buffer = filled([1, 1])
    assert buffer.trim(None) == 0
    assert held(buffer) == [0, 1]
