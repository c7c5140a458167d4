"""A login that Kafka refuses is named as such, by commands and services."""

import json
import subprocess
import sys

import pytest

from stack import Stack

LISTENER = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxied.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_shop="right";'
    ),
}
"""The second listener asks for a password."""


@pytest.mark.long
def test_wrong_password_is_named() -> None:
    with Stack(proxied=True, kafka_settings=LISTENER) as running:
        ((_, port),) = running.kafka.proxy_ports
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": "wr0ng-pa55",
        }
        for words in (["channel", "create"], ["relay"], ["doctor"]):
            result = subprocess.run(
                [sys.executable, "-m", "outbox", *words],
                env={
                    "OUTBOX_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
                    "OUTBOX_KAFKA": json.dumps(login),
                    "OUTBOX_POSTGRES_URL": running.postgres_url,
                    "OUTBOX_ALLOWED_TOPICS": "{}",
                    "COLUMNS": "300",
                },
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            said = result.stdout + result.stderr
            assert result.returncode in {2, 4}
            assert "Authentication failed" in said, said
            assert "Correct the credentials" in said, said
            assert "wr0ng-pa55" not in said
