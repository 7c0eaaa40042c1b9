"""Which replicas a router has streams to."""

import asyncio
from collections.abc import Mapping

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.membership import Member, Membership, kind_of


def test_members_are_those_of_the_routers_own_kind() -> None:
    old = ServiceConfig.model_validate({"model": {"path": "old.gguf"}})
    new = ServiceConfig.model_validate({"model": {"path": "new.gguf"}})
    in_two = ServiceConfig.model_validate(
        {"model": {"path": "old.gguf"}, "workers": {"tensor_parallel": 2}}
    )
    larger = ServiceConfig.model_validate(
        {"model": {"path": "old.gguf"}, "engine": {"token_budget": 1024}}
    )
    heard: list[Mapping[str, str]] = []

    async def main() -> None:
        membership = Membership()
        membership.publish({"a": Member("a:1", kind_of(old)), "b": Member("b:1", kind_of(new))})
        assert membership.members == {}
        membership.listen(kind_of(larger), heard.append)
        membership.publish({"c": Member("c:1", kind_of(in_two)), "d": Member("d:1", kind_of(old))})
        await asyncio.sleep(0)
        assert membership.members == {"d": "d:1"}

    asyncio.run(main())
    assert heard == [{"a": "a:1"}, {"d": "d:1"}]
