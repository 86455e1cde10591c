"""A bot of python-telegram-bot that polls for messages and answers with a model; it stops after the fifth."""

import logging
import os

from openai import AsyncOpenAI
from telegram import Update
from telegram.ext import Application, CommandHandler, ContextTypes, MessageHandler, filters

logging.basicConfig(level=logging.WARNING)
client = AsyncOpenAI()


async def start(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    context.user_data["asked"] = 0
    await update.message.reply_text(f"Hello {update.effective_user.first_name}!")


async def answer(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    context.user_data["asked"] = context.user_data.get("asked", 0) + 1
    await context.bot.send_chat_action(update.effective_chat.id, "typing")
    chat = await client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": update.message.text}]
    )
    said = await update.message.reply_text(chat.choices[0].message.content)
    print(context.user_data["asked"], said.message_id, said.date, said.text)
    if said.message_id == 5:
        context.application.stop_running()


async def later(context: ContextTypes.DEFAULT_TYPE) -> None:
    print("still there", context.job.name)


def main() -> None:
    url = os.environ["SERVER_URL"]
    application = Application.builder().token("123:stub").base_url(f"{url}/bot").concurrent_updates(True).build()
    application.add_handler(CommandHandler("start", start))
    application.add_handler(MessageHandler(filters.TEXT & ~filters.COMMAND, answer))
    if application.job_queue:
        application.job_queue.run_once(later, 0.05, name="later")
    application.run_polling(allowed_updates=Update.ALL_TYPES, poll_interval=0)


main()
