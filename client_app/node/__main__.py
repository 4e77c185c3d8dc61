"""``python -m client_app.node HOME``: run the node of one silo.

Every forked child looks at this module again, so that it imports nothing but what it needs to get away.
"""

import sys

if __name__ == "__main__":
    from client_app.node.command import main

    sys.exit(main(sys.argv[1:]))
