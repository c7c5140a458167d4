"""`outbox init`: what one service needs to run a relay beside itself, as files that are its own from then on."""

import enum
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from outbox._cli.setting_options import option, subcommand
from outbox._postgres.ddl import script
from outbox._postgres.message_table import MessageTable
from outbox._security.encryption import remote_brokers
from outbox.errors import ConfigurationError, UsageError
from outbox.message import Message
from outbox.operator.settings import Given, RightsSettings
from outbox.settings import TableNames

GRACE_SECONDS = 30  # time between SIGTERM and SIGKILL: more than the relay's own limits for open batches
COMPOSE, KUBERNETES, _DSN_FILE = "relay.compose.yaml", "relay.kubernetes.yaml", "/run/secrets/outbox_dsn"


class Migration(enum.StrEnum):
    """What makes the tables."""

    DJANGO = "django"
    ALEMBIC = "alembic"
    SQL = "sql"


_NEXT = {  # how the migration is run; `{}` is the service
    Migration.DJANGO: 'python manage.py migrate   # INSTALLED_APPS += ["outbox.django"]; OUTBOX = {{"name": "{}"}}',
    Migration.ALEMBIC: "alembic upgrade head   # once outbox_tables.py is among your versions",
    Migration.SQL: "psql -v application=ROLE -v relay=ROLE -f outbox_tables.sql   # as the owner; -v viewer=ROLE, too",
}

_THEN = """\
  outbox channel create --tables-only --replication {replication} --bootstrap-servers {servers}
  kafka-topics.sh --bootstrap-server {servers} --create --topic …   # each of {topics} that is missing
  docker build --target services --tag kafka-transactional-outbox:local .   # in a clone
  kubectl create secret …   # as relay.kubernetes.yaml has it; for compose write the file outbox_dsn
{local}Then start the relay: by compose, by Kubernetes, or without Docker, and look at it:
  docker compose --file compose.yaml --file relay.compose.yaml up relay
  kubectl apply --filename relay.kubernetes.yaml
  OUTBOX_ALLOWED_TOPICS='{allowed}' outbox relay {of}
  outbox doctor {of}"""
_LOCAL = "  # {} is the container itself in both relay files: write the address that containers reach, as kafka:9092\n"

_ROLE_GIVEN = """\
\\if :{{?{0}}}
\\else
DO $$ BEGIN RAISE 'Nothing was changed. Give psql -v {0}=ROLE.'; END $$;
\\endif
"""
_SQL = "\\set ON_ERROR_STOP on\n{}BEGIN;\n{}\\if :{{?viewer}}\n{}\\endif\nCOMMIT;\n"


def files(service: str, topics: Sequence[str], servers: str, migration: Migration) -> dict[str, str]:
    """Return the files by name; names that a relay would refuse are refused."""
    allowed = {service: list(topics)}
    for one in topics:
        Message(one.removesuffix("*") or "every", None)  # refuses what no message may be for
    try:
        RightsSettings({}, allowed_topics=allowed, tables={service: {"dsn_file": _DSN_FILE}})
    except ConfigurationError as error:
        raise UsageError(f"--service {service!r} cannot be used: {error}") from error
    words = ["relay", "--table", f"{service}=@{_DSN_FILE}", "--bootstrap-servers", servers, "--http-port", "8080"]
    given = {"command": json.dumps(words), "allowed": json.dumps(allowed), "grace": GRACE_SECONDS}
    ports = sorted({one.rpartition(":")[2] if ":" in one else "9092" for one in servers.split(",")})
    given |= {"name": f"{service.replace('_', '-')}-relay", "ports": ", ".join(map("{{port: {}}}".format, ports))}
    templates = {name: Template(Path(__file__).with_name(name).read_text()) for name in (COMPOSE, KUBERNETES)}
    made = {name: template.substitute(given) for name, template in templates.items()}
    if migration is Migration.ALEMBIC:
        made["outbox_tables.py"] = Path(__file__).with_name("alembic.txt").read_text()
    elif migration is Migration.SQL:
        table = MessageTable(TableNames())
        grants = table.application_grant("application"), table.relay_grant("relay")
        texts = table.ddl(grants), script(table.viewer_grant("viewer").statements())
        needed = "".join(map(_ROLE_GIVEN.format, ("application", "relay")))
        made["outbox_tables.sql"] = _SQL.format(needed, *texts).replace(' TO "', ' TO :"')  # variables of psql
    return made


@subcommand(RightsSettings, "bootstrap_servers")
def app(
    given: Given,
    service: Annotated[str, option("Name of the service, as in Outbox(NAME).")],
    topic: Annotated[list[str], option("Topic it may write to, or a prefix that ends in '*'; repeatable.")],
    directory: Annotated[Path, option("Where the files are written.")] = Path(),
    migration: Annotated[Migration, option("What makes the tables.")] = Migration.SQL,
) -> None:
    """Write what a service needs to run a relay beside itself: for compose and Kubernetes, and a migration.

    No file that is there is overwritten.
    """
    servers = RightsSettings(**given).bootstrap_servers or "kafka:9092"
    made = {directory / name: text for name, text in files(service, topic, servers, migration).items()}
    if there := ", ".join(str(path) for path in made if path.exists()):
        raise UsageError(f"{there} exists and is not overwritten; nothing was written. Give another --directory.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in made.items():
            path.write_text(text)
            typer.echo(f"wrote {path}")
    except OSError as error:
        raise ConfigurationError(f"{error}. Give another --directory.") from error
    is_remote = bool(remote_brokers({"bootstrap.servers": servers}))
    given = {"servers": servers, "topics": ", ".join(topic), "allowed": json.dumps({service: topic})}
    given["replication"] = "3" if is_remote else str(min(3, len(servers.split(","))))
    given["local"] = "" if is_remote else _LOCAL.format(servers)
    then = _THEN.format(**given, of=f"--table {service}=@outbox_dsn --bootstrap-servers {servers}")
    typer.echo(f"Next:\n  {_NEXT[migration].format(service)}\n{then}")
