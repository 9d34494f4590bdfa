"""The hot path records the same as the recorder alone."""

import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from moebox.bench.generator.hot_path import HotPath
from moebox.bench.generator.recorder import ReplyRecorder
from tests.bench.server import HEAD, chunk, event

FIRST = chunk(event({"content": " a"}))
TEXTS = st.one_of(
    st.sampled_from([b" word", b"", b'"', b'","x":"', b"a\nb", b"\xff", b"\xe4\xbd", b"\0", b'a\0"', b'\\"', b"\\n"]),
    st.text(min_size=1, max_size=12).map(
        lambda text: text.replace('"', "'").replace("\\", "/").encode("utf-8", "ignore")
    ),
    st.binary(max_size=12),
)


def make_hot_path() -> HotPath:
    """Return a hot path with places for 1,024 descriptors."""
    hot = HotPath(late_ns=1e9)
    hot.streams += [None] * 1024
    hot.read_at += [0] * 1024
    return hot


def start_stream() -> ReplyRecorder:
    """Return a recorder in the middle of a stream."""
    recorder = ReplyRecorder()
    recorder.record_segment(HEAD + FIRST, 1)
    return recorder


def recorded_values(recorder: ReplyRecorder) -> tuple[object, ...]:
    recorder.catch_up()
    return len(recorder.times), list(recorder.sizes), list(recorder.kinds), recorder.error


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_a_batch_of_streams_is_recorded_as_each_would_be_alone(replies: list[list[bytes]], capitals: bool) -> None:
    """This holds for any bytes between the quotes, and for chunk sizes in small and capital letters."""
    hot = make_hot_path()
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in replies]
        for pair in pairs:
            for each in pair:
                stack.enter_context(each)
            pair[0].setblocking(False)
        ours, alone = [start_stream() for _ in replies], [start_stream() for _ in replies]
        for (mine, _), recorder in zip(pairs, ours, strict=True):
            hot.add_stream(mine.fileno(), mine, recorder)
        for step in range(max(map(len, replies))):
            ready = []
            for (mine, theirs), texts, reference in zip(pairs, replies, alone, strict=True):
                if step < len(texts):
                    data = FIRST.replace(b" a", texts[step], 1)
                    size, _, rest = data.partition(b"\r\n")
                    length = int(size, 16) + len(texts[step]) - 2
                    data = (b"%X" if capitals else b"%x") % length + b"\r\n" + rest
                    theirs.send(data)
                    reference.record_segment(data, 1)
                    ready.append((mine.fileno(), 1))
            hot.read_ready(ready, 1)
            by_fd = {mine.fileno(): recorder for (mine, _), recorder in zip(pairs, ours, strict=True)}
            for fd, _, data, _ in hot.unusual:
                if data is not None:
                    hot.streams[fd] = None
                    by_fd[fd].record_segment(data, 1)
                else:
                    by_fd[fd].record_segment(next(mine for mine, _ in pairs if mine.fileno() == fd).recv(9999), 1)
        assert [recorded_values(recorder) for recorder in ours] == [recorded_values(recorder) for recorder in alone]


def test_any_language_is_hot() -> None:
    """Events with text beyond ASCII are read on the hot path too."""
    hot, recorder = make_hot_path(), start_stream()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        hot.add_stream(mine.fileno(), mine, recorder)
        theirs.send(chunk(event({"content": "?"}).replace(b"?", "你".encode())))
        hot.read_ready([(mine.fileno(), 1)], 1)

    assert hot.unusual == []
    assert len(recorder.times) == 2
