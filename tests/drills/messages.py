"""Drills about messages: one that is looked for, and those that their topics do not take."""

import json
import re

from outbox._service.exit_codes import Exit
from tests.drills.scene import Scene
from tests.support.harness import wait_until
from tests.support.message_rows import insert, publish, wait_empty


def never_arrived(scene: Scene) -> None:
    site, topic = scene.site, scene.site.topic("orders")
    insert(site, "4711")
    scene.relay()
    wait_empty(site)
    scene.cause()
    found = scene.outbox(f"find --key 4711 --topic {topic}", "DELIVERED", " offset ", "outbox trace", explains=True)
    (id_,) = re.findall(r"outbox trace (\S+)", found)
    scene.outbox(f"trace {id_}", "visible:")
    scene.outbox(f"find --key 4712 --topic {topic}", "4712", "no key", code=Exit.FINDINGS)


def never_created(scene: Scene) -> None:
    site = scene.site
    relay = scene.relay()
    scene.cause()
    id_ = scene.publish_row("mail")
    scene.outbox("doctor", "!!", "create the topic", code=Exit.FINDINGS, explains=True)
    relay.terminate()
    scene.relay(OUTBOX_TOPIC_MISSING_MAX_AGE_MS="300")
    wait_empty(site)
    scene.note("after topic_missing_max_age_ms they are discarded")
    assert "\ndiscarded: its rows are discarded" in scene.look(f"trace {id_}")
    site.create_topics("mail")
    scene.note("the topic is created")
    scene.outbox("discarded deliver --all --yes --wait-seconds 30", "is now", "were delivered")
    site.wait_visible(1, "mail")


def deleted(scene: Scene) -> None:
    site = scene.site
    site.create_topics("mail")
    scene.relay(OUTBOX_TOPIC_MISSING_MAX_AGE_MS="600000")
    scene.publish_both("mail")
    site.wait_visible(2, "mail")
    scene.cause()
    site.delete_topics(site.topic("mail"))
    scene.publish_both("mail")
    insert(site, "4711")
    insert(site, "4712")
    assert [record.key for record in site.wait_visible(1, "orders")] == [b"4712"]
    scene.outbox("pending", "wait:", "create the topic", "mail, ", "SAME_KEY", explains=True)
    site.create_topics("mail")
    scene.note("the topic is created again")
    site.wait_visible(2, "mail")
    site.wait_visible(2, "orders")


def too_large(scene: Scene) -> None:
    site, topic = scene.site, scene.site.topic("small")
    site.create_topic("small", 1, {"max.message.bytes": "2000"})
    scene.relay()
    scene.cause()
    id_ = scene.publish_both("small", 3_000)
    wait_empty(site)
    wait_until(lambda: len(site.manifests()) == 1, explain=site.logs)
    scene.outbox("discarded", "of orders", "the first", explains=True)
    assert "\ndiscarded: it is in the discard topic" in scene.look(f"trace {id_}")
    site.set_topic(topic, "max.message.bytes", "1000000")
    scene.note("max.message.bytes of the topic is raised")
    scene.outbox("discarded deliver --all --reason TOO_LARGE --yes --wait-seconds 30", "were delivered")
    site.wait_visible(2, "small")


def not_deliverable(scene: Scene) -> None:
    site = scene.site
    scene.relay(OUTBOX_ALLOWED_TOPICS=json.dumps({"orders": [site.topic("orders")]}))
    scene.cause()
    row = f"INSERT INTO {site.tables.message} (service, topic, header_names) VALUES ('orders', %s, %s)"
    for topic, names in (("__consumer_offsets", []), (site.topic("orders"), ["trace"])):
        site.sql(row, topic, names)
    with site.connect() as connection, connection.transaction():
        publish(connection, site, "orders", ["4712"])
        publish(connection, site, "salaries", ["4712"])
    insert(site, "4711")
    wait_empty(site)
    assert [record.key for record in site.wait_visible(1, "orders")] == [b"4711"]
    scene.outbox("discarded", "of orders", "the first", explains=True)
    scene.outbox("discarded drop --all --yes --comment 'ticket 12'", "were dropped")
