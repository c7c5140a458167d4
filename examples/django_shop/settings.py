"""Settings of the shop: Postgres if OUTBOX_POSTGRES_URL names one, else SQLite, for tests."""

import os
from urllib.parse import unquote, urlsplit

SECRET_KEY = "an example"  # noqa: S105 - it protects nothing
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_shop.shop.views"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "outbox.django",
    "examples.django_shop.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.request",
            ]
        },
    }
]
OUTBOX = {"name": "shop"}

_url = urlsplit(os.environ.get("OUTBOX_POSTGRES_URL", ""))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path[1:],
        "HOST": _url.hostname,
        "PORT": _url.port,
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
    }
    if _url.scheme
    else {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
}
