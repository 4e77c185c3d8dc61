"""Run a silo's node as if its machine's clock were wrong: ``python skewed.py SECONDS HOME ...``.

Changed are the clocks that the node shows and reads: Flower's signed timestamps, and the time left of a message.
"""

import sys
import time
from datetime import datetime, timedelta

from flwr.supernode import node_auth_http_interceptor as signed

from client_app.node.command import main


def skew(seconds: float) -> None:
    now, clock = signed.now, time.time

    def shown() -> datetime:
        return now() + timedelta(seconds=seconds)

    signed.now = shown
    time.time = lambda: clock() + seconds


if __name__ == "__main__":
    skew(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
