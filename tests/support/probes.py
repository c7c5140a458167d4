"""What a service says of itself over HTTP."""

import socket
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a page; status 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    _, page = get(port, "/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def metric(port: int, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (found, has), value in metrics(port).items() if found == name and wanted <= has)
