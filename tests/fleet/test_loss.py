"""Whose streams broke when a member died: by the router's word where it names members, else by the member's count."""

import asyncio
from collections.abc import Sequence

from moebox.core.endpoint import endpoint_from_url
from moebox_fleet.commands import member_loss_lines
from moebox_fleet.file import RouterKind, RouterSettings
from moebox_fleet.loss import FollowedStream, judge_loss, run_streams, streams_in_flight
from moebox_fleet.up import FleetRecord, MemberRecord


def fleet(kind: RouterKind) -> FleetRecord:
    members = tuple(
        MemberRecord(name=name, base_url="http://127.0.0.1:9/v1", engine="vllm", context=4096) for name in ("a", "b")
    )
    return FleetRecord(
        name="pair",
        file="fleet.toml",
        model="m",
        router=RouterSettings(kind=kind),
        instance="router",
        base_url="http://127.0.0.1:9/v1",
        members=members,
        started=0.0,
    )


def streams(*served: str) -> tuple[FollowedStream, ...]:
    """One stream a letter: in capitals it broke."""
    return tuple(
        FollowedStream(
            name=f"s{number}", member=name.lower().strip("-"), finished=name.islower(), over=True, error="broke"
        )
        for number, name in enumerate(served)
    )


def lines(kind: RouterKind, inside: int | None, seen: Sequence[FollowedStream]) -> str:
    return "\n".join(member_loss_lines(judge_loss(fleet(kind), "a", inside, seen, served_after_s=0.1)))


def test_behind_a_slow_router_a_members_streams_are_those_the_router_says_it_serves() -> None:
    """LiteLLM: the member had computed everything and held nothing by its own count, and three streams broke."""
    text = lines("litellm", 3, streams("A", "A", "b", "A"))

    assert text.startswith("a killed with 3 streams behind litellm: 1 of 4 streams finished, 3 lost")
    assert "than the member held" not in text


def test_a_stream_of_another_member_that_broke_is_named() -> None:
    text = lines("litellm", 2, streams("A", "B", "a", "-"))

    assert "lost: s0\n" in text
    assert "lost: s1, which the member did not serve" in text
    assert "lost: s3, which the member did not serve" in text  # it had not begun
    assert "more streams broke behind litellm than the member held" in text


def test_where_the_router_names_none_the_members_count_decides() -> None:
    assert "than the member held" not in lines("sglang-router", 2, streams("A", "A", "b"))
    assert "more streams broke behind sglang-router" in lines("sglang-router", 1, streams("A", "A", "b"))
    assert lines("sglang-router", None, streams("A", "b")).startswith("a killed behind sglang-router: 1 of 2")


def test_streams_in_flight_are_counted_by_the_member_that_serves_them() -> None:
    seen = [
        FollowedStream(name="1", member="a"),
        FollowedStream(name="2", member="a", over=True),
        FollowedStream(name="3", member="b"),
    ]

    assert streams_in_flight(fleet("litellm"), [*seen, FollowedStream(name="4")]) == {"a": 1, "b": 1}


def test_the_member_is_read_from_the_reply() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Member: b\r\nConnection: close\r\n\r\n"
        writer.write(head + b"data: {}\n\ndata: [DONE]\n\n")
        await writer.drain()
        writer.close()

    async def both() -> list[FollowedStream]:
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            endpoint = endpoint_from_url(f"127.0.0.1:{port}", "m")
            wanted = {"streams": 2, "tokens": 4, "deadline_s": 60, "member_header": "x-member"}
            return await asyncio.to_thread(run_streams, endpoint, **wanted)

    seen = asyncio.run(both())
    assert [stream.member for stream in seen] == ["b", "b"]
    assert not any(stream.is_lost for stream in seen)
