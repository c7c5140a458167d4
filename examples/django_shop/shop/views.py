"""Place an order: the row and the message, both or neither."""

import json
from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import JsonResponse
from django.urls import path

from examples.django_shop.shop.models import Order
from outbox import Message
from outbox.django import publish


def place_order(request: Any) -> JsonResponse:
    """Store an order and publish it."""
    with transaction.atomic():
        order = Order.objects.create(what=request.POST["what"])
        value = {"id": order.pk, "what": order.what}
        publish(Message("orders", value=json.dumps(value), key=str(order.pk)))
    return JsonResponse({"id": order.pk}, status=201)


urlpatterns = [path("orders", place_order), path("admin/", admin.site.urls)]
