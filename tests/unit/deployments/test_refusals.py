"""Who has no business here gets nothing, and neither they nor the served leave words in logs."""

import asyncio
import logging

import aiohttp
import pytest

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.keys import KeyTerms, hash_key
from chairlift.cluster.tenants import Tenant, Tenants
from support.chain import Chain, running_chain
from support.traces import MemoryTracer

MARKER = "xyzzy-plugh"
ACME, ZENO = Tenant("acme"), Tenant("zeno")
KEYS = {hash_key("a-secret"): ACME, hash_key("z-secret"): ZENO, hash_key("old-secret"): ACME}
TERMS = {hash_key("old-secret"): KeyTerms(0.0, "acme/old")}


def chain(scenario) -> None:
    async def main() -> None:
        async with (
            running_chain(token=ClusterToken.new(), tenants=Tenants(KEYS, None, TERMS)) as running,
            aiohttp.ClientSession(running.url) as session,
        ):
            await scenario(running, session)
            await running.until_idle()

    asyncio.run(main())


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} | more


@pytest.mark.parametrize(
    ("key", "code"), [("wrong-secret", "invalid_api_key"), ("old-secret", "expired_api_key")]
)
def test_wrong_and_expired_keys_get_nothing_and_leave_one_line(key, code, caplog) -> None:
    async def scenario(running: Chain, session: aiohttp.ClientSession) -> None:
        for _ in range(20):
            body = {"prompt": MARKER, "max_tokens": 4}
            async with session.post("/v1/completions", json=body, headers=bearer(key)) as reply:
                assert reply.status == 401
                assert (await reply.json())["error"]["code"] == code
        assert running.engine.load.step == 0

    with caplog.at_level(logging.DEBUG, logger="chairlift"):
        chain(scenario)
    lines = [each.getMessage() for each in caplog.records if "API key" in each.getMessage()]
    assert len(lines) == 1
    assert "secret" not in caplog.text and MARKER not in caplog.text


def test_another_tenants_request_id_is_of_no_use() -> None:
    async def scenario(running: Chain, session: aiohttp.ClientSession) -> None:
        body = {"prompt": "abc", "max_tokens": 40, "seed": 1, "temperature": 1}
        mine = asyncio.create_task(_ask(session, body, bearer("a-secret", **{"X-Request-Id": "1"})))
        theirs = {"prompt": "other", "max_tokens": 40, "seed": 2, "temperature": 1}
        answer = await _ask(session, theirs, bearer("z-secret", **{"X-Request-Id": "1"}))
        assert answer["choices"][0]["text"] != (await mine)["choices"][0]["text"]
        again = await _ask(session, body, bearer("a-secret"))
        assert (await mine)["choices"] == again["choices"]
        for path in ("/v1/completions/1", f"/v1/completions/{again['id']}", "/v1/requests/1"):
            for method in ("GET", "POST", "DELETE"):
                url = session.request(method, path, headers=bearer("z-secret"))
                async with url as reply:
                    assert reply.status == 404

    chain(scenario)


async def _ask(session: aiohttp.ClientSession, body: object, headers: dict[str, str]) -> dict:
    async with session.post("/v1/completions", json=body, headers=headers) as reply:
        assert reply.status == 200
        return await reply.json()


def test_neither_prompts_nor_answers_nor_keys_are_logged_or_traced(caplog) -> None:
    texts, tracer = [], MemoryTracer()

    async def scenario(running: Chain, session: aiohttp.ClientSession) -> None:
        running.router.tracer = tracer
        good = {"prompt": MARKER, "max_tokens": 24, "seed": 3, "temperature": 1}
        texts.append((await _ask(session, good, bearer("a-secret")))["choices"][0]["text"])
        bad = [
            {"prompt": MARKER, "max_tokens": MARKER},
            {"prompt": MARKER * 1000},
            {"prompt": MARKER, MARKER: 1},
            {"prompt": MARKER, "stop": [MARKER] * 99},
        ]
        for body in bad:
            async with session.post(
                "/v1/completions", json=body, headers=bearer("a-secret")
            ) as reply:
                assert reply.status == 400
        async with session.post(
            "/v1/completions", json=good | {"stream": True}, headers=bearer("a-secret")
        ) as reply:
            await reply.content.readany()  # and then it leaves

    with caplog.at_level(logging.DEBUG):
        chain(scenario)
    said = "\n".join(f"{each.getMessage()} {each.exc_text or ''}" for each in caplog.records)
    spans = "\n".join(span.to_json() for span in tracer.spans)
    assert "gen_ai.usage.output_tokens" in spans
    for secret in (MARKER, "secret", *texts):
        assert secret and secret not in said
        assert secret not in spans
