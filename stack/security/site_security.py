"""`Security`: the files of one secured stack, and the settings that name them."""

from __future__ import annotations

from pathlib import Path

from stack.postgres import ServerTls
from stack.security.certificates import Authority
from stack.security.tokens import AUDIENCE, ISSUER, TokenIssuer


class Security:
    """Certificates and token keys of one stack, new at each start.

    Args:
        folder: For the files; the stack removes it at its end.

    Attributes:
        authority: What issued the servers' certificates, and issues those of clients.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder)
        self.tokens = TokenIssuer(folder)
        self._broker = self.authority.server("kafka")
        self._postgres = self.authority.server("postgres")

    def kafka_settings(self) -> dict[str, str]:
        """Return the settings of `server.properties` that name the files."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._broker.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }

    def postgres_tls(self) -> ServerTls:
        """Return with what Postgres encrypts its connections."""
        return ServerTls(self._postgres.certificate, self._postgres.key, self.authority.certificate)

    def jvm_options(self) -> list[str]:
        """Return the options of a node's JVM: Kafka reads no key set that they do not name."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys.as_uri()}"]
