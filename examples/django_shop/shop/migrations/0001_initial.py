"""Make the table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The first one."""

    initial = True
    operations = [  # noqa: RUF012 - as Django has it
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("what", models.TextField()),
            ],
        ),
    ]
