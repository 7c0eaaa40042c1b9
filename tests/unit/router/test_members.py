"""What is known of members is put together again only when something has changed."""

from types import SimpleNamespace

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.wire_frame import frame_to_wire
from chairlift.router.dispatch import Dispatch
from chairlift.router.members import Members
from chairlift.router.placement import ReplicaView

STALE_S = 1.0


class FakeStream:
    """As much of a stream as views are made of."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dispatch = Dispatch(lambda: self.now)
        self.outgoing = SimpleNamespace(controls=None)
        self.endpoint, self.ready, self.info = "", True, None

    def view(self) -> ReplicaView:
        age_s = None if self.dispatch.load is None else self.now - self.dispatch.load_at
        return ReplicaView("one", self.ready, load=self.dispatch.load, load_age_s=age_s)


def test_a_view_stays_until_there_are_news_or_its_report_is_stale():
    stream = FakeStream()
    members = Members(lambda *_: stream)  # type: ignore[arg-type,return-value]
    members.update({"one": ""}, join=True)
    [before] = members.recent(0.0, STALE_S)
    assert members.recent(0.1, STALE_S)[0] is before
    stream.dispatch.receive(pb.FromWorker(frame=frame_to_wire([], LoadReport(running=2, stamp=1))))
    [loaded] = members.recent(0.2, STALE_S)
    assert loaded.load.running == 2
    assert members.recent(0.9, STALE_S)[0] is loaded
    stream.now = 1.1
    [stale] = members.recent(1.1, STALE_S)
    assert not stale.is_fresh(STALE_S)
    stream.ready = False
    assert not members.recent(1.2, STALE_S)[0].ready
    members.streams.clear()
    assert members.recent(1.3, STALE_S) == []
