"""A service with all locks on: who has the keys is served by any client; who has not gets nothing.

TLS with clients' certificates on HTTP and gRPC, certificates and a token between two routers and a
worker, and keys of two tenants. The engine is a simulated one.
"""

from __future__ import annotations

import io
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import psutil
import pytest

from chairlift.client import Client
from chairlift.cluster.keys import hash_key
from chairlift.cluster.proto import worker_pb2, worker_pb2_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION
from chairlift.deployments.cli import main
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto.inference_pb2_grpc import InferenceStub
from chairlift.router.passport import WORKER_NAME
from support.certificates import Authority
from support.service import Service, running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = "smollm2-135m-instruct"
ACME, OLD, ZENO, WRONG = (f"cl-{name}-0123456789abcdef" for name in ("acme", "old", "zeno", "no"))
MARKER = "xyzzy-plugh"
ENDLESS = pb.GenerateRequest(
    text=MARKER, sampling=pb.Sampling(max_tokens=5000, ignore_eos=True, seed=1)
)
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Place:
    """The service, and what its clients have."""

    service: Service
    folder: Path
    public: Authority
    clients: Authority
    stream: Authority

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.service.port}"

    def trust(self, *, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.public.file))
        if certificate:
            context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        return context

    @contextmanager
    def openai(self, key: str, **changes: Any) -> Iterator[openai.OpenAI]:
        options = {"base_url": f"{self.url}/v1", "verify": self.trust()} | changes
        with httpx2.Client(verify=options.pop("verify")) as http:
            yield openai.OpenAI(api_key=key, max_retries=0, http_client=http, **options)

    def channel(self, *, certificate: bool = True) -> grpc.Channel:
        """A connection of its own."""
        pair = [(self.folder / f"client.{end}").read_bytes() for end in ("key", "crt")]
        trust = grpc.ssl_channel_credentials(
            self.public.file.read_bytes(), *(pair if certificate else (None, None))
        )
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.secure_channel(self.service.grpc_address, trust, options)

    def holders(self) -> Counter[int]:
        """Process id of each router → connections to its gRPC port."""
        port = int(self.service.grpc_address.rpartition(":")[2])
        return Counter(
            pid
            for pid in self.service.router_pids()
            for each in psutil.Process(pid).net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        )

    def figures(self) -> dict[str, Any]:
        with httpx2.Client(verify=self.trust()) as http:
            found: dict[str, Any] = http.get(f"{self.url}/dashboard/figures").json()
            return found

    def logs(self) -> str:
        """All that any process of the service has written."""
        folder = self.service.ray_folder()
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in SUFFIXES]
        assert any(path.suffix == ".err" for path in files)
        texts = [path.read_text(errors="replace") for path in (*files, self.service.output)]
        return "\n".join(texts)


SUFFIXES = (".err", ".out", ".log")


def pair_of(files: tuple[Path, Path]) -> dict[str, str]:
    return {"certificate": str(files[0]), "key": str(files[1])}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("certificates")
    public, clients, stream = (Authority(folder, name) for name in ("public", "clients", "stream"))
    clients.issue("client")
    worker, router = stream.issue(WORKER_NAME, "worker"), stream.issue("router")
    old = {"hash": hash_key(OLD), "expires": "2020-01-01", "name": "old"}
    config = {
        "http": {"tls": pair_of(public.issue("server")) | {"client_ca": str(clients.file)}},
        "workers": {
            "tls": {"ca": str(stream.file), "worker": pair_of(worker), "router": pair_of(router)}
        },
        "router": {"replicas": 2},
        "engine": {"simulated_step_ms": 10, "max_sequences": 8, "kv_memory": "256MiB"},
        "tenants": {
            "acme": {"keys": [hash_key(ACME), old]},
            "zeno": {"keys": [hash_key(ZENO)]},
        },
    }
    with running_service(config=config) as service:
        made = Place(service, folder, public, clients, stream)
        yield made
        text = made.logs()
        for secret in (ACME, OLD, ZENO, WRONG, MARKER, hash_key(ACME), "PRIVATE KEY"):
            assert secret not in text, f"{secret} was logged"


def bearer(key: str, request_id: str = "") -> tuple[tuple[str, str], ...]:
    named = (("x-request-id", request_id),) if request_id else ()
    return (("authorization", f"Bearer {key}"), *named)


def answered(place: Place) -> str:
    with place.openai(ACME) as client:
        prompt = f"{MARKER} again"
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, seed=3)
    return answer.choices[0].text


def until_idle(place: Place) -> None:
    def idle() -> bool:
        found = place.figures()
        replicas = found["replicas"].values()
        return found["totals"]["open"] == 0 and all(each["running"] == 0 for each in replicas)

    wait_until(idle, DEADLINE_S, "nothing under way")


def test_every_client_with_the_keys_is_served(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with place.openai(ACME) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": MARKER}], max_tokens=8, stream=True
        )
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    with Client(place.url, ZENO, tls=place.trust()) as ours:
        assert ours.complete(f"{MARKER} again", max_tokens=6, seed=3).text == answered(place)
    with place.channel() as channel:
        request = pb.GenerateRequest(
            text=f"{MARKER} again", sampling=pb.Sampling(max_tokens=6, seed=3)
        )
        said = InferenceStub(channel).Generate(request, metadata=bearer(ZENO), timeout=DEADLINE_S)
        assert said.choices[0].text == answered(place)

    monkeypatch.setenv("CHAIRLIFT_API_KEY", ACME)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{MARKER}\n"))
    pair = ("--cert", str(place.folder / "client.crt"), "--key", str(place.folder / "client.key"))
    flags = ("--url", place.url, "--ca", str(place.public.file), *pair)
    assert main(["chat", *flags, "--max-tokens", "4"]) == 0
    assert main(["top", *flags, "--once"]) == 0
    wait_until(lambda: main(["guard", *flags]) == 0, DEADLINE_S, "the Guard's view")
    load = ("--concurrency", "2", "--requests", "4", "--output-lengths", "constant:4")
    assert main(["bench", *flags, *load]) == 0
    assert capsys.readouterr().out
    assert main(["top", *flags[:4], "--once"]) == 1
    assert "no server" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "code"), [(WRONG, "invalid"), (OLD, "expired")])
def test_a_key_that_does_not_hold_opens_nothing(place: Place, key: str, code: str) -> None:
    with place.openai(key) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.completions.create(model=MODEL, prompt=MARKER)
    assert refused.value.code == f"{code}_api_key"
    with place.channel() as channel:
        with pytest.raises(grpc.RpcError) as error:
            InferenceStub(channel).Generate(ENDLESS, metadata=bearer(key), timeout=DEADLINE_S)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert key not in str(error.value)
    line = "is not known" if code == "invalid" else "has expired: acme/old"
    wait_until(lambda: f"an API key that {line}" in place.logs(), DEADLINE_S, "a line of it")
    assert answered(place)


def test_plain_text_and_clients_without_a_certificate_get_no_answer(place: Place) -> None:
    plain = place.url.replace("https", "http")
    for changes in ({"base_url": f"{plain}/v1"}, {"verify": place.trust(certificate=False)}):
        with place.openai(ACME, **changes) as client:
            with pytest.raises(openai.APIConnectionError):
                client.completions.create(model=MODEL, prompt=MARKER)
    for channel in (
        grpc.insecure_channel(place.service.grpc_address),
        place.channel(certificate=False),
    ):
        with channel, pytest.raises(grpc.RpcError) as error:
            InferenceStub(channel).Generate(ENDLESS, metadata=bearer(ACME), timeout=DEADLINE_S)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    for reason in ("HTTP_REQUEST", "PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        wait_until(
            lambda reason=reason: f"refused a TLS connection: {reason}" in place.logs(),
            DEADLINE_S,
            f"a line that says {reason}",
        )
    assert answered(place)


def test_a_request_is_aborted_through_the_other_router_and_by_its_tenant_alone(
    place: Place,
) -> None:
    with place.channel() as channel:
        before = place.holders()
        stream = InferenceStub(channel).GenerateStream(
            ENDLESS, metadata=bearer(ACME, "mine"), timeout=120.0
        )
        next(stream)
        (holder,) = place.holders() - before
        with channel_to_another(place, holder) as other:
            stub = InferenceStub(other)
            refusals = set()
            for key, name in ((ZENO, "mine"), (ZENO, "unknown"), (ACME, "unknown")):
                with pytest.raises(grpc.RpcError) as error:
                    wanted = pb.AbortRequest(request_id=name)
                    stub.Abort(wanted, metadata=bearer(key, "ask"), timeout=DEADLINE_S)
                refusals.add((error.value.code(), error.value.details()))
            assert len(refusals) == 1
            assert next(iter(refusals))[0] is grpc.StatusCode.NOT_FOUND
            next(stream)
            wanted = pb.AbortRequest(request_id="mine")
            ended = stub.Abort(wanted, metadata=bearer(ACME), timeout=DEADLINE_S)
            assert ended.aborted == 1
        with pytest.raises(grpc.RpcError) as error:
            for _ in stream:
                pass
        assert error.value.code() is grpc.StatusCode.CANCELLED
    until_idle(place)


@contextmanager
def channel_to_another(place: Place, holder: int) -> Iterator[grpc.Channel]:
    """A connection to a router that is not ``holder``; the kernel chooses, so it takes tries."""
    for _ in range(64):
        before = place.holders()
        with place.channel() as channel:
            grpc.channel_ready_future(channel).result(DEADLINE_S)
            if holder not in place.holders() - before:
                yield channel
                return
    raise AssertionError("all connections came to the same router")


def test_the_stream_of_workers_takes_nobody_without_certificate_and_token(place: Place) -> None:
    (pid,) = place.service.worker_pids()
    ports = [
        each.laddr.port
        for each in psutil.Process(pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    files = [(place.folder / f"router.{end}").read_bytes() for end in ("key", "crt")]
    theirs = [(place.folder / f"client.{end}").read_bytes() for end in ("key", "crt")]
    ca = place.stream.file.read_bytes()
    full = grpc.ssl_channel_credentials(ca, *files)
    codes = {port: greeted(port, full) for port in ports}
    (port,) = (port for port, code in codes.items() if code is grpc.StatusCode.UNAUTHENTICATED)
    for credentials in (
        None,
        grpc.ssl_channel_credentials(ca),
        grpc.ssl_channel_credentials(ca, *theirs),
    ):
        assert greeted(port, credentials) is grpc.StatusCode.UNAVAILABLE
    wait_until(
        lambda: "refused a call without the cluster's token, from ipv4:127.0.0.1" in place.logs(),
        DEADLINE_S,
        "a line of it",
    )
    assert place.service.worker_pids() == [pid]
    assert answered(place)


def greeted(port: int, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    """What becomes of a Hello without the cluster's token."""
    address = f"127.0.0.1:{port}"
    hello = worker_pb2.Hello(router_id=MARKER, protocol_version=PROTOCOL_VERSION)
    named = (("grpc.ssl_target_name_override", WORKER_NAME),)
    channel = (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials, named)
    )
    with channel, pytest.raises(grpc.RpcError) as error:
        stub = worker_pb2_grpc.WorkerStub(channel)
        next(stub.Stream(iter([worker_pb2.ToWorker(hello=hello)]), timeout=DEADLINE_S))
    code: grpc.StatusCode = error.value.code()
    return code
