"""Each query of the dashboard returns a series, as Prometheus answers it beside a site that runs."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from outbox import Message
from tests.integration.relay.test_halts import publish
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, insert_rows, relay_settings
from tests.support.probes import free_port, get
from tests.support.promtool import promtool

DASHBOARD = json.loads((Path(__file__).parents[3] / "docs/grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@contextmanager
def _prometheus(folder: Path, *ports: int) -> Iterator[int]:
    """Run a Prometheus that scrapes these ports each second; yield its own."""
    own, config = free_port(), folder / "prometheus.yml"
    scraped = {"job_name": "outbox", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scraped]}))
    command = [promtool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{own}"], stderr=log)
    try:
        wait_until(lambda: get(own, "/-/ready")[0] == 200, explain=(folder / "prometheus.log").read_text)
        yield own
    finally:
        process.terminate()
        process.wait()


def _series(port: int, query: str, channel: str) -> int:
    """Return how many series a query returns, with the variables that Grafana sets."""
    for variable, value in {"$channel": channel, "$__rate_interval": "10s", "$__range": "1m"}.items():
        query = query.replace(variable, value)
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return len(json.load(answer)["data"]["result"])


def test_each_query_of_the_dashboard_returns_a_series(site: Site, tmp_path: Path) -> None:
    site.create("orders", partitions=1)
    create(site)
    ports = free_port(), free_port()
    site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(ports[0])))
    site.checker(extra={"OUTBOX_HTTP_PORT": str(ports[1])})
    insert_rows(site, [Message(site.topic("orders"), "of a row", "key")])
    publish(site, ["of a half"], 0)
    site.wait_visible(2, "orders")
    with _prometheus(tmp_path, *ports) as port:
        lacking = list(QUERIES)

        def all_answered() -> bool:
            lacking[:] = [query for query in QUERIES if not _series(port, query, site.name)]
            return not lacking

        wait_until(all_answered, explain=lambda: "\n".join(lacking))
        assert _series(port, 'outbox_ready{channel="$channel",program="no"}', site.name) == 0
