"""FastAPI: an order is written and announced, both or neither. Run it with `uvicorn examples.fastapi_app:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox import AsyncHalfOutbox, TypedTopic
from outbox.errors import PublishFailed


class Order(BaseModel):
    """What a customer sends."""

    id: int
    what: str


orders: TypedTopic[str, dict[str, object]] = TypedTopic(os.environ.get("TOPIC", "orders"))
engine = create_async_engine(os.environ["DATABASE_URL"])
outbox = AsyncHalfOutbox.from_env()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """At the end, op markers are flushed."""
    async with outbox:
        yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """Yield a session with its transaction, for one request."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


app = FastAPI(lifespan=lifespan)


@app.exception_handler(PublishFailed)
async def kafka_is_down(_request: Request, error: PublishFailed) -> JSONResponse:
    """Nothing was written: the client may try again. While the circuit is open this takes no time."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})


# With scope="function" the transaction ends before the answer goes out: "201" then means that it committed.
@app.post("/orders", status_code=201)
async def create(
    order: Order, session: Annotated[AsyncSession, Depends(transaction, scope="function")]
) -> dict[str, str]:
    """Write the order, publish the message."""
    await session.execute(text("INSERT INTO orders (id, what) VALUES (:id, :what)"), order.model_dump())
    receipt = await outbox.publish(session, orders.message(order.model_dump(), key=str(order.id)))
    return {"message_id": receipt.message_id}


@app.get("/orders/{id}")
async def read(id: int, session: Annotated[AsyncSession, Depends(transaction)]) -> dict[str, object]:  # noqa: A002
    """Read an order: this works without Kafka."""
    what = await session.scalar(text("SELECT what FROM orders WHERE id = :id"), {"id": id})
    if what is None:
        raise HTTPException(404)
    return {"id": id, "what": what}


@app.get("/readyz")
async def ready(session: Annotated[AsyncSession, Depends(transaction)]) -> dict[str, str]:
    """Whether this process can serve. Kafka is no part of it: its outage would stop what only reads, too."""
    await session.execute(text("SELECT 1"))
    return {"status": "ready"}


@app.get("/kafka")
async def kafka() -> dict[str, str]:
    """Whether Kafka answers: for a dashboard, not for a load balancer."""
    await outbox.ping()
    return {"status": "it answers"}
