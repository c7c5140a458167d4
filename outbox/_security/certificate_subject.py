"""The subject of a certificate (X.509), as Kafka writes it: `CN=orders,O=shop`, the most specific part first."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
"""Tag of the optional version, before the other fields."""

_SUBJECT = 4
"""Its place behind serial number, algorithm, issuer and validity."""

_KINDS = {
    "550403": "CN",
    "550406": "C",
    "550407": "L",
    "550408": "ST",
    "550409": "STREET",
    "55040a": "O",
    "55040b": "OU",
    "0992268993f22c640101": "UID",
    "0992268993f22c640119": "DC",
}
"""Names of attributes in RFC 4514, by object identifier."""

_ENCODINGS = {0x0C: "utf-8", 0x13: "utf-8", 0x14: "latin-1", 0x16: "utf-8", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_SPECIAL = re.compile(r'[",+<>;\\]|^[# ]| $')


def subject_of(pem: str) -> str:
    """Return the subject of the first certificate in a PEM text."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("there is no certificate in PEM")
    encoded = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])
    try:
        (certificate,) = _contents(encoded)
        signed = next(_contents(certificate))
        fields = [content for tag, content in _elements(signed) if tag != _VERSION]
        parts = [_part(part) for part in _contents(fields[_SUBJECT])]
    except (IndexError, StopIteration) as error:
        raise ValueError("the certificate is malformed") from error
    return ",".join(reversed(parts))


def _part(content: bytes) -> str:
    return "+".join(_attribute(attribute) for attribute in _contents(content))


def _attribute(content: bytes) -> str:
    (_, kind), (tag, value) = _elements(content)
    name = _KINDS.get(kind.hex())
    if name is None or tag not in _ENCODINGS:
        return f"{name or kind.hex()}=#{value.hex()}"
    text = value.decode(_ENCODINGS[tag], "replace")
    return f"{name}={_SPECIAL.sub(lambda found: chr(92) + found[0], text)}"


def _contents(encoded: bytes) -> Iterator[bytes]:
    return (content for _, content in _elements(encoded))


def _elements(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element (DER)."""
    while encoded:
        tag, length, start = encoded[0], encoded[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(encoded[2:start])
        if start + length > len(encoded):
            raise ValueError("the certificate is cut off")
        yield tag, encoded[start : start + length]
        encoded = encoded[start + length :]
