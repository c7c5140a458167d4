"""FastAPI: an order is written and announced, both or neither. Run it with `uvicorn examples.fastapi_app:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox import AsyncOutbox, OutboxError, TypedTopic


class Order(BaseModel):
    """What a customer sends."""

    id: int
    what: str


orders: TypedTopic[str, dict[str, object]] = TypedTopic(os.environ.get("TOPIC", "orders"))
engine = create_async_engine(os.environ["DATABASE_URL"])
outbox = AsyncOutbox.from_env()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """At the end, op markers are flushed."""
    async with outbox:
        yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """A session with its transaction, for one request."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


app = FastAPI(lifespan=lifespan)


# With scope="function" the transaction ends before the answer goes out: "201" then means that it committed.
@app.post("/orders", status_code=201)
async def create(
    order: Order, session: Annotated[AsyncSession, Depends(transaction, scope="function")]
) -> dict[str, str]:
    """Write the order, publish the message."""
    await session.execute(text("INSERT INTO orders (id, what) VALUES (:id, :what)"), order.model_dump())
    receipt = await outbox.publish(session, orders.message(order.model_dump(), key=str(order.id)))
    return {"message_id": receipt.message_id}


@app.get("/readyz")
async def ready() -> dict[str, str]:
    """Whether messages can be published."""
    try:
        await outbox.ping()
    except OutboxError as error:
        raise HTTPException(503, str(error)) from error
    return {"status": "ready"}
