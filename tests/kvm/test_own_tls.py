"""Clients with TLS of their own in real VMs: what they are shown, and what the host sees of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from agentfw.mock_llm import MockLLMThread, MockOptions

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

KEY = "sk-real-5e0c1b7d94a2f6083"
CLIENT = Path(__file__).parents[1] / "guest/openssl_client.py"

AGENT = """
import json, os, sys
import certifi, primp
import openssl_client

port, mine = int(sys.argv[1]), "/opt/agent/ca.pem"
key = "Authorization: Bearer sk-agentfw-placeholder\\r\\n"
told = {"variable": os.environ.get("SSL_CERT_FILE")}

def tell(name, call):
    try:
        told[name] = call()
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"

def openssl(host, cafile=None, path="/v1/models"):
    version, _, status, *_ = openssl_client.get(host, port, cafile, path, key).split()
    return [version, status]

tell("openssl", lambda: openssl("intercept.test"))
tell("certifi", lambda: openssl("intercept.test", certifi.where()))
tell("path", lambda: openssl("intercept.test", path="/secret"))
tell("own authority", lambda: openssl("intercept.test", mine))
tell("passed", lambda: openssl("passed.test", mine))
tell("passed, not trusted", lambda: openssl("passed.test"))
tell("refused", lambda: openssl("refuse.test"))
tell("wrong", lambda: openssl("wrong.test"))
tell("rustls", lambda: primp.get(f"https://intercept.test:{port}/v1/models", headers={"authorization": key[15:].strip()}).status_code)
tell("python", lambda: __import__("urllib.request").request.urlopen(f"https://intercept.test:{port}/v1/models").status)
print(json.dumps(told))
"""


def test_clients_with_tls_of_their_own(agentfw: Agentfw, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Twice with one snapshot, which was made with modules that look for authorities: each run has an authority of its own."""
    pytest.importorskip("primp")
    shutil.copy(CLIENT, tmp_path)
    secret = tmp_path_factory.mktemp("secret") / "key"
    secret.write_text(KEY)
    names = ("intercept.test", "passed.test", "refuse.test")
    with MockLLMThread(MockOptions(keys=(KEY,), names=names)) as llm:
        port = llm.server.port
        (tmp_path / "ca.pem").write_text(llm.ca_pem)
        (tmp_path / "agent.py").write_text(AGENT)
        (tmp_path / "agentfw.toml").write_text(f"""
[run]
preload = ["certifi", "primp", "ssl"]
mount = ["{tmp_path}/ca.pem:/opt/agent/ca.pem"]
[dns.hosts]
{"".join(f'"{name}" = "127.0.0.1"{chr(10)}' for name in (*names, "wrong.test"))}
[tls]
ca_files = ["ca.pem"]
[policy]
own_tls = "deny"
allow = ["refuse.test"]
allow_addresses = ["127.0.0.1/32"]
[[policy.rule]]
action = "allow"
hosts = ["intercept.test", "wrong.test"]
own_tls = "intercept"
paths = ["/v1"]
[[policy.rule]]
action = "allow"
host = "passed.test"
own_tls = "passthrough"
[[credentials.rule]]
host = "intercept.test:{port}"
header = "authorization"
value = "Bearer ${{file:{secret}}}"
""")
        for _ in range(2):
            done = agentfw("run", "agent.py", port)
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            good = ["TLSv1.3", "200"]
            assert told["openssl"] == told["certifi"] == good, told
            assert told["rustls"] == told["python"] == 200, told
            assert told["own authority"].startswith("TlsFailure: unable to get local issuer certificate"), told
            assert told["path"] == ["TLSv1.3", "403"], told
            # Passed through, it is the server's own certificate, and a placeholder that nobody replaced.
            assert told["passed"] == ["TLSv1.3", "401"], told
            assert told["passed, not trusted"] == "TlsFailure: self-signed certificate in certificate chain", told
            assert told["refused"] == "TlsFailure: tlsv1 alert access denied", told
            assert told["wrong"] == "TlsFailure: sslv3 alert bad certificate", told
            assert told["variable"] == "/etc/ssl/certs/ca-certificates.crt"
            assert "does not trust the fleet's authority" in done.stderr and KEY not in done.stdout + done.stderr
        assert llm.server.stats()["statuses"] == {"200": 8, "401": 2}


def test_without_such_a_plugin_nothing_is_laid_over(agentfw: Agentfw) -> None:
    code = """import os, ssl
paths = ssl.get_default_verify_paths()
print("SSL_CERT_FILE" in os.environ, "agentfw fleet" in open(paths.openssl_cafile).read())"""
    done = agentfw("run", "--plugins", "dns,native", "-c", code)
    assert done.stdout == "False False\n", done.stderr
