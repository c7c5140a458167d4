"""FastAPI in table mode on asyncpg: no Kafka here. Run it with `uvicorn examples.fastapi_table_app:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI
from pydantic import BaseModel

from outbox import AsyncOutbox, TableNames, TypedTopic


class Order(BaseModel):
    """What a customer sends."""

    id: int
    what: str


orders: TypedTopic[str, dict[str, object]] = TypedTopic(os.environ.get("TOPIC", "orders"))
outbox = AsyncOutbox("shop", tables=TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the pool for as long as the application runs."""
    async with outbox, asyncpg.create_pool(os.environ["OUTBOX_POSTGRES_URL"]) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create(order: Order) -> dict[str, str]:
    """Write the order, publish the message: both or neither. A relay delivers it."""
    async with app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO orders (id, what) VALUES ($1, $2)", order.id, order.what)
        receipt = await outbox.publish(connection, orders.message(order.model_dump(), key=str(order.id)))
    return {"message_id": receipt.message_id}


@app.get("/readyz")
async def ready() -> dict[str, str]:
    """Whether this process can serve."""
    await app.state.pool.fetchval("SELECT 1")
    return {"status": "ready"}
