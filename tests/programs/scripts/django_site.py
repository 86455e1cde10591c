"""A site of Django's, asked in the process: sessions, a database, plain and asynchronous views that ask a model."""

import asyncio

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="stub" * 20,
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}},
    INSTALLED_APPS=["django.contrib.sessions", "django.contrib.auth", "django.contrib.contenttypes"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.test import AsyncClient, Client  # noqa: E402
from django.urls import path  # noqa: E402
from openai import AsyncOpenAI, OpenAI  # noqa: E402

model, asynchronous = OpenAI(), AsyncOpenAI()
question = [{"role": "user", "content": "How deep is the fjord?"}]


def plain(request: HttpRequest) -> JsonResponse:
    user, new = User.objects.get_or_create(username="ada")
    request.session["asked"] = request.session.get("asked", 0) + 1
    chat = model.chat.completions.create(model="gpt-4o", messages=question)
    said = {"answer": chat.choices[0].message.content, "asked": request.session["asked"], "new": new}
    return JsonResponse({**said, "joined": str(user.date_joined)})


async def later(request: HttpRequest) -> JsonResponse:
    chat = await asynchronous.chat.completions.create(model="gpt-4o", messages=question)
    return JsonResponse({"answer": chat.choices[0].message.content, "users": await User.objects.acount()})


urlpatterns = [path("plain", plain), path("later", later)]
call_command("migrate", verbosity=0)
client = Client()
for _ in range(3):
    print(client.get("/plain").json())


async def main() -> None:
    browser = AsyncClient()
    for answer in await asyncio.gather(*(browser.get("/later") for _ in range(4))):
        print(answer.json())


asyncio.run(main())
