"""TLS between routers and workers: who is let in, who is believed, and files that change."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import StreamTlsConfig, load_config
from chairlift.cluster.errors import ConfigError, Unavailable
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION
from chairlift.deployments.stream_tls import RouterEnd, check_stream, worker_credentials
from chairlift.router.ledgers import Ledgers
from chairlift.router.passport import WORKER_NAME, Passport
from chairlift.router.replica_stream import ReplicaStream, StreamTiming, Visitor
from chairlift.workers.server import WorkerServer
from support.certificates import Authority
from support.engines import Rig
from support.ledgers import record
from support.replicas import eventually

TOKEN = ClusterToken.new()


def stream_files(authority: Authority, worker: str = WORKER_NAME) -> StreamTlsConfig:
    named = zip(("worker", "router"), (worker, "router"), strict=True)
    ends = {
        end: dict(zip(("certificate", "key"), map(str, authority.issue(name, end)), strict=True))
        for end, name in named
    }
    return StreamTlsConfig.model_validate({"ca": str(authority.file), **ends})


def served(config: StreamTlsConfig, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        server = WorkerServer(rig.info, rig.intake, ledger=record(rig))
        endpoint = await server.start("127.0.0.1", TOKEN, worker_credentials(config))
        try:
            async with asyncio.timeout(20.0):
                await scenario(endpoint)
        finally:
            await server.stop()
        assert rig.intake.num_open == 0

    asyncio.run(main())


async def greeted(endpoint: str, passport: Passport) -> grpc.StatusCode:
    """How a stream begins: OK where it is welcome."""
    async with passport.channel(endpoint, ()) as channel:
        call = pb_grpc.WorkerStub(channel).Stream(metadata=passport.metadata())
        hello = pb.Hello(router_id="r", protocol_version=PROTOCOL_VERSION)
        try:
            await call.write(pb.ToWorker(hello=hello))
            assert (await call.read()).HasField("welcome")
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_router_needs_the_authoritys_certificate_and_the_token(tmp_path) -> None:
    config = stream_files(Authority(tmp_path))
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    theirs = stream_files(stranger).model_copy(update={"ca": config.ca})
    bare = grpc.ssl_channel_credentials(Path(config.ca).read_bytes())

    async def scenario(endpoint: str) -> None:
        own = Passport(TOKEN, RouterEnd(config).newest)
        assert await greeted(endpoint, own) is grpc.StatusCode.OK
        assert await Ledgers(lambda: {"r": endpoint}, own).fetch("r")
        for passport, code in (
            (Passport(TOKEN), grpc.StatusCode.UNAVAILABLE),
            (Passport(TOKEN, lambda: bare), grpc.StatusCode.UNAVAILABLE),
            (Passport(TOKEN, RouterEnd(theirs).newest), grpc.StatusCode.UNAVAILABLE),
            (Passport(None, own.credentials), grpc.StatusCode.UNAUTHENTICATED),
        ):
            assert await greeted(endpoint, passport) is code
            with pytest.raises(Unavailable):
                await Ledgers(lambda: {"r": endpoint}, passport).fetch("r")
        assert await greeted(endpoint, own) is grpc.StatusCode.OK

    served(config, scenario)


@pytest.mark.parametrize("fault", ["another authority", "another name"])
def test_a_router_believes_nobody_but_a_worker(fault, tmp_path, caplog) -> None:
    """Else a router's certificate and an address would be enough to be sent prompts."""
    (tmp_path / "other").mkdir()
    config = stream_files(Authority(tmp_path))
    other = Authority(tmp_path / "other")
    theirs = stream_files(other) if fault == "another authority" else None

    async def scenario(endpoint: str) -> None:
        router = config if theirs is None else theirs
        passport = Passport(TOKEN, RouterEnd(router).newest)
        assert await greeted(endpoint, passport) is grpc.StatusCode.UNAVAILABLE
        quick = StreamTiming(first_backoff_s=0.001, max_backoff_s=0.01)
        clock = asyncio.get_running_loop().time
        visitor = Visitor("r", passport)
        stream = ReplicaStream(
            "replica-1", endpoint, visitor=visitor, clock=clock, timing=quick, on_news=list
        )
        await eventually(lambda: "no stream to replica-1: UNAVAILABLE" in caplog.text)
        assert not stream.ready
        await stream.close()

    served(config if theirs else config.model_copy(update={"worker": config.router}), scenario)


def test_both_ends_take_over_changed_files_and_leave_broken_ones(tmp_path) -> None:
    authority = Authority(tmp_path)
    config = stream_files(authority)
    (tmp_path / "next").mkdir()
    newer = stream_files(Authority(tmp_path / "next"))
    (tmp_path / "half").write_text("half of a")

    async def scenario(endpoint: str) -> None:
        passport = Passport(TOKEN, RouterEnd(config).newest)
        assert await greeted(endpoint, passport) is grpc.StatusCode.OK
        for used, made in (
            (config.ca, newer.ca),
            (config.worker.certificate, newer.worker.certificate),
            (config.worker.key, newer.worker.key),
            (config.router.certificate, newer.router.certificate),
            (config.router.key, newer.router.key),
        ):
            shutil.copy(made, used)
        assert await greeted(endpoint, passport) is grpc.StatusCode.OK
        assert await greeted(endpoint, Passport(TOKEN, RouterEnd(newer).newest)) is (
            grpc.StatusCode.OK
        )
        for broken in (config.router.certificate, config.worker.key):
            shutil.copy(tmp_path / "half", broken)
        assert await greeted(endpoint, passport) is grpc.StatusCode.OK

    served(config, scenario)


def test_what_will_not_work_is_found_before_anything_starts(tmp_path) -> None:
    authority = Authority(tmp_path)
    good = stream_files(authority)
    check_stream(good)
    with pytest.raises(ConfigError, match=r"^workers\.tls\.worker\.cert.*chairlift-worker"):
        check_stream(good.model_copy(update={"worker": good.router}))
    (tmp_path / "other").mkdir()
    other = stream_files(Authority(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"^workers\.tls\.worker\.certificate: the other end"):
        check_stream(good.model_copy(update={"worker": other.worker}))
    with pytest.raises(ConfigError, match=r"^workers\.tls\.router\.certificate: the other end"):
        check_stream(good.model_copy(update={"router": other.router}))
    mixed = good.router.model_copy(update={"key": good.worker.key})
    with pytest.raises(ConfigError, match=r"^workers\.tls\.router: .* do not go together"):
        check_stream(good.model_copy(update={"router": mixed}))


@pytest.mark.parametrize(
    "path", ["ca", "worker.certificate", "worker.key", "router.certificate", "router.key"]
)
def test_a_file_that_is_not_there_is_named(path, tmp_path) -> None:
    config = stream_files(Authority(tmp_path))
    end, _, name = path.partition(".")
    if name:
        changed = getattr(config, end).model_copy(update={name: str(tmp_path / "no")})
    else:
        changed = str(tmp_path / "no")
    config = config.model_copy(update={end: changed})
    with pytest.raises(ConfigError, match=rf"^workers\.tls\.{path}: cannot read .*no"):
        check_stream(config)


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({"ca": "a"}, "workers.tls.worker: Field required"),
        ({"ca": "a", "worker": {"certificate": "c"}}, "workers.tls.worker.key: Field required"),
        ({"cert": "a"}, "workers.tls"),
    ],
)
def test_what_is_missing_in_the_configuration_is_named(tls, message) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_config(overrides={"workers.tls": tls}, environment={})
