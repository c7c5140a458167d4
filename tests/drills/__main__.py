"""Play all drills, or those whose headings contain one of the arguments, and write what they print into the page."""

import re
import sys

from stack import Stack
from tests.drills.page import DRILLS, PAGE, written
from tests.drills.scene import played
from tests.support import forked

if __name__ == "__main__":
    forked.enabled = True
    with Stack() as own:
        for symptom, play in DRILLS.items():
            if any(word in symptom for word in sys.argv[1:] or [""]):
                scene, (section, transcript) = played(own, play), written(symptom)
                filled = section.replace(f"```console\n{transcript}```", f"```console\n{scene.transcript}```")
                filled = re.sub(r"^Seconds: .*", f"Seconds: {scene.seconds}.", filled, flags=re.MULTILINE)
                PAGE.write_text(PAGE.read_text().replace(section, filled))
