"""What is done about each kind of error of the transactional producer."""

import itertools

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from relay.delivery.error_policy import FENCED, OF_NO_GENERATION, Fault, Remedy, Step, remedy
from relay.delivery.producer import ClientLog, delivery_error

OTHER = KafkaError._TIMED_OUT
PLAIN = Fault(OTHER)
FATAL = Fault(OTHER, fatal=True)
RETRIABLE = Fault(OTHER, retriable=True)
ABORTABLE = Fault(OTHER, requires_abort=True)
RETRY, ABORT, REBUILD = Remedy.RETRY, Remedy.ABORT, Remedy.REBUILD

#                 plain    fatal    retriable  requires abort
TABLE = {
    Step.TAKE_OVER: (REBUILD, REBUILD, RETRY, REBUILD),
    Step.BEGIN: (REBUILD, REBUILD, REBUILD, REBUILD),
    Step.PRODUCE: (ABORT, REBUILD, ABORT, ABORT),
    Step.FLUSH: (ABORT, REBUILD, ABORT, ABORT),
    Step.OFFSETS: (REBUILD, REBUILD, RETRY, ABORT),
    Step.COMMIT: (REBUILD, REBUILD, RETRY, ABORT),
    Step.ABORT: (REBUILD, REBUILD, RETRY, REBUILD),
    Step.LISTEN: (REBUILD, REBUILD, REBUILD, REBUILD),
}
FAULTS = (PLAIN, FATAL, RETRIABLE, ABORTABLE)
CASES = [(step, *case) for step, row in TABLE.items() for case in zip(FAULTS, row, strict=True)]


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(Step)
    assert {expected for _, _, expected in CASES} == set(Remedy) - {Remedy.GIVE_UP}


@pytest.mark.parametrize(("step", "fault", "expected"), CASES)
def test_what_is_done_about_an_error(step: Step, fault: Fault, expected: Remedy) -> None:
    assert remedy(fault, step) is expected


@pytest.mark.parametrize("code", sorted(FENCED | OF_NO_GENERATION))
def test_whoever_was_fenced_gives_up_whatever_else_the_error_says(code: int) -> None:
    """A fresh producer would fence the rightful owner, and two owners would fence each other for ever."""
    for step, flags in itertools.product(Step, itertools.product([False, True], repeat=3)):
        assert remedy(Fault(code, *flags), step) is Remedy.GIVE_UP


def test_what_must_be_aborted_is_never_tried_again() -> None:
    for step in (Step.OFFSETS, Step.COMMIT):
        assert remedy(Fault(OTHER, retriable=True, requires_abort=True), step) is ABORT


def test_the_flags_are_those_of_librdkafka() -> None:
    error = KafkaError(KafkaError.ILLEGAL_GENERATION, "why", False, True, True)
    assert Fault.of(error) == Fault(KafkaError.ILLEGAL_GENERATION, retriable=True, requires_abort=True)


def test_an_error_that_outlasts_its_time_means_a_fresh_producer() -> None:
    error = delivery_error(Step.COMMIT, KafkaError(OTHER, "slow", False, True, False))
    assert error.remedy is REBUILD
    assert not error.fenced
    assert str(error) == "committing a Kafka transaction failed: _TIMED_OUT: slow"
    assert delivery_error(Step.OFFSETS, KafkaError(KafkaError.ILLEGAL_GENERATION)).fenced
    lasting = str(delivery_error(Step.TAKE_OVER, KafkaError(KafkaError.CONCURRENT_TRANSACTIONS)))
    assert lasting.startswith("taking over failed: CONCURRENT_TRANSACTIONS")
    assert "If it lasts, bring back the brokers" in lasting
    assert "change no min.insync.replicas while a partition has no leader" in lasting


def test_a_lost_connection_or_answer_is_trouble_and_other_lines_are_not() -> None:
    """For an error that comes again within 30 s librdkafka has a debug line only."""
    for level, facility, text, trouble in (
        (40, "FAIL", "text", True),
        (40, "REQTMOUT", "text", True),
        (40, "GETPID", "text", False),
        (10, "FAIL", "127.0.0.1:9092/1: Disconnected (after 3ms) (_TRANSPORT): identical to last error", True),
        (10, "FAIL", "127.0.0.1:9092/bootstrap: Decommissioning this broker (_DESTROY_BROKER)", False),
        (10, "FAIL", "127.0.0.1:9092/1: Handle is terminating (_DESTROY)", False),
    ):
        problems = ClientLog()
        problems.log(level, "%s [%s] %s", facility, "producer", text)
        assert problems.trouble is trouble


def test_a_broker_that_left_the_cluster_is_noticed_and_a_bootstrap_address_is_none() -> None:
    for facility, text, left in (
        ("DESTROY", "[thrd:main]: Sending TERMINATE to 127.0.0.1:9092/2", True),
        ("DESTROY", "[thrd:main]: Sending TERMINATE to sasl_ssl://kafka-0.example:9092/12", True),
        ("DESTROY", "[thrd:main]: Sending TERMINATE to sasl_ssl://127.0.0.1:9092/bootstrap", False),
        ("STATE", "[thrd:main]: 127.0.0.1:9092/2: Broker changed state UP -> DOWN", False),
    ):
        noted = ClientLog()
        noted.log(10, "%s [%s] %s", facility, "producer", text)
        assert noted.broker_left is left


def test_the_connection_to_the_transaction_coordinator_is_known_by_its_debug_line() -> None:
    noted = ClientLog()
    for thread, number in (("TxnCoordinator", 43), ("127.0.0.1:9092/1", 44)):
        text = f"[thrd:{thread}]: {thread}: Connecting to ipv4#127.0.0.1:9092 (plaintext) with socket {number}"
        noted.log(10, "%s [%s] %s", "CONNECT", "producer", text)
    assert noted.coordinator == (9092, 43)


def test_debug_lines_are_logged_if_the_settings_ask_for_them() -> None:
    for debug, lines in ((False, 0), (True, 1)):
        with capture_logs() as logged:
            ClientLog(debug=debug).log(10, "%s [%s] %s", "STATE", "producer", "Broker changed state INIT -> UP")
        assert len(logged) == lines


def test_line_that_comes_again_is_logged_once() -> None:
    """Librdkafka asks sixteen times while a take-over waits, and each take-over has a new client."""
    with capture_logs() as logged:
        for number in range(3):
            problems = ClientLog()
            for _ in range(16):
                for owner in ("relay-0", "relay-1"):
                    problems.log(30, "", "GETPID", f"{owner}#producer-{number}", f"PID not acquired {number}")
                    problems.log(30, "", "GETPID", f"{owner}#producer-{number}", "Not coordinator: retrying")
    warned = [line["client"] for line in logged if line["log_level"] == "warning"]
    assert warned == ["relay-0#producer-0", "relay-1#producer-0"], "a new cluster has no coordinator yet"
