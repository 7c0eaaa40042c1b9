"""The commands of the page on operations make certificates that all ends take."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from chairlift.cluster.config import StreamTlsConfig, TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.stream_tls import check_stream
from chairlift.deployments.tls import make_context

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
(COMMANDS,) = re.findall(r"```sh\n(umask.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_commands_make_what_the_configuration_asks_for(tmp_path: Path) -> None:
    if b"OpenSSL 3" not in subprocess.check_output(["openssl", "version"]):
        pytest.skip("an openssl without what the commands need")
    subprocess.run(["sh", "-ec", COMMANDS], cwd=tmp_path, check=True, capture_output=True)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}

    def pair(name: str) -> dict[str, str]:
        return {"certificate": f"{tmp_path}/{name}.crt", "key": f"{tmp_path}/{name}.key"}

    make_context(TlsConfig(**pair("server"), client_ca=f"{tmp_path}/clients.crt"))
    own = ssl.create_default_context(cafile=f"{tmp_path}/chairlift.crt")
    own.load_cert_chain(*pair("alice").values())
    ends = {end: pair(end) for end in ("worker", "router")}
    files = {"ca": f"{tmp_path}/cluster.crt", **ends}
    check_stream(StreamTlsConfig.model_validate(files))
    with pytest.raises(ConfigError, match=r"router\.certificate: .*purpose"):
        check_stream(StreamTlsConfig.model_validate(files | {"router": ends["worker"]}))
