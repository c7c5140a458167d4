"""What all tests share."""

from __future__ import annotations

import os

from stack.kafka import JVM_OPTIONS

# A broker that lives for minutes does not earn back what the optimising compiler costs: a third of its processor time.
os.environ.setdefault(JVM_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
