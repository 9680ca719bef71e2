"""Which files of a guest get the fleet's authority, for hosts laid out in several ways."""

from __future__ import annotations

from pathlib import Path

from agentfw.fleet_ca import FleetCa
from agentfw.guest_trust import BUNDLE, files, place, variables
from agentfw.guestfs import View
from agentfw_vmm.config import Mount
from cryptography import x509

AUTHORITY = FleetCa()
ROOT = FleetCa().pem
"""Stands for a public authority."""


def view(*mounts: tuple[str, Path], **links: str) -> View:
    made = View(mounts={guest: Mount(guest, str(host)) for guest, host in mounts})
    made.symlinks.update(links)
    return made


def test_debian(tmp_path: Path) -> None:
    certs, lib = tmp_path / "certs", tmp_path / "lib"
    certs.mkdir()
    lib.mkdir()
    (certs / "ca-certificates.crt").write_bytes(ROOT)
    (lib / "cert.pem").symlink_to(certs / "ca-certificates.crt")
    site = tmp_path / "site/certifi"
    site.mkdir(parents=True)
    (site / "cacert.pem").write_bytes(ROOT)
    seen = view(("/etc/ssl/certs", certs), ("/usr/lib/ssl", lib), ("/venv/site", tmp_path / "site"))
    laid = files(seen, ["/venv/site", "/nowhere", "relative"], AUTHORITY)
    hashed = f"/etc/ssl/certs/{AUTHORITY.hashed_name}.0"
    assert set(laid) == {BUNDLE, hashed, "/venv/site/certifi/cacert.pem"}
    for path in (BUNDLE, "/venv/site/certifi/cacert.pem"):
        assert x509.load_pem_x509_certificates(laid[path])[-1] == AUTHORITY.certificate
        assert laid[path].startswith(ROOT) and len(x509.load_pem_x509_certificates(laid[path])) == 2
    assert laid[hashed] == AUTHORITY.pem and not any(b"PRIVATE" in content for content in laid.values())
    assert (certs / "ca-certificates.crt").read_bytes() == ROOT == (site / "cacert.pem").read_bytes()


def test_fedora_where_it_is_all_links(tmp_path: Path) -> None:
    pem = tmp_path / "extracted/pem"
    pem.mkdir(parents=True)
    (pem / "tls-ca-bundle.pem").write_bytes(ROOT)
    tls = tmp_path / "tls"
    tls.mkdir()
    (tls / "ca-bundle.crt").symlink_to("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem")
    seen = view(("/etc/pki/ca-trust/extracted", tmp_path / "extracted"), ("/etc/pki/tls/certs", tls))
    seen.symlinks["/etc/ssl/certs"] = "../pki/tls/certs"
    laid = files(seen, [], AUTHORITY)
    bundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
    assert laid[bundle].startswith(ROOT)
    # No ca-certificates.crt there: the guest gets one, at the place that the link leads to.
    assert laid["/etc/pki/tls/certs/ca-certificates.crt"].endswith(AUTHORITY.pem)
    assert f"/etc/pki/tls/certs/{AUTHORITY.hashed_name}.0" in laid


def test_a_host_without_authorities() -> None:
    laid = files(view(), [], AUTHORITY)
    assert laid[BUNDLE].endswith(AUTHORITY.pem) and laid[BUNDLE].count(b"BEGIN CERTIFICATE") > 50


def test_a_hash_that_is_taken_and_places_that_are_not_seen(tmp_path: Path) -> None:
    (tmp_path / f"{AUTHORITY.hashed_name}.0").write_bytes(ROOT)
    (tmp_path / "out.pem").symlink_to("/etc/hostname")
    (tmp_path / "loop.pem").symlink_to("loop.pem")
    seen = view(("/etc/ssl/certs", tmp_path))
    assert f"/etc/ssl/certs/{AUTHORITY.hashed_name}.1" in files(seen, [], AUTHORITY)
    assert place(seen, "/etc/ssl/certs/out.pem") is None and place(seen, "/etc/ssl/certs/loop.pem") is None
    assert place(seen, "/etc/ssl/certs") is None and place(seen, "/elsewhere") is None


def test_variables_are_the_operators_if_he_set_any() -> None:
    assert variables({"PATH": "/bin"}) == {"SSL_CERT_FILE": BUNDLE}
    assert variables({"SSL_CERT_DIR": "/x"}) == variables({"SSL_CERT_FILE": "/x"}) == {}
