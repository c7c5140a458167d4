"""Settings of the jobs: what they refuse, what they hide, and what Spark's source is told."""

from typing import Any

import pytest

from outbox._settings.of_jobs import LandSettings
from outbox.errors import ConfigurationError
from spark_jobs.runtime.source import source_options


def settings(**given: Any) -> LandSettings:
    wanted = {"bootstrap_servers": "kafka:9092", "topics": "orders", "output": "table", "checkpoint": "checkpoints"}
    return LandSettings(**{**wanted, **given})


def test_names_derive_from_the_command() -> None:
    made = settings()
    assert made.name == source_options(made, made.topic_names())["groupIdPrefix"] == "outbox-land"


@pytest.mark.parametrize(("name", "value"), [("topics", ","), ("topics", "a b"), ("topics", "a,b/c"), ("grace", "5")])
def test_what_is_no_setting_or_no_topic_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        settings(**{name: value})


def test_topics_are_named_once_each() -> None:
    assert settings(topics="b, a ,b").topic_names() == ("b", "a")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topics": ""}, "^no topic is named"),
        ({"output": "/data/", "checkpoint": "/data/records"}, "^checkpoint is in output"),
        *(({name: "stock"}, f"^{name} names topic stock, which is not") for name in ("accept_gap", "current")),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        settings(**given)


def test_a_batch_has_so_many_offsets_at_most() -> None:
    assert settings(max_offsets_per_trigger=9).rate_options() == {"maxOffsetsPerTrigger": "9"}


def test_only_committed_records_are_read_and_nothing_is_skipped() -> None:
    options = source_options(settings(kafka_java={"isolation.level": "read_committed"}), ["a", "b"])
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["failOnDataLoss"] == "true"
    assert options["includeHeaders"] == "true"
    assert options["subscribe"] == "a,b"


def test_uncommitted_records_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="isolation"):
        settings(kafka_java={"isolation.level": "read_uncommitted"})


def test_properties_of_the_java_client_reach_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_KAFKA_JAVA", '{"security.protocol": "SASL_SSL", "max.poll.records": 77}')
    options = source_options(settings(), ["a"])
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.max.poll.records"] == "77"
    assert options["kafka.bootstrap.servers"] == "kafka:9092"


def test_secrets_are_not_shown() -> None:
    made = settings(kafka_java={"sasl.jaas.config": "hush"}, spark={"spark.hadoop.fs.s3a.secret.key": "hush"})
    assert "hush" not in repr(made)
    assert "hush" not in str(made)
