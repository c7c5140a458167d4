"""A trust store for the Java that comes as a wheel, whose own one has no certificates of this machine.

Without it a company's certificate, or a mirror signed by it, would be refused although pip and the browser trust it.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

from outbox._jars.cache import user_cache, write_atomically

SYSTEM_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),
)
"""Where distributions keep a store that Java reads: Debian and Arch, Fedora, SUSE."""

_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - the password that every Java store of public certificates has


def system_trust_store() -> Path | None:
    """Return a store with the certificates that this machine trusts, or None when it names none.

    A distribution's own Java store if there is one, else one made of the certificates that OpenSSL trusts and kept in
    the user's cache.
    """
    for store in SYSTEM_STORES:
        if store.is_file():
            return store
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return _kept(java_key_store(certificates)) if certificates else None


def java_key_store(certificates: Iterable[bytes]) -> bytes:
    """Certificates (DER) in Java's own format "JKS", which is simple enough to need no keytool."""
    entries = [_entry(number, certificate) for number, certificate in enumerate(certificates)]
    body = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    # The format ends with this digest; it guards against accidents only, and has a phrase for that in it.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _entry(number: int, certificate: bytes) -> bytes:
    made = 0  # no date, so that the same certificates give the same bytes
    return (
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _text(f"certificate-{number}")
        + struct.pack(">Q", made)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
    )


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def _kept(store: bytes) -> Path:
    path = user_cache() / f"trust-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.exists():
        write_atomically(path, store)
    return path
