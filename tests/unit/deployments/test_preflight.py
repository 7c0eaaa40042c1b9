"""A start that cannot succeed says so at once, in one line that tells what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import ConfigError, ModelError, StartupError
from chairlift.cluster.guard_policy import SHIPPED
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeSpec
from chairlift.deployments.preflight import check_memory, check_port, preflight
from support.tiny_llama import random_weights, write_gguf

GIB = 1024**3
SPEC = ModelSpec(
    path=Path("m"),
    format=ModelFormat.GGUF,
    name="m",
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeSpec(theta=1e4, dim=16),
    context_length=128,
    tied_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    eos_token_ids=(0,),
)


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


def test_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*--port"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_a_port_of_grpc_that_is_taken_is_refused_too(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        both = config(http__port=_free_port(), grpc__port=port, model__path=str(tmp_path / "no"))
        with pytest.raises(ConfigError, match=rf":{port}.*--grpc-port"):
            preflight(both)
        off = config(http__port=_free_port(), grpc__port=port, grpc__enabled=False)
        assert preflight(off).config.grpc.port == port


def test_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        check_port("192.0.2.1", 8000)


def test_too_little_memory_is_refused_with_the_way_out() -> None:
    two = config(workers__replicas=2)
    with pytest.raises(StartupError, match=r"2 replica\(s\) of m .* 4\.0 GiB.*fewer --replicas"):
        check_memory(two, SPEC, 4 * GIB, 4 * GIB - 1)
    check_memory(two, SPEC, 4 * GIB, 4 * GIB)
    with pytest.raises(StartupError, match=r"1 more replica\(s\)"):
        check_memory(two, SPEC, 4 * GIB, 3 * GIB, running=1)
    check_memory(two, SPEC, 4 * GIB, 3 * GIB, running=2)


def test_memory_is_counted_as_the_model_will_be_computed(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q8_0
    )
    port = _free_port()
    found = {
        math: preflight(
            config(model__path=str(path), engine__cpu_math=math, http__port=port)
        ).weights.math
        for math in ("auto", "int8", "float32")
    }
    assert found == {"auto": "int8", "int8": "int8", "float32": "float32"}


def test_arithmetic_that_the_file_does_not_allow_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", random_weights())
    wrong = config(model__path=str(path), engine__cpu_math="int8", http__port=_free_port())
    with pytest.raises(ConfigError, match=r"engine\.cpu_math: .* is no GGUF file with Q4_0"):
        preflight(wrong)


def test_missing_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    missing = config(model__path=str(tmp_path / "no.gguf"), http__port=_free_port())
    with pytest.raises(ModelError, match="does not exist"):
        preflight(missing)


def test_certificates_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    files = {"certificate": str(tmp_path / "no"), "key": str(tmp_path / "no")}
    stream = {"ca": str(tmp_path / "no"), "worker": files, "router": files}
    for name, tls, at in (("http", files, "certificate"), ("workers", stream, "ca")):
        wrong = config(http__port=_free_port(), **{f"{name}__tls": tls})
        with pytest.raises(ConfigError, match=rf"^{name}\.tls\.{at}: cannot read .*no"):
            preflight(wrong)


def test_a_policy_that_is_wrong_is_refused_with_file_and_path(tmp_path: Path) -> None:
    file = tmp_path / "guard.yaml"
    shipped = SHIPPED.read_text(encoding="utf-8")
    file.write_text(shipped.replace("leave_share: 0.8", "leave_share: 8"))
    wrong = config(guard__file=str(file), http__port=_free_port())
    with pytest.raises(ConfigError, match=r"guard\.yaml: ladder\.leave_share"):
        preflight(wrong)
    with pytest.raises(ConfigError, match=r"no\.yaml"):
        preflight(config(guard__file=str(tmp_path / "no.yaml"), http__port=_free_port()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_degree_that_does_not_fit_the_model_is_refused_with_those_that_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=r"workers\.tensor_parallel: .*possible are 1, 2, 3"):
        preflight(config(http__port=port, workers__tensor_parallel=64))
