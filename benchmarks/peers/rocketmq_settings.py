"""The settings of a RocketMQ of one broker without a replica. Pure text, no I/O."""

from __future__ import annotations

from pathlib import Path

from stack.ports import HOST

BROKER_JAVA = (
    "-Xms2g",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=1g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""What the broker needs on Java 17 and newer, with a heap for a machine of a few GiB."""

NAME_SERVER_JAVA = ("-Xms128m", "-Xmx256m")


def name_server_conf(port: int) -> str:
    """Return the file `namesrv.conf`."""
    return _lines({"bindAddress": HOST, "listenPort": port})


def broker_conf(
    folder: Path, name_server: str, port: int, replication_port: int, timeout_ms: int, check_interval_ms: int
) -> str:
    """Return the file `broker.conf`.

    Args:
        port: The clients' port; the one two below it must be free, too.
        replication_port: For replicas, of which there are none.
        check_interval_ms: Between two looks of the check service. After 15 checks a half is given up, asked or not.
    """
    return _lines(
        {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "namesrvAddr": name_server,
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": port,
            "haListenPort": replication_port,
            "storePathRootDir": folder / "store",
            "storePathCommitLog": folder / "store" / "commitlog",
            "mappedFileSizeCommitLog": 128 * 2**20,
            "diskMaxUsedSpaceRatio": 95,
            "autoCreateTopicEnable": "true",
            "timerWheelEnable": "false",
            "messageIndexEnable": "false",
            "transactionTimeOut": timeout_ms,
            "transactionCheckInterval": check_interval_ms,
        }
    )


def _lines(settings: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
