"""The replicas that a router may use, and its streams to them.

Owns who is a member, and the streams of former members until what they run has ended. What they
are for is the business of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from chairlift.cluster.protocol import Controls
from chairlift.router.failover import Fate
from chairlift.router.placement import ReplicaView
from chairlift.router.replica_stream import ReplicaStream

__all__ = ["Members"]


class Members:
    """One router's; belongs to its event loop.

    Attributes:
        streams: replica id → stream, of the present members.
        retiring: streams of former members that still have something open.
    """

    def __init__(self, connect: Callable[[str, str], ReplicaStream]) -> None:
        """``connect``: replica id and endpoint → a new stream."""
        self.streams: dict[str, ReplicaStream] = {}
        self.retiring: set[ReplicaStream] = set()
        self._connect = connect
        self._recent: dict[str, tuple[tuple[object, ...], ReplicaView]] = {}
        self._controls: Controls | None = None

    def __iter__(self) -> Iterator[ReplicaStream]:
        """All streams, also those that retire."""
        return iter([*self.streams.values(), *self.retiring])

    def update(self, endpoints: Mapping[str, str], *, join: bool) -> None:
        """Replica id → endpoint, of all members; others finish what they run and are left.

        Without ``join``, nobody becomes a member who is none.
        """
        for replica_id, stream in list(self.streams.items()):
            if endpoints.get(replica_id) != stream.endpoint:
                self._retire(self.streams.pop(replica_id))
        for replica_id, endpoint in endpoints.items():
            if join and replica_id not in self.streams:
                stream = self.streams[replica_id] = self._connect(replica_id, endpoint)
                if self._controls is not None:
                    stream.outgoing.tell(self._controls)

    def tell(self, controls: Controls) -> None:
        """Tell every replica of these newest Controls, and each one that joins or comes back."""
        self._controls = controls
        for stream in self:
            stream.outgoing.tell(controls)

    def views(self) -> list[ReplicaView]:
        """What is known of each member now."""
        return [stream.view() for stream in self.streams.values()]

    def recent(self, now: float, stale_after_s: float) -> list[ReplicaView]:
        """The same for placement, to which a report is fresh or stale, whatever its age.

        A view is made anew only where something has changed, for there may be many.
        """
        before, self._recent = self._recent, {}
        for replica_id, stream in self.streams.items():
            dispatch = stream.dispatch
            fresh = dispatch.load is not None and now - dispatch.load_at <= stale_after_s
            controls = stream.outgoing.controls
            state = dispatch, dispatch.news, fresh, stream.ready, stream.info, controls
            known = before.get(replica_id)
            if known is None or known[0] != state:
                known = state, stream.view()
            self._recent[replica_id] = known
        return [view for _, view in self._recent.values()]

    def fate(self, replica_id: str) -> Fate:
        """What became of a replica; one that is no member any more is dead."""
        stream = self.streams.get(replica_id)
        if stream is None:
            return Fate.DEAD
        if stream.ready:
            return Fate.BACK
        return Fate.DEAD if stream.failed_attempts else Fate.UNKNOWN

    async def close(self) -> None:
        """End all streams; what they run is lost."""
        streams = list(self)
        self.streams.clear()
        await asyncio.gather(*(stream.close() for stream in streams))

    def _retire(self, stream: ReplicaStream) -> None:
        self.retiring.add(stream)
        stream.task.add_done_callback(lambda _: self.retiring.discard(stream))
        stream.retire()
