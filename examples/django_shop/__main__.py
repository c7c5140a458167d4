"""`python -m examples.django_shop migrate`, as `manage.py` of any project."""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
execute_from_command_line([sys.argv[0], *sys.argv[1:]])
