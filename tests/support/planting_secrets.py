"""A configuration file with a recognizable secret in every setting that holds one."""

from collections.abc import Collection, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from examples.flights.certificates import Authority

MARK = "hush-"
"""Every planted secret begins with it, but a private key."""

NOWHERE = "127.0.0.1:9"


def secret(name: str) -> str:
    """Return the secret of a setting, which is found by `planted_in`."""
    return f"{MARK}{name.replace('.', '-').replace('_', '-')}"


class Planted:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        password = secret("ssl.key.password")
        made = Authority(folder).client("x", password)
        self.key, self.certificate = made.key.read_text(), made.certificate.read_text()
        key = serialization.load_pem_private_key(self.key.encode(), password.encode())
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate(self.certificate.encode())
        for_store = serialization.BestAvailableEncryption(secret("ssl.keystore.password").encode())
        self.store = folder / "store.p12"
        self.store.write_bytes(pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, for_store))

    def kafka(self) -> dict[str, dict[str, str]]:
        """Return librdkafka properties by login; together they have all secret ones."""
        names = ("sasl.oauthbearer.config", "sasl.oauthbearer.client.secret")
        token = {name: secret(name) for name in names}
        tls = {"security.protocol": "ssl", "ssl.certificate.pem": self.certificate}
        assertion = "sasl.oauthbearer.assertion.private.key"
        oidc = {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "x",
            "sasl.oauthbearer.token.endpoint.url": f"http://{NOWHERE}/token",
        }
        return {
            "password": {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "x",
                "sasl.password": secret("sasl.password"),
            },
            "token": {**oidc, **token},
            "assertion": {
                **oidc,
                f"{assertion}.pem": self.key,
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                "sasl.oauthbearer.assertion.algorithm": "ES256",
                f"{assertion}.passphrase": secret("ssl.key.password"),
            },
            "key": {**tls, "ssl.key.pem": self.key, "ssl.key.password": secret("ssl.key.password")},
            "keystore": {
                "security.protocol": "ssl",
                "ssl.keystore.location": str(self.store),
                "ssl.keystore.password": secret("ssl.keystore.password"),
            },
        }

    def in_files(self, kafka: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
        return dict(self._in_file(name, value) if name in names else (name, value) for name, value in kafka.items())

    def _in_file(self, name: str, value: str) -> tuple[str, str]:
        file = self.folder / f"{name}.secret"
        file.write_text(value)
        return f"{name}_file", str(file)

    def planted_in(self, text: str) -> list[str]:
        """Return the lines of a text that have a secret, or a part of the private key."""
        parts = [MARK, *self.key.splitlines()[1:-1]]
        return [line for line in text.splitlines() if any(part in line for part in parts)]


def dsn(name: str, host: str = NOWHERE) -> str:
    return f"postgresql://x:{secret(name)}@{host}/x"
