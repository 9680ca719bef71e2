"""Where programs in a guest look for authorities, they find the host's, and the fleet's own among them.

Files laid over the guest's view when the cells of a fleet start; the host's are not touched, and templates have none of it, so
that a snapshot serves every fleet. What a module read while it was preloaded is the host's alone.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi

from .guestfs import View

if TYPE_CHECKING:
    from .fleet_ca import FleetCa

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""There in every guest that may be intercepted, whatever the host has."""
BUNDLES = (
    BUNDLE,  # Debian, Alpine, Arch; what rustls-native-certs, Go and curl try first
    "/etc/ssl/cert.pem",  # Alpine, OpenSSL's default where its directory is /etc/ssl
    "/usr/lib/ssl/cert.pem",  # Debian's OpenSSL
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted/pem/directory-hash")
"""Where OpenSSL looks an issuer up by the hash of its name."""
PACKAGES = ("certifi/cacert.pem", "grpc/_cython/_credentials/roots.pem")
"""Bundles that packages bring, below a directory of sys.path."""
_LINKS = 40


def variables(environment: Container[str]) -> dict[str, str]:
    """What an agent with these variables needs besides, so that OpenSSL linked into a wheel, which looks where its builder's
    machine had them, finds the authorities."""
    return {} if "SSL_CERT_FILE" in environment or "SSL_CERT_DIR" in environment else {"SSL_CERT_FILE": BUNDLE}


def of_cell(view: View, path: Sequence[str], authority: FleetCa) -> dict[str, Any]:
    """Of a cell's configuration (`cell_config()`): what makes its guests trust the fleet's authority."""
    laid = files(view, path, authority)
    return {"files": {**view.files, **laid}, "mounts": [mount for place, mount in view.mounts.items() if place not in laid]}


def files(view: View, path: Sequence[str], authority: FleetCa) -> dict[str, bytes]:
    """Guest path -> content of the files to lay over `view`. `path`: the guest's sys.path."""
    pem = b"\n# The authority of this agentfw fleet\n" + authority.pem
    laid: dict[str, bytes] = {}
    for bundle in (*BUNDLES, *(f"{directory}/{name}" for directory in path for name in PACKAGES if directory.startswith("/"))):
        found = place(view, bundle)
        if found is not None and found[0] not in laid:
            laid[found[0]] = Path(found[1]).read_bytes() + pem
    if place(view, BUNDLE) is None:
        laid[view.resolve(BUNDLE)] = Path(certifi.where()).read_bytes() + pem
    for directory in DIRECTORIES:
        if directory == os.path.dirname(BUNDLE) or view.visible(directory):
            laid[_free(view, view.resolve(directory), authority.hashed_name)] = authority.pem
    return laid


def place(view: View, path: str) -> tuple[str, str] | None:
    """(guest path, host path) of the file that a guest finds at `path`, links followed; None if there is none from the host."""
    for _ in range(_LINKS):
        path = view.resolve(path)
        mount = next((view.mounts[each] for each in _above(path) if each in view.mounts), None)
        if mount is None:
            return None
        root = os.path.realpath(mount.host_path)
        real = os.path.realpath(os.path.join(mount.host_path, os.path.relpath(path, mount.guest_path)))
        if not os.path.isfile(real) or not os.access(real, os.R_OK):
            return None
        if real == root or real.startswith(root + "/"):
            return os.path.normpath(os.path.join(mount.guest_path, os.path.relpath(real, root))), real
        path = real  # a link out of the mount leads there in the guest, too, if it sees that place
    return None


def _above(path: str) -> list[str]:
    """The path itself and the directories above it, nearest first."""
    return [path, *map(str, Path(path).parents)]


def _free(view: View, directory: str, hashed: str) -> str:
    """OpenSSL tries HASH.0, HASH.1, ... until one is missing."""
    number = 0
    while place(view, f"{directory}/{hashed}.{number}") is not None:
        number += 1
    return f"{directory}/{hashed}.{number}"
