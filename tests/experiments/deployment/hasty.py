"""Run a silo's node with the shortest heartbeats that Flower accepts, so that a killed one is missed soon.

Every forked child looks at this module again, so that it imports nothing but what it needs to get away.
"""

import sys

if __name__ == "__main__":
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
    from flwr.supercore import heartbeat

    from client_app.node import fleet
    from client_app.node.command import main

    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_MIN_INTERVAL
    sys.exit(main(sys.argv[1:]))
