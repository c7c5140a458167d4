"""A token provider, as an application or an operator writes one: it reads a token from a file."""

import base64
import json
from pathlib import Path


def provide(config: str) -> tuple[str, float]:
    token = Path(config).read_text()
    claims = token.split(".")[1]
    expires = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
    return token, float(expires)
