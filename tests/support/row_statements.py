"""What a message table and its neighbours hold, as evidence: statements for `MessageTable.compose()`."""

from typing import LiteralString

DELIVERED: LiteralString = (
    "SELECT {transaction_id} || '/' || r.id, topics[coalesce(target, 1)],"
    " CAST(floor(extract(epoch FROM delivered_at) * 1000) AS bigint)"
    " FROM {delivered} AS b, {rows} WHERE r.id IS NOT NULL"
)
SPREAD: LiteralString = (
    "WITH gone AS (DELETE FROM {delivered} RETURNING *) INSERT INTO {delivered} (delivered_at, first_id, batch,"
    " {batch}) SELECT delivered_at, r.id, batch, int8multirange(int8range(r.id, r.id, '[]')), ARRAY[xid],"
    " ARRAY[created_at], int8range(xid::text::bigint, xid::text::bigint, '[]'), '{{}}', services[at:at],"
    " topics[at:at], partitions[at:at], earliest[at:at] FROM gone AS b, {rows}, coalesce(target, 1) AS at"
    " WHERE r.id IS NOT NULL"
)
"""Makes evidence of each message of its own, so that some of it can be removed."""
DISCARDED: LiteralString = "SELECT id, {transaction_id} || '/' || id, reason FROM {discarded}"
WAITING: LiteralString = "SELECT {transaction_id} || '/' || id FROM {message} ORDER BY id LIMIT 20"
