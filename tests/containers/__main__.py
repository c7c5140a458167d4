"""`python -m tests.containers`: the product in containers, where no image registry is reachable: docs/containers.md."""

import argparse
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import FrameType

from tests.containers.compose import prove_compose
from tests.containers.engine import Engine, engine
from tests.containers.images import KAFKA_IMAGE, POSTGRES_IMAGE, build_images
from tests.containers.servers import KAFKA_IMAGE_VARIABLE, POSTGRES_IMAGE_VARIABLE
from tests.containers.steps import StepError, Steps
from tests.support.servers import VARIABLE as STACK_VARIABLE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "containers"
ROWS = 3_000


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _end)
    steps = Steps(_empty(FOLDER / "logs"))
    code = 1
    try:
        debootstrap = arguments.base_image is None
        with engine(FOLDER / "engine", steps, debootstrap=debootstrap, fresh=arguments.fresh) as running:
            _prove(running, steps, arguments)
        code = 0
    except StepError as error:
        steps.console.print(f"failed: {error}", markup=False)
    except KeyboardInterrupt:
        steps.console.print("interrupted")
    steps.show()
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"flights of the demo (default {ROWS})")
    parser.add_argument("--base-image", help="a Debian image to begin with, instead of one made by debootstrap")
    parser.add_argument(
        "--fresh", action="store_true", help="forget the images that the own engine keeps from run to run"
    )
    parser.add_argument(
        "--only", choices=("integration", "compose"), help="only the integration tests, or only the compose file"
    )
    return parser.parse_args()


def _prove(running: Engine, steps: Steps, arguments: argparse.Namespace) -> None:
    running.remove_testcontainers(KAFKA_IMAGE, POSTGRES_IMAGE)
    build_images(running, steps, arguments.base_image)
    failures: list[str] = []
    # The compose file is tried even if a test failed.
    for name, prove in (("integration", _integration), ("compose", _compose)):
        if arguments.only in {None, name}:
            try:
                prove(running, steps, arguments)
            except StepError as error:
                failures.append(str(error))
    if failures:
        raise StepError("\n".join(failures))


def _compose(running: Engine, steps: Steps, arguments: argparse.Namespace) -> None:
    prove_compose(running, steps, arguments.rows)


def _integration(running: Engine, steps: Steps, _: argparse.Namespace) -> None:
    report = steps.logs / "integration.xml"
    images = {KAFKA_IMAGE_VARIABLE: KAFKA_IMAGE, POSTGRES_IMAGE_VARIABLE: POSTGRES_IMAGE}
    words = ["tests/integration", "-m", "not long", "-p", "tests.containers.selection", f"--junitxml={report}"]
    try:
        with steps.step("integration tests"):
            environ = {**running.environ, **images, STACK_VARIABLE: "containers"}
            command = [sys.executable, "-m", "pytest", *words]
            code = subprocess.run(command, env=environ, cwd=ROOT, check=False).returncode
            if code:
                raise StepError(f"pytest ended with {code}")
    finally:
        left = running.remove_testcontainers(*images.values())
        steps.note("  containers left behind", f"{left}, removed" if left else "none")
    suite = ET.parse(report).getroot()[0]  # noqa: S314 - pytest wrote it a moment ago
    steps.note("  tests on containers", f"{int(suite.attrib['tests']) - int(suite.attrib['skipped'])} passed")


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _end(_: int, __: FrameType | None) -> None:
    """SIGTERM: end as Ctrl-C does, so that the engine is stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
