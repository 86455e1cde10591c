"""Conversations side by side, kept in an SQLite database by asynchronous SQLAlchemy."""

import asyncio
import datetime
import os
import uuid

import httpx
from sqlalchemy import ForeignKey, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

URL = os.environ["STUB_URL"]


class Base(DeclarativeBase):
    pass


class Chat(Base):
    __tablename__ = "chat"
    id: Mapped[str] = mapped_column(primary_key=True, default=lambda: uuid.uuid4().hex)
    at: Mapped[datetime.datetime] = mapped_column(default=datetime.datetime.now)
    messages: Mapped[list["Message"]] = relationship(back_populates="chat", lazy="selectin")


class Message(Base):
    __tablename__ = "message"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]
    chat_id: Mapped[str] = mapped_column(ForeignKey("chat.id"))
    chat: Mapped[Chat] = relationship(back_populates="messages")


async def main() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///chats.db")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with httpx.AsyncClient() as client:

        async def talk(number: int) -> None:
            async with sessions() as session:
                chat = Chat()
                session.add(chat)
                await session.flush()
                for turn in range(2):
                    answer = await client.get(f"{URL}/chats/{number}/{turn}")
                    session.add(Message(text=answer.json()["said"], chat=chat))
                await session.commit()

        await asyncio.gather(*(talk(number) for number in range(2)))
    async with sessions() as session:
        for chat in await session.scalars(select(Chat).order_by(Chat.at)):
            print(chat.id, chat.at, sorted(message.text for message in chat.messages))
    await engine.dispose()


asyncio.run(main())
